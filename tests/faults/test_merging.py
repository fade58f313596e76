"""Agents killed and frozen while they merge, under load: no record is lost, moved or there twice for any
reader.

Everything about merging is made small and quick, so that in each second several merges are at some step of
theirs.
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Mapping

import pytest

from sequencer.client import Sequencer
from sequencer.housekeeping.merge_values import TierTotals
from sequencer.settings import SequencerSettings
from tests.faults.conftest import LEASES, create_topic, wait_until_doctor_finds_nothing
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Consumer, Load, LoadSettings
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PARTITIONS = 6
HARMS = 4
LEASE_S = 2.0

MERGES: Mapping[str, str] = {
    "TIDELOG_MERGE_FAN_IN": "4",
    "TIDELOG_MERGE_OBJECT_BYTES": "65536",
    "TIDELOG_MERGE_RUN_BYTES": "32768",
    "TIDELOG_MERGE_SETTLE_S": "0.5",
    "TIDELOG_MERGE_TARGET_S": "0.01",
    "TIDELOG_MERGE_INTERVAL_S": "0.1",
    "TIDELOG_OBSERVATION_INTERVAL_S": "0.1",
    "TIDELOG_MERGE_LEASE_S": str(LEASE_S),
    "TIDELOG_MERGE_RUNS_PER_PUBLISH": "4",
}
QUICK_GARBAGE: Mapping[str, str] = {
    "TIDELOG_RESERVATION_LEASE_S": "8",
    "TIDELOG_DOOMING_INTERVAL_S": "0.5",
    "TIDELOG_GARBAGE_INTERVAL_S": "0.5",
    "TIDELOG_GARBAGE_GRACE_S": "10.5",
    "TIDELOG_RESTORE_HORIZON_S": "0",
    "TIDELOG_OWNERSHIP_RATCHET_S": "5",
    "TIDELOG_COORDINATE_MAX_AGE_S": "2",
    "TIDELOG_LATE_WRITE_WINDOW_S": "150",
    "TIDELOG_JOB_LEASE_S": "3",
    "TIDELOG_JOB_RUN_S": "1",
}

pytestmark = pytest.mark.faults


@pytest.mark.timeout(600)
def test_agents_killed_and_frozen_while_they_merge_lose_and_repeat_nothing(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack(agents=2, agent_environment={**LEASES, **MERGES, **QUICK_GARBAGE})
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    [seed] = seeds(1)
    chance = random.Random(seed)
    settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=300.0)

    ledger = Ledger(Contents(seed, PARTITIONS))
    with Load(settings, ledger) as load:
        for harm in range(HARMS):
            load.wait_for_acknowledgements(20, 60.0)
            time.sleep(chance.uniform(0.0, 2.0))
            _harm(stack, chance.randrange(2), freeze=harm == 1)
        load.wait_for_acknowledgements(20, 60.0)
        totals = _totals_once_merged(stack)
        load.finish(90.0)

    from_the_start = Consumer(0, settings, ledger)
    from_the_start.start()
    from_the_start.finish(ledger.ends())
    from_the_start.join(time.monotonic() + 60.0)
    assert ledger.check_log(from_the_start.log) == []

    print("\n".join(str(tier) for tier in totals))
    assert all(tier.done.runs_damaged == 0 for tier in asyncio.run(_totals(stack)))
    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)


def _harm(stack: Stack, victim: int, *, freeze: bool) -> None:
    """Kills an agent and starts it again, or stops its process for longer than its claims last."""
    if freeze:
        stack.agents[victim].signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        stack.agents[victim].signal(signal.SIGCONT)
    else:
        stack.kill(victim)
        stack.restart(victim)


def _totals_once_merged(stack: Stack) -> tuple[TierTotals, ...]:
    """When there were more merges than harms, some of them of objects that were merged before."""
    until = time.monotonic() + 90.0
    while True:
        totals = asyncio.run(_totals(stack))
        if sum(tier.merges for tier in totals if tier.tier > 0) > HARMS and {
            tier.tier for tier in totals
        } >= {1, 2}:
            return totals
        assert time.monotonic() < until, totals
        time.sleep(0.5)


async def _totals(stack: Stack) -> tuple[TierTotals, ...]:
    sequencer = await Sequencer.open(stack.postgres.url(), SequencerSettings())
    try:
        return await sequencer.merges.totals()
    finally:
        await sequencer.close()
