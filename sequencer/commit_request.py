"""The commit's two pure ends: segments into the arrays that `sequence_segments` takes, and its outcomes into runs.

Promises that batches are handed over by partition, in the segments' order within it; that a chain holds one
producer's batches of one partition and segment whose sequences follow one another (modulo 2^31), so that SQL judges
chains, not batches; and that the runs made here from a segment's outcome are those that SQL wrote. What follows if
nothing has to be judged is worked out in `commit_in_turn`. All of it is columns of numbers: a commit of a thousand
batches makes objects of runs alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sequencer.array_parameters import Int4Column, Int8Array, Int8Column, UuidArray
from sequencer.commit_in_turn import Longs, OrderedBatches, Producers, commit_in_turn, producers_of
from sequencer.coordinates import RunCoordinate
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId
from storage.segment_batches import (
    BASE_SEQUENCE,
    LENGTH,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    PARTITION,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORDS,
    TOPIC,
    PlacedBatches,
    first_of_each,
    is_same_partition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCommit:
    """An uploaded segment; its batches as `seal_segment` placed them."""

    segment_id: SegmentId
    size_bytes: int
    batches: PlacedBatches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommitRequest:
    parameters: Mapping[str, Any]
    places: Sequence[Longs]
    """For each segment: which of its batches they are that the numbers of its outcome speak of."""


def commit_request(segments: Sequence[SegmentToCommit]) -> CommitRequest:
    """Raises ValueError for a segment that is named twice: it would be applied twice in one statement."""
    if len({segment.segment_id for segment in segments}) < len(segments):
        raise ValueError("a commit names a segment twice")
    topic_ids, columns = _together([segment.batches for segment in segments])
    sizes = [len(segment.batches) for segment in segments]
    order = np.lexsort((columns[PARTITION], columns[TOPIC]))
    columns = np.take(columns, order, axis=1)
    part_starts = first_of_each(is_same_partition(columns), len(order))
    batch_segments = np.repeat(np.arange(1, len(segments) + 1), sizes)[order]
    ordered = OrderedBatches(
        columns=columns,
        parts=np.repeat(np.arange(1, len(part_starts) + 1), np.diff(part_starts, append=len(order))),
        segments=batch_segments,
    )
    producers = producers_of(ordered)
    parameters = {
        "segment_ids": UuidArray(segment.segment_id for segment in segments),
        "segment_sizes": Int8Array(segment.size_bytes for segment in segments),
        "topic_ids": UuidArray([topic_ids[topic] for topic in columns[TOPIC, part_starts].tolist()]),
        "partition_numbers": Int4Column(columns[PARTITION, part_starts]),
        "batch_parts": Int4Column(ordered.parts),
        "batch_segments": Int4Column(batch_segments),
        "batch_positions": Int8Column(columns[POSITION]),
        "batch_lengths": Int4Column(columns[LENGTH]),
        "batch_records": Int4Column(columns[RECORDS]),
        "batch_min_timestamps": Int8Column(columns[MIN_TIMESTAMP]),
        "batch_max_timestamps": Int8Column(columns[MAX_TIMESTAMP]),
        "batch_sequences": Int4Column(columns[BASE_SEQUENCE]),
        **_chains(ordered, producers),
        **commit_in_turn(ordered, producers, len(segments)),
    }
    firsts = np.cumsum([0, *sizes])
    places = [order[batch_segments == number + 1] - firsts[number] for number in range(len(segments))]
    return CommitRequest(parameters=parameters, places=places)


def _together(batches: Sequence[PlacedBatches]) -> tuple[Sequence[TopicId], Longs]:
    """The batches of all segments, one after another, their topics numbered in the order of the primary key: Postgres
    compares uuids as bytes, which is how they compare here."""
    if len(batches) == 1:
        return batches[0].topic_ids, batches[0].columns
    topic_ids = sorted({topic_id for each in batches for topic_id in each.topic_ids})
    numbers = {topic_id: number for number, topic_id in enumerate(topic_ids)}
    columns = np.concatenate([each.columns for each in batches], axis=1)
    columns[TOPIC] = np.concatenate(
        [
            np.array([numbers[topic_id] for topic_id in each.topic_ids], np.int64)[each.columns[TOPIC]]
            for each in batches
        ]
    )
    return topic_ids, columns


def _chains(ordered: OrderedBatches, producers: Producers) -> dict[str, Any]:
    """Chains are numbered in the order of their heads. Batches without a producer are in chain 0."""
    batches, columns = producers.batches, ordered.columns
    segments = ordered.segments[batches]
    starts = first_of_each(producers.follows & (segments[1:] == segments[:-1]), len(batches))
    sizes = np.diff(starts, append=len(batches))
    order = np.argsort(batches[starts])
    heads = batches[starts[order]]
    numbers = np.empty(len(starts), np.int64)
    numbers[order] = np.arange(1, len(starts) + 1)
    batch_chains, batch_members = np.zeros((2, len(ordered.parts)), np.int64)
    batch_chains[batches] = np.repeat(numbers, sizes)
    batch_members[batches] = np.arange(1, len(batches) + 1) - np.repeat(starts, sizes)
    return {
        "chain_parts": Int4Column(ordered.parts[heads]),
        "chain_producers": Int8Column(columns[PRODUCER_ID, heads]),
        "chain_epochs": Int4Column(columns[PRODUCER_EPOCH, heads]),
        "batch_chains": Int4Column(batch_chains),
        "batch_members": Int4Column(batch_members),
    }


def committed_runs(
    segment: SegmentToCommit, object_key: ObjectKey, assigned: Longs, base_offsets: Longs
) -> tuple[RunCoordinate, ...]:
    """Where the assigned batches are, with the base offset of each: byte-adjacent ones of a partition are one run, as
    SQL writes it."""
    columns = np.take(segment.batches.columns, assigned, axis=1)
    is_adjacent = columns[POSITION, 1:] == columns[POSITION, :-1] + columns[LENGTH, :-1]
    starts = first_of_each(is_same_partition(columns) & is_adjacent, len(assigned))
    if not len(starts):
        return ()
    lasts = np.append(starts[1:], len(assigned)) - 1
    runs = zip(
        columns[TOPIC, starts].tolist(),
        columns[PARTITION, starts].tolist(),
        base_offsets[starts].tolist(),
        (base_offsets[lasts] + columns[RECORDS, lasts] - 1).tolist(),
        columns[POSITION, starts].tolist(),
        np.add.reduceat(columns[LENGTH], starts).tolist(),
        np.minimum.reduceat(columns[MIN_TIMESTAMP], starts).tolist(),
        np.maximum.reduceat(columns[MAX_TIMESTAMP], starts).tolist(),
        strict=True,
    )
    return tuple(
        [
            RunCoordinate(
                topic_id=segment.batches.topic_ids[topic],
                partition=Partition(partition),
                base_offset=Offset(base_offset),
                last_offset=Offset(last_offset),
                object_key=object_key,
                object_size_bytes=segment.size_bytes,
                position=BytePosition(position),
                length=length,
                min_timestamp_ms=min_timestamp_ms,
                max_timestamp_ms=max_timestamp_ms,
            )
            for topic, partition, base_offset, last_offset, position, length, min_timestamp_ms, max_timestamp_ms in runs
        ]
    )
