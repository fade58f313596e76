"""What recovery decides, for any input."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.plan import (
    Hole,
    HolePart,
    JournalPosition,
    ProvenBatch,
    ProvenRun,
    Side,
    Source,
    chosen_batches,
    cut,
    newer_side,
    parts_of,
)
from storage.batches.record_batch import empty_batch, read_header
from storage.identifiers import BytePosition, Offset, Partition, SegmentId, TopicId

pytestmark = pytest.mark.superuser

TOPIC, PARTITION = TopicId(UUID(int=1)), Partition(0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_HEADER = read_header(empty_batch(1, -1))


def a_hole(first: int, last: int) -> Hole:
    return Hole(
        topic_id=TOPIC,
        partition=PARTITION,
        base_offset=Offset(first),
        last_offset=Offset(last),
        runs=1,
        length=100,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
        running_max_timestamp_ms=3,
    )


def a_run(first: int, last: int, number: int = 1) -> ProvenRun:
    return ProvenRun(
        topic_id=TOPIC,
        partition=PARTITION,
        base_offset=Offset(first),
        last_offset=Offset(last),
        segment_id=SegmentId(UUID(int=number)),
        position=BytePosition(50),
        length=100,
        crc32c=0,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
    )


RANGES = st.tuples(st.integers(0, 40), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(hole=RANGES, proven=st.lists(RANGES, max_size=6))
def test_the_parts_of_a_hole_tile_it_and_leave_out_nothing_that_is_proven(
    hole: tuple[int, int], proven: list[tuple[int, int]]
) -> None:
    runs = [a_run(first, last, number) for number, (first, last) in enumerate(proven)]

    parts = list(parts_of(a_hole(*hole), runs))

    covered = [offset for part in parts for offset in range(part.base_offset, part.last_offset + 1)]
    assert covered == list(range(hole[0], hole[1] + 1))
    for part in parts:
        for offset in range(part.base_offset, part.last_offset + 1):
            holders = [run for run in runs if run.base_offset <= offset <= run.last_offset]
            assert (part.run in holders) if part.run is not None else not holders


@given(
    deltas=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    most_bytes=st.integers(1, 400),
    data=st.data(),
)
def test_a_part_is_cut_between_batches_into_runs_that_tile_its_offsets_and_its_bytes(
    deltas: list[int], most_bytes: int, data: st.DataObject
) -> None:
    bases = [sum(deltas[:number]) for number in range(len(deltas) + 1)]
    batches = [
        ProvenBatch(base_offset=Offset(base), start=60 * number, end=60 * number + 60, header=_HEADER)
        for number, base in enumerate(bases[:-1])
    ]
    run = a_run(0, bases[-1] - 1)
    first = data.draw(st.integers(0, len(deltas) - 1))
    end = data.draw(st.integers(first + 1, len(deltas)))
    part = HolePart(base_offset=Offset(bases[first]), last_offset=Offset(bases[end] - 1), run=run)

    chosen = chosen_batches(part, batches)
    assert chosen is not None
    runs = list(cut(a_hole(0, bases[-1]), part, chosen, most_bytes))

    assert runs[0].base_offset == part.base_offset
    assert runs[-1].last_offset == part.last_offset
    assert runs[0].position == run.position + 60 * first
    assert sum(one.length for one in runs) == 60 * (end - first)
    for before, after in pairwise(runs):
        assert after.base_offset == before.last_offset + 1
        assert after.position == before.position + before.length
    assert all(one.length <= max(60, most_bytes) for one in runs)


def test_a_part_that_ends_within_a_batch_is_not_taken() -> None:
    batches = [ProvenBatch(base_offset=Offset(0), start=0, end=60, header=_HEADER)]

    part = HolePart(base_offset=Offset(0), last_offset=Offset(3), run=a_run(0, 9))

    assert chosen_batches(part, batches) is None


def a_side(epoch: int, number: int, minutes: int) -> Side:
    return Side(
        position=JournalPosition(epoch=epoch, number=number), known_at=NOON + timedelta(minutes=minutes)
    )


@pytest.mark.parametrize(
    ("database", "bucket", "expected"),
    [
        (a_side(1, 5, 0), None, Source.DATABASE),
        (a_side(0, 0, 0), a_side(1, 1, -9), Source.JOURNAL),
        (a_side(1, 5, 0), a_side(1, 5, 0), Source.DATABASE),
        (a_side(1, 5, 0), a_side(1, 9, 1), Source.JOURNAL),
        (a_side(1, 5, 2), a_side(1, 6, 1), Source.DATABASE),  # it came not to note its last entry
        (a_side(1, 9, 9), a_side(2, 1, 0), Source.JOURNAL),  # another owner went on
        (a_side(3, 1, 0), a_side(2, 9, 5), Source.DATABASE),
    ],
)
def test_the_newer_side_is_the_log(database: Side, bucket: Side | None, expected: Source) -> None:
    assert newer_side(database, bucket) is expected
