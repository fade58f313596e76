"""History on a standalone Spark cluster of two workers: `tidelog history run` by spark-submit, killed all
over while consumers read (history_site.py).
"""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import create_topic, wait_until_doctor_finds_nothing
from tests.faults.history_site import (
    AGENTS,
    LOG_TOPIC,
    PARTITIONS,
    everything_read,
    kill_while_consumers_read,
    kills_of_each_point,
    service_on,
    wait_for_more_history,
    wait_until_all_is_parquet,
)
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(1200)]


def texts_of(process: psutil.Process) -> str:
    """All that a process was started with."""
    return "\n".join([*process.cmdline(), *(f"{name}={value}" for name, value in process.environ().items())])


def test_executors_compact_with_nothing_but_the_bucket(
    new_stack: Callable[..., Stack], stack_directory: Path
) -> None:
    stack = new_stack(agents=2, agent_environment=AGENTS)
    with service_on(stack, stack_directory) as service:
        topic = create_topic(stack.addresses.bootstrap, PARTITIONS, LOG_TOPIC)
        ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
        settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=50.0)
        started: dict[int, str] = {}
        with Load(settings, ledger) as load:
            load.wait_for_acknowledgements(100, 60.0)
            wait_for_more_history(stack)
            for executor in service.cluster.executors():
                for process in [executor, *executor.children(recursive=True)]:
                    started[process.pid] = texts_of(process)
            load.finish(90.0)
        wait_until_all_is_parquet(stack, ledger)

        assert not ledger.check_log(everything_read(stack, topic, ledger))
        assert len(service.cluster.executors()) == 2
        assert any("spark_compaction.worker_daemon" in text for text in started.values())
        secret = stack.addresses.database_url
        assert not [pid for pid, text in started.items() if secret in text or "TIDELOG_DATABASE" in text]
        service.stop()
    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)


def test_kills_at_each_point_of_a_history_job_lose_and_repeat_nothing(
    new_stack: Callable[..., Stack], stack_directory: Path
) -> None:
    """Each named point once, each part at least once; `python -m tests.faults.long_history` has all pairs."""
    [seed] = seeds(1)
    stack = new_stack(agents=2, agent_environment=AGENTS)
    with service_on(stack, stack_directory, halting=True) as service:
        for outcome in kill_while_consumers_read(service, kills_of_each_point, seed):
            print(outcome)
        service.stop()
    wait_until_doctor_finds_nothing(stack, timeout_s=180.0)
