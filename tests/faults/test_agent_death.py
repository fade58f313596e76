"""The death of one of three agents costs clients a moment, killed or frozen, long before its lease ends.

Clients of librdkafka measure their stalls (`tests/support/stalls.py`), and the test prints the figures. At
the end no record is lost or repeated, and `tidelog doctor` finds nothing.
"""

from collections.abc import Callable

import pytest

from tests.faults.conftest import wait_until_doctor_finds_nothing
from tests.support.server_death import Result, measure, of_stack, p50, p99
from tidelog.devstack.stack import Stack

ROUNDS = {"SIGKILL": 3, "SIGSTOP": 2}
LEASE_S = 60.0
"""Too long for any round to wait for it and pass."""

pytestmark = pytest.mark.faults


@pytest.mark.timeout(600)
def test_clients_of_a_dead_agent_go_on_before_its_lease_ends(new_stack: Callable[..., Stack]) -> None:
    environment = {"TIDELOG_MEMBERSHIP_LEASE_S": str(LEASE_S), "TIDELOG_RESERVATION_LEASE_S": "15"}
    stack = new_stack(
        agents=3, zones=("a",), agent_environment={**environment, "TIDELOG_DOOMING_INTERVAL_S": "1"}
    )

    for how, rounds in ROUNDS.items():
        result = measure(of_stack(stack), how, rounds, lambda line: print(line, flush=True))

        _print(result)
        assert result.faults == []
        assert max(max(stalls_s) for stalls_s in result.stalls_s.values()) < LEASE_S

    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)


def _print(result: Result) -> None:
    for role, stalls_s in result.stalls_s.items():
        print(
            f"{result.how}, {role}: p50 {p50(stalls_s):.2f} s, p99 {p99(stalls_s):.2f} s of {len(stalls_s)}",
            flush=True,
        )
