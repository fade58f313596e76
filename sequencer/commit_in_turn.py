"""What becomes of a commit in which nothing is left to judge: every batch is accepted, every producer goes on.

Pure. Promises that what is worked out here, relative to where each partition stands, is what `commit_segments` would
make of the same batches if it accepted them all. `sequence_segments` then only checks, adds and writes.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sequencer.array_parameters import Int4Column, Int8Column
from storage.identifiers import NO_PRODUCER_ID
from storage.segment_batches import (
    BASE_SEQUENCE,
    LENGTH,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORDS,
    first_of_each,
)

SEQUENCE_MASK: Final = 2**31 - 1
"""Sequences are 31 bits: 2147483647 is followed by 0."""

REMEMBERED_BATCHES: Final = 10
"""Of a producer in a partition (see `producer_state`)."""

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedBatches:
    """All batches of a commit by partition, then segment, then place in it; of each the number of its partition and of
    its segment, both from 1. `columns` are those of `segment_batches`.
    """

    columns: Longs
    parts: Longs
    segments: Longs

    def without_batches(self) -> "OrderedBatches":
        return OrderedBatches(columns=self.columns[:, :0], parts=self.parts[:0], segments=self.segments[:0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Producers:
    """The batches that have a producer, by partition and producer, in order within them."""

    batches: Longs
    is_same: NDArray[np.bool_]
    """Of each but the first: it is of the same partition and producer as the one before,"""
    follows: NDArray[np.bool_]
    """and it is what that producer sends next."""


def producers_of(ordered: OrderedBatches) -> Producers:
    columns = ordered.columns
    batches = np.flatnonzero(columns[PRODUCER_ID] != NO_PRODUCER_ID)
    batches = batches[np.lexsort((columns[PRODUCER_ID, batches], ordered.parts[batches]))]
    of, parts = np.take(columns, batches, axis=1), ordered.parts[batches]
    is_same = (parts[1:] == parts[:-1]) & (of[PRODUCER_ID, 1:] == of[PRODUCER_ID, :-1])
    next_sequences = (of[BASE_SEQUENCE] + of[RECORDS]) & SEQUENCE_MASK
    goes_on = (of[BASE_SEQUENCE, 1:] == next_sequences[:-1]) & (of[PRODUCER_EPOCH, 1:] == of[PRODUCER_EPOCH, :-1])
    return Producers(batches=batches, is_same=is_same, follows=is_same & goes_on)


def commit_in_turn(ordered: OrderedBatches, producers: Producers, segment_count: int) -> dict[str, Any]:
    """There are no runs if the batches cannot all be accepted, or if a segment has none."""
    if not np.array_equal(producers.is_same, producers.follows) or len(np.unique(ordered.segments)) < segment_count:
        ordered = ordered.without_batches()
        producers = producers_of(ordered)
    return {**_runs(ordered), **_turns(ordered, producers)}


def _turns(ordered: OrderedBatches, producers: Producers) -> dict[str, Any]:
    """All batches of a producer in a partition, in the order of the first of each."""
    batches = producers.batches
    starts = first_of_each(producers.is_same, len(batches))
    ends = np.append(starts[1:], len(batches)) if len(starts) else starts
    order = np.argsort(batches[starts])
    starts, ends = starts[order], ends[order]
    heads = batches[starts]
    recent = np.minimum(ends - starts, REMEMBERED_BATCHES)
    recent_to = np.cumsum(recent)
    recent_places = np.arange(recent.sum()) + np.repeat(ends - recent_to, recent)
    return {
        "turn_heads": Int4Column(heads + 1),
        "turn_producers": Int8Column(ordered.columns[PRODUCER_ID, heads]),
        "turn_epochs": Int4Column(ordered.columns[PRODUCER_EPOCH, heads]),
        "turn_recent_from": Int4Column(recent_to - recent + 1),
        "turn_recent_to": Int4Column(recent_to),
        "recent_batches": Int4Column(batches[recent_places] + 1),
    }


def _runs(ordered: OrderedBatches) -> dict[str, Any]:
    """Of each batch the records before it in its partition; of each partition records, bytes and greatest timestamp;
    the runs.
    """
    columns, parts, segments = ordered.columns, ordered.parts, ordered.segments
    count = len(parts)
    is_same_part = parts[1:] == parts[:-1]
    part_starts = first_of_each(is_same_part, count)
    is_adjacent = (segments[1:] == segments[:-1]) & (
        columns[POSITION, 1:] == columns[POSITION, :-1] + columns[LENGTH, :-1]
    )
    run_starts = first_of_each(is_same_part & is_adjacent, count)
    run_lasts = np.append(run_starts[1:], count) if count else run_starts
    before = np.cumsum(columns[RECORDS]) - columns[RECORDS]
    part_sizes = np.diff(part_starts, append=count)
    run_max_timestamps = _most(columns[MAX_TIMESTAMP], run_starts)
    return {
        "part_records": Int8Column(_sums(columns[RECORDS], part_starts)),
        "part_lengths": Int8Column(_sums(columns[LENGTH], part_starts)),
        "part_max_timestamps": Int8Column(_most(columns[MAX_TIMESTAMP], part_starts)),
        "batch_starts": Int8Column(before - np.repeat(before[part_starts], part_sizes) if count else before),
        "run_first_batches": Int4Column(run_starts + 1),
        "run_last_batches": Int4Column(run_lasts),
        "run_min_timestamps": Int8Column(-_most(-columns[MIN_TIMESTAMP], run_starts)),
        "run_max_timestamps": Int8Column(run_max_timestamps),
        "run_running_max_timestamps": Int8Column(_running_max(run_max_timestamps, parts[run_starts])),
    }


def _sums(numbers: Longs, starts: Longs) -> Longs:
    return np.add.reduceat(numbers, starts) if len(starts) else starts


def _most(numbers: Longs, starts: Longs) -> Longs:
    return np.maximum.reduceat(numbers, starts) if len(starts) else starts


def _running_max(numbers: Longs, parts: Longs) -> Longs:
    """Of each number the greatest so far in its partition; partitions ascend."""
    values, ranks = np.unique(numbers, return_inverse=True)
    return values[np.maximum.accumulate(parts * len(values) + ranks) - parts * len(values)]
