"""The commit's parameters, computed by columns, equal those computed batch by batch."""

from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.commits.commits import CommitRequest, SegmentToCommit, commit_request
from sequencer.commits.outcomes import Assigned, Duplicate, Outcomes, WrittenBefore, decode_outcomes
from sequencer.database.array_parameters import Int4Encoded, encoded_ints, encoded_longs, encoded_uuids
from storage.identifiers import NO_PRODUCER_ID, Offset, Partition, ProducerId, TopicId
from storage.segments.segment_batches import PlacedBatch
from tests.sequencer.builders import ABatch, a_segment

SEQUENCES = 2**31

batches = st.builds(
    ABatch,
    topic_id=st.sampled_from([TopicId(UUID(int=1)), TopicId(UUID(int=1 << 100))]),
    partition=st.integers(0, 2).map(Partition),
    records=st.integers(1, 3),
    timestamp_ms=st.integers(-1, 5),
    producer_id=st.sampled_from([NO_PRODUCER_ID, ProducerId(1), ProducerId(2)]),
    epoch=st.sampled_from([0, 0, 0, 1]),
    sequence=st.just(0),
)


@st.composite
def commits(draw: st.DrawFn) -> list[SegmentToCommit]:
    """Segments whose producers mostly continue their sequences, also past the last sequence."""
    segments = []
    nexts: dict[Any, int] = {}
    for wanted in draw(st.lists(st.lists(batches, max_size=14), min_size=1, max_size=3)):
        made = []
        for one in wanted:
            place = (one.topic_id, one.partition, one.producer_id)
            sequence = nexts.get(place, draw(st.sampled_from([0, SEQUENCES - 2])))
            sequence = draw(st.sampled_from([sequence] * 9 + [7]))
            nexts[place] = (sequence + one.records) % SEQUENCES
            has_producer = one.producer_id != NO_PRODUCER_ID
            made.append(
                ABatch(
                    topic_id=one.topic_id,
                    partition=one.partition,
                    records=one.records,
                    timestamp_ms=one.timestamp_ms,
                    producer_id=one.producer_id,
                    epoch=one.epoch,
                    sequence=sequence if has_producer else -1,
                    length=draw(st.sampled_from([70, 100])),
                )
            )
        segments.append(a_segment(made))
    return segments


def numbers_of(request: CommitRequest, name: str) -> list[int]:
    """Of an array in Postgres' binary format, which is checked to its last byte."""
    encoded = request.parameters[name]
    is_int4 = isinstance(encoded, Int4Encoded)
    numbers = np.frombuffer(encoded[20:], ">i4,>i4" if is_int4 else ">i4,>i8")["f1"].tolist()
    assert encoded == (encoded_ints if is_int4 else encoded_longs)(numbers)
    return [int(number) for number in numbers]


def rows_of(request: CommitRequest, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(numbers_of(request, name) for name in names), strict=True))


def in_order(segments: list[SegmentToCommit]) -> list[tuple[int, PlacedBatch]]:
    placed = [(number, batch) for number, segment in enumerate(segments, 1) for batch in segment.batches]
    return sorted(placed, key=lambda one: (one[1].topic_id.int, one[1].partition))


def follows(before: PlacedBatch, batch: PlacedBatch) -> bool:
    next_sequence = (before.base_sequence + before.record_count) % SEQUENCES
    return (batch.base_sequence, batch.producer_epoch) == (next_sequence, before.producer_epoch)


def by_producer(segments: list[SegmentToCommit]) -> dict[Any, list[tuple[int, int, PlacedBatch]]]:
    """Of each producer in a partition its batches in order: number, segment, batch."""
    found: dict[Any, list[tuple[int, int, PlacedBatch]]] = {}
    for number, (segment, batch) in enumerate(in_order(segments), 1):
        if batch.producer_id != NO_PRODUCER_ID:
            found.setdefault((batch.topic_id, batch.partition, batch.producer_id), []).append(
                (number, segment, batch)
            )
    return found


@given(segments=commits())
def test_what_is_told_of_a_batch_is_what_it_is(segments: list[SegmentToCommit]) -> None:
    request = commit_request(segments)
    placed = in_order(segments)
    parts = list(dict.fromkeys((batch.topic_id, batch.partition) for _, batch in placed))

    assert request.parameters["segment_ids"] == encoded_uuids([segment.segment_id for segment in segments])
    assert request.parameters["segment_sizes"] == encoded_longs([segment.size_bytes for segment in segments])
    assert request.parameters["topic_ids"] == encoded_uuids([topic_id for topic_id, _ in parts])
    assert numbers_of(request, "partition_numbers") == [partition for _, partition in parts]
    names = (
        "parts",
        "segments",
        "positions",
        "lengths",
        "records",
        "min_timestamps",
        "max_timestamps",
        "sequences",
    )
    assert rows_of(request, *(f"batch_{name}" for name in names)) == [
        (
            parts.index((batch.topic_id, batch.partition)) + 1,
            segment,
            batch.position,
            batch.length,
            batch.record_count,
            batch.min_timestamp_ms,
            batch.max_timestamp_ms,
            batch.base_sequence,
        )
        for segment, batch in placed
    ]
    for number, (segment, places) in enumerate(zip(segments, request.places, strict=True), 1):
        assert [segment.batches[place] for place in places.tolist()] == [
            batch for of, batch in placed if of == number
        ]


def test_a_number_that_does_not_fit_is_refused() -> None:
    topic_id = TopicId(UUID(int=1))
    for partition in (2**31, -(2**31) - 1):
        with pytest.raises(OverflowError):
            commit_request([a_segment([ABatch(topic_id=topic_id, partition=Partition(partition))])])


@given(segments=commits())
def test_chains_are_what_a_producer_sent_in_a_row_in_one_segment(segments: list[SegmentToCommit]) -> None:
    request = commit_request(segments)
    chains: list[list[int]] = []
    for sent in by_producer(segments).values():
        for index, (number, segment, batch) in enumerate(sent):
            if index and sent[index - 1][1] == segment and follows(sent[index - 1][2], batch):
                chains[-1].append(number)
            else:
                chains.append([number])
    chains.sort()
    expected = {
        member: (number, place)
        for number, chain in enumerate(chains, 1)
        for place, member in enumerate(chain, 1)
    }

    found = rows_of(request, "batch_chains", "batch_members")

    assert found == [expected.get(number, (0, 0)) for number in range(1, len(found) + 1)]
    heads = [in_order(segments)[chain[0] - 1][1] for chain in chains]
    assert [(producer, epoch) for producer, epoch in rows_of(request, "chain_producers", "chain_epochs")] == [
        (head.producer_id, head.producer_epoch) for head in heads
    ]


@given(segments=commits())
def test_a_commit_in_turn_is_offered_unless_a_producer_or_a_segment_stands_against_it(
    segments: list[SegmentToCommit],
) -> None:
    request = commit_request(segments)
    sent = by_producer(segments)
    in_turn = all(len(segment.batches) for segment in segments) and all(
        follows(before, batch) for each in sent.values() for (*_, before), (*_, batch) in pairwise(each)
    )
    turns = sorted([number for number, *_ in each] for each in sent.values()) if in_turn else []

    assert bool(numbers_of(request, "run_first_batches")) == in_turn
    recent = numbers_of(request, "recent_batches")
    assert [
        (head, recent[start - 1 : end])
        for head, start, end in rows_of(request, "turn_heads", "turn_recent_from", "turn_recent_to")
    ] == [(turn[0], turn[-10:]) for turn in turns]


@given(segments=commits())
def test_runs_and_sums_are_those_of_the_batches_in_order(segments: list[SegmentToCommit]) -> None:
    request = commit_request(segments)
    if not numbers_of(request, "run_first_batches"):
        return
    starts: list[int] = []
    sums: dict[tuple[TopicId, Partition], tuple[int, int, int]] = {}
    runs: list[Any] = []
    last: tuple[int, PlacedBatch] | None = None
    for number, (segment, batch) in enumerate(in_order(segments), 1):
        part = (batch.topic_id, batch.partition)
        records, length, latest = sums.get(part, (0, 0, -1))
        starts.append(records)
        latest = max(latest, batch.max_timestamp_ms)
        sums[part] = (records + batch.record_count, length + batch.length, latest)
        if (
            last is not None
            and last[0] == segment
            and (last[1].topic_id, last[1].partition) == part
            and last[1].position + last[1].length == batch.position
        ):
            first, _, least, most, _ = runs.pop()
            runs.append(
                (first, number, min(least, batch.min_timestamp_ms), max(most, batch.max_timestamp_ms), latest)
            )
        else:
            runs.append((number, number, batch.min_timestamp_ms, batch.max_timestamp_ms, latest))
        last = (segment, batch)

    assert numbers_of(request, "batch_starts") == starts
    assert rows_of(request, "part_records", "part_lengths", "part_max_timestamps") == list(sums.values())
    names = ("first_batches", "last_batches", "min_timestamps", "max_timestamps", "running_max_timestamps")
    assert rows_of(request, *(f"run_{name}" for name in names)) == runs


def test_outcomes_are_told_by_the_batches_of_the_segment() -> None:
    stored = [8 * 5, 1 + 8 * 3, 6, 1 + 8 * 4, 77, 78]

    found = decode_outcomes(stored, 4)

    first = Assigned(base_offset=Offset(5))
    again = [
        Duplicate(base_offset=Offset(offset), max_timestamp_ms=time_ms)
        for offset, time_ms in ((3, 77), (4, 78))
    ]
    assert found.each == (first, again[0], WrittenBefore(), again[1])
    assert found.placed(np.array([2, 0, 3, 1])) == Outcomes.of([again[0], again[1], first, WrittenBefore()])
    assert found.assigned.tolist() == [0]
