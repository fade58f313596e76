"""Manual replica assignments, by Kafka's rules."""

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused
from agent.kafka.configs.replica_assignments import check_new_partitions, check_new_topic

AGENTS = {1, 2, 3}


@pytest.mark.parametrize("assigned", [[(0, [1])], [(1, [1, 2]), (0, [3, 1])], [(0, [3]), (1, [3]), (2, [1])]])
def test_an_assignment_that_kafka_accepts_is_accepted(assigned: Sequence[tuple[int, Sequence[int]]]) -> None:
    check_new_topic(assigned, AGENTS)


@pytest.mark.parametrize(
    ("assigned", "reason"),
    [
        ([(1, [1])], "consecutive"),
        ([(0, [1]), (0, [2])], "consecutive"),
        ([(0, [])], "empty replica list"),
        ([(0, [1, 1])], "more than once"),
        ([(0, [4])], "broker 4"),
        ([(0, [1, 2]), (1, [3])], "not consistent"),
    ],
)
def test_an_assignment_that_kafka_refuses_is_refused_with_its_reason(
    assigned: Sequence[tuple[int, Sequence[int]]], reason: str
) -> None:
    with pytest.raises(AdministrationRefused, match=reason) as refused:
        check_new_topic(assigned, AGENTS)

    assert refused.value.code is ErrorCode.invalid_replica_assignment


def test_as_many_are_assigned_as_partitions_are_added() -> None:
    check_new_partitions([[1], [2]], 2, AGENTS)
    with pytest.raises(AdministrationRefused, match="Attempted to add 3"):
        check_new_partitions([[1], [2]], 3, AGENTS)
