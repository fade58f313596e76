"""Jobs of history without Spark: their tasks run in this process, and may be held."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_compaction import compact as compact_module
from spark_compaction import job as job_module
from spark_compaction import merge_files as merge_module
from spark_compaction import rewrite_job as rewrite_module
from spark_compaction.state import state_job as state_module
from tests.spark_compaction.test_races import Held, in_this_process


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compact_module, rewrite_module, state_module):
        monkeypatch.setattr(module, "run_in_spark", in_this_process)
    for module in (compact_module, rewrite_module):
        monkeypatch.setattr(module, "spark_session", lambda _: None)


@pytest.fixture
def held(without_spark: None, monkeypatch: pytest.MonkeyPatch) -> Held:  # noqa: ARG001 - tasks run here
    """Stops a job before it stages, or before its commit."""
    hold = Held()

    def stops_at(point: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def stop(*given: Any, **named: Any) -> Any:
            await hold.at(point)
            return await real(*given, **named)

        return stop

    commit = stops_at("before the commit", job_module._publish_until_known)
    monkeypatch.setattr(job_module, "_publish_until_known", commit)
    staging = stops_at("before staging", job_module.publish_staged)
    for module in (compact_module, merge_module, state_module):
        monkeypatch.setattr(module, "publish_staged", staging)
    return hold
