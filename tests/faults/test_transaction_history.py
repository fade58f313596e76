"""The checker finds what is wrong, and nothing else."""

import pytest

from tests.faults.transaction_history import (
    End,
    Place,
    Transaction,
    faults,
    faults_of_processing,
    processed,
)

pytestmark = pytest.mark.faults

BOTH = frozenset({0, 1})
GOOD: dict[Place, bytes] = {(0, 0): b"a:0", (1, 0): b"a:0", (0, 5): b"a:2", (1, 7): b"a:2"}
DONE = (
    Transaction(name=b"a:0", partitions=BOTH, end=End.COMMITTED),
    Transaction(name=b"a:1", partitions=BOTH, end=End.ABORTED),
    Transaction(name=b"a:2", partitions=BOTH, end=End.UNKNOWN),
    Transaction(name=b"a:3", partitions=BOTH, end=End.UNKNOWN),
)


def test_a_right_history_has_no_faults() -> None:
    read = [((0, 0), b"a:0"), ((1, 0), b"a:0"), ((0, 5), b"a:2")]

    assert faults(DONE, GOOD, [read]) == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({(0, 1): b"a:1"}, "was aborted and is seen"),
        ({(0, 1): b"a:0"}, "is there twice"),
        ({(0, 8): b"a:3"}, "is seen in"),
        ({(0, 9): b"a:0"}, "out of order"),
        ({(1, 0): b"a:9"}, "was never written"),
        ({(2, 0): b"a:0"}, "in partitions that it did not write"),
    ],
)
def test_each_anomaly_is_found(changed: dict[Place, bytes], fault: str) -> None:
    assert any(fault in found for found in faults(DONE, GOOD | changed))


def test_a_committed_transaction_that_is_partly_missing_is_found() -> None:
    final = {place: name for place, name in GOOD.items() if place != (1, 0)}

    assert any("was committed and is not in [1]" in found for found in faults(DONE, final))


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        ([((0, 5), b"a:2")], "missed"),
        ([((0, 0), b"a:0"), ((0, 1), b"a:1")], "not there in the end"),
        ([((0, 0), b"a:0"), ((0, 0), b"a:0")], "went back"),
    ],
)
def test_a_reader_that_sees_anything_else_is_found(read: list[tuple[Place, bytes]], fault: str) -> None:
    assert any(fault in found for found in faults(DONE, GOOD, [read]))


PROCESSED: dict[Place, bytes] = {
    (0, 0): processed((0, 0), b"a:0"),
    (0, 1): processed((0, 5), b"a:2"),
    (1, 2): processed((1, 0), b"a:0"),
    (1, 3): processed((1, 7), b"a:2"),
}


def test_records_that_were_processed_once_and_in_order_have_no_faults() -> None:
    assert faults_of_processing(GOOD, {"left": PROCESSED, "right": PROCESSED}) == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({(0, 7): PROCESSED[0, 0]}, "doubled or made up in right"),
        ({(0, 0): PROCESSED[0, 1], (0, 1): PROCESSED[0, 0]}, "partition 0 of right is out of order"),
        ({(0, 0): PROCESSED[0, 1]}, "is lost in right"),
    ],
)
def test_each_anomaly_of_processing_is_found(changed: dict[Place, bytes], fault: str) -> None:
    found = faults_of_processing(GOOD, {"left": PROCESSED, "right": PROCESSED | changed})

    assert any(fault in said for said in found)
