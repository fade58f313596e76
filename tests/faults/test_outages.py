"""Postgres or the object store away for a while, under load: nothing acknowledged is lost, and clients go
on.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.conftest import LEASES, create_topic
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PARTITIONS = 4
AWAY_S = 4.0

pytestmark = pytest.mark.faults


@contextmanager
def under_load(stack: Stack) -> Iterator[Load]:
    """Clients at work before, during and after; at the end every record is compared."""
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
    settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=200.0)
    with Load(settings, ledger) as load:
        load.wait_for_acknowledgements(50, 60.0)
        yield load
        load.wait_for_acknowledgements(50, 60.0)
        load.finish(90.0)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_postgres_away_and_back_loses_nothing(crash: bool, new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(agents=2, agent_environment=LEASES)
    with under_load(stack):
        stack.postgres.kill() if crash else stack.postgres.stop()
        time.sleep(AWAY_S)
        stack.postgres.start()

    assert all(agent.exit_status is None for agent in stack.agents), (
        "an agent ended because its database was away"
    )


def test_the_object_store_away_and_back_loses_nothing(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(agents=2, agent_environment=LEASES)
    with under_load(stack):
        stack.stop_store()
        time.sleep(AWAY_S)
        stack.start_store()

    assert all(agent.exit_status is None for agent in stack.agents), (
        "an agent ended because its store was away"
    )
