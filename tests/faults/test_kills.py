"""Agents killed while clients work: nothing acknowledged is lost, nothing is there twice, every reader
arrives.

Each seed has a topic of its own, three idempotent producers (in zone a, in zone b, and without a zone) and
three consumers. A kill falls while the producer of the victim's zone waits for answers; sometimes the other
agent is killed before the first is back.
"""

import random
import signal
import time
from collections.abc import Callable, Mapping

import pytest

from tests.faults.conftest import LEASES, create_topic, leaders, wait_until_doctor_finds_nothing
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.support.seeds import seeds
from tidelog.devstack.stack import AgentProcess, Stack

SEEDS = 5
KILLS_PER_SEED = 4
PARTITIONS = 6
METADATA_REFRESH_S = 0.5
ANSWERS_ON_THEIR_WAY_S = 0.1
RESERVATIONS: Mapping[str, str] = {"TIDELOG_RESERVATION_LEASE_S": "15", "TIDELOG_DOOMING_INTERVAL_S": "1"}

pytestmark = pytest.mark.faults


@pytest.mark.timeout(1200)
def test_no_kill_loses_an_acknowledged_record_or_repeats_one(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(agents=2, agent_environment={**LEASES, **RESERVATIONS})
    kills = 0

    chosen = seeds(SEEDS)
    for seed in chosen:
        topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
        ledger, chance = Ledger(Contents(seed, PARTITIONS)), random.Random(seed)
        refresh = {"topic.metadata.refresh.interval.ms": int(METADATA_REFRESH_S * 1000)}
        settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, client_settings=refresh)
        with Load(settings, ledger) as load:
            for _ in range(KILLS_PER_SEED):
                kills += _kill_and_restart(stack, load, topic, chance)
            load.finish(90.0)
        counts = [ledger.acknowledged_count(producer.name) for producer in load.producers]
        print(f"seed {seed}: {kills} kills so far, acknowledged {counts}", flush=True)

    assert kills >= len(chosen) * KILLS_PER_SEED
    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)


def _kill_and_restart(stack: Stack, load: Load, topic: str, chance: random.Random) -> int:
    """Kills one agent, or both, in the midst of work and returns how many when all are back."""
    victims = chance.sample((0, 1), k=2 if chance.random() < 0.25 else 1)
    _wait_for_leaders_everywhere(stack, topic)
    load.wait_for_acknowledgements(20, 60.0)
    time.sleep(chance.uniform(0.0, 0.3))
    began_s = time.monotonic()
    _kill(stack, load, victims[0])
    for victim in victims[1:]:
        time.sleep(chance.uniform(0.0, 1.0))
        stack.kill(victim)
    for victim in victims:
        stack.spawn(victim)
    for victim in victims:
        stack.restart(victim)
    print(f"killed {victims}, back after {time.monotonic() - began_s:.1f} s", flush=True)
    return len(victims)


def _wait_for_leaders_everywhere(stack: Stack, topic: str) -> None:
    """Waits until each zone's clients are sent to its own agent, so that each agent has work in flight when
    it is killed.
    """
    until = time.monotonic() + 90.0
    while any(leaders(agent, topic) != {agent.address.bootstrap} for agent in stack.agents):
        assert time.monotonic() < until, "the zones' agents are not named as leaders"
        time.sleep(0.1)
    time.sleep(METADATA_REFRESH_S)


def _kill(stack: Stack, load: Load, victim: int) -> None:
    """Waits for a moment at which the victim's producer has acknowledged and unanswered records.

    The victim is frozen before it is killed: at a moment only looked at, all may be answered before the
    signal arrives.
    """
    (producer,) = (p for p in load.producers if p.zone == stack.agents[victim].address.zone)
    assert load.ledger.acknowledged_count(producer.name) > 0
    until = time.monotonic() + 60.0
    while not _freeze_at_work(stack.agents[victim], load.ledger, producer.name):
        assert time.monotonic() < until, "nothing is in flight"
    stack.kill(victim)


def _freeze_at_work(agent: AgentProcess, ledger: Ledger, producer: int) -> bool:
    """Whether `agent`, now frozen, holds records of `producer` that it did not answer; otherwise it runs
    on.
    """
    if not ledger.in_flight(producer):
        time.sleep(0.001)
        return False
    agent.signal(signal.SIGSTOP)
    held = ledger.in_flight(producer)
    time.sleep(ANSWERS_ON_THEIR_WAY_S)
    if held & ledger.in_flight(producer):
        return True
    agent.signal(signal.SIGCONT)
    return False
