"""Jobs of history without Spark: their tasks run in this process, and may be held."""

import pytest

from spark_compaction import compact as compact_module
from spark_compaction import rewrite_job as rewrite_module
from spark_compaction.state import state_job as state_module
from tests.spark_compaction.test_races import in_this_process


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compact_module, rewrite_module, state_module):
        monkeypatch.setattr(module, "run_in_spark", in_this_process)
    for module in (compact_module, rewrite_module):
        monkeypatch.setattr(module, "spark_session", lambda _: None)
