"""Postgres fails over under load while the old primary lives on; its standby stalls; its settings are
weakened.

Replication is synchronous, so the claims are those of any other fault: every acknowledged record is read back
once, at its offset, in order; no consumer sees a record twice or a watermark that goes back; the doctor finds
nothing.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import pytest

from tests.faults.conftest import LEASES, create_topic, wait_until_doctor_finds_nothing
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.support.replication import Replication
from tests.support.seeds import seeds
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack

PARTITIONS = 4
FAILOVERS = 3
STALLED_S = 6.0
"""Twice as long as a lease."""
RECHECK_S = 2.0
WATCHFUL = {
    **LEASES,
    "TIDELOG_DATABASE_RECHECK_S": str(RECHECK_S),
    "TIDELOG_DATABASE_DURABILITY_CHECK_S": "0.5",
}
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

pytestmark = pytest.mark.faults


@contextmanager
def under_load(stack: Stack, seed: int) -> Iterator[Load]:
    """Clients at work before, during and after; at the end every record is compared."""
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seed, PARTITIONS))
    settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=200.0)
    with Load(settings, ledger) as load:
        load.wait_for_acknowledgements(50, 60.0)
        yield load
        load.wait_for_acknowledgements(50, 60.0)
        load.finish(90.0)


def logs(stack: Stack) -> str:
    return "".join(agent.log_file.read_text(errors="replace") for agent in stack.agents)


def no_watermark_went_back(stack: Stack) -> None:
    assert "high watermark went back" not in logs(stack)


def why_not_ready(stack: Stack) -> list[str]:
    answers = [httpx.get(f"{agent.address.http_url}/ready", timeout=20) for agent in stack.agents]
    return [answer.text for answer in answers if answer.status_code != 200]


def two_say(stack: Stack, reason: str) -> bool:
    return sum(reason in why for why in why_not_ready(stack)) == 2


def test_failovers_beside_an_old_primary_that_lives_on_lose_and_repeat_nothing(
    new_stack: Callable[..., Stack], new_replication: Callable[..., Replication]
) -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    pair = new_replication(synchronous=True)
    stack = new_stack(agents=2, agent_environment=WATCHFUL, database_url=pair.address.url)
    stalls_s = []
    with under_load(stack, seed) as load:
        for _ in range(FAILOVERS):
            load.wait_for_acknowledgements(chance.randrange(1, 300), 60.0)
            began_s = time.monotonic()
            old = pair.fail_over()
            load.wait_for_acknowledgements(50, 60.0)
            stalls_s.append(time.monotonic() - began_s)
            assert old.postgres.is_running()
            pair.renew_standby()

    print(f"failovers: acknowledged again after {', '.join(f'{stall_s:.1f}' for stall_s in stalls_s)} s")
    no_watermark_went_back(stack)
    assert all(agent.exit_status is None for agent in stack.agents)
    wait_until_doctor_finds_nothing(stack, 60.0)


def test_a_standby_that_stalls_cancelled_waits_and_weak_settings_lose_and_repeat_nothing(
    new_stack: Callable[..., Stack], new_replication: Callable[..., Replication]
) -> None:
    [seed] = seeds(1)
    pair = new_replication(synchronous=True)
    environment = {**WATCHFUL, "TIDELOG_STANDBYS_EXPECTED": "true"}
    stack = new_stack(agents=2, agent_environment=environment, database_url=pair.address.url)
    with under_load(stack, seed) as load:
        pair.standby.freeze("walreceiver")
        wait_until(lambda: pair.primary.ask(WAITING) != [])
        time.sleep(STALLED_S)
        assert why_not_ready(stack) == [], "leases wait for no standby"
        assert "could not be renewed" not in logs(stack)
        cancelled = pair.primary.ask(f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting")
        time.sleep(1.0)
        pair.standby.thaw()
        load.wait_for_acknowledgements(200, 60.0)
        print(f"a standby stalled for {STALLED_S} s; {len(cancelled)} waits for it were cancelled")

        for weak, strong, reason in (
            ({"synchronous_commit": "off"}, {"synchronous_commit": "on"}, "synchronous_commit is off"),
            (
                {"synchronous_standby_names": ""},
                {"synchronous_standby_names": pair.standby.name},
                "synchronous_standby_names is empty",
            ),
        ):
            pair.primary.configure(**weak)
            wait_until(partial(two_say, stack, reason))
            [(committed,)] = pair.primary.ask("SELECT max(committed_at) FROM segments")
            time.sleep(1.0)
            assert pair.primary.ask("SELECT max(committed_at) FROM segments") == [(committed,)], (
                "nothing is committed"
            )
            pair.primary.configure(**strong)
            began_s = time.monotonic()
            load.wait_for_acknowledgements(200, 60.0)
            wait_until(lambda: why_not_ready(stack) == [])
            print(f"{reason}: acknowledged again {time.monotonic() - began_s:.1f} s after it was mended")

    no_watermark_went_back(stack)
    wait_until_doctor_finds_nothing(stack, 60.0)
