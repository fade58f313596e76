"""What becomes of a commit in which nothing is left to judge: every batch is accepted, every producer goes on.

Pure. Promises that what is worked out here, relative to where each partition stands, is what `commit_segments` would
make of the same batches if it accepted them all. `sequence_segments` then only checks, adds and writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sequencer.array_parameters import Int4Array, Int8Array
from storage.identifiers import NO_PRODUCER_ID, ProducerId
from storage.segment import PlacedBatch

SEQUENCE_MASK = 2**31 - 1
"""Sequences are 31 bits: 2147483647 is followed by 0."""

REMEMBERED_BATCHES = 10
"""Of a producer in a partition (see `producer_state`)."""


@dataclass(slots=True)
class _Run:
    first: int
    last: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    running_max_timestamp_ms: int


@dataclass(slots=True)
class _Turn:
    """All batches of a producer in a partition, as long as each follows the one before."""

    head: int
    producer_id: ProducerId
    producer_epoch: int
    next_sequence: int
    batches: list[int] = field(default_factory=list)


def commit_in_turn(
    batches: Sequence[PlacedBatch], parts: Sequence[int], segments: Sequence[int], segment_count: int
) -> dict[str, Any]:
    """`batches` by partition, then segment, then place in it; of each the number of its partition and of its segment,
    both from 1. There are no runs if they cannot all be accepted, or if a segment has none.
    """
    turns = _turns(batches, parts) if len(set(segments)) == segment_count else None
    if turns is None:
        batches, turns = (), []
    starts, records, lengths, max_timestamps, runs = _runs(batches, parts, segments)
    recent = [turn.batches[-REMEMBERED_BATCHES:] for turn in turns]
    recent_to = _running_total([len(numbers) for numbers in recent])
    return {
        "part_records": Int8Array(records),
        "part_lengths": Int8Array(lengths),
        "part_max_timestamps": Int8Array(max_timestamps),
        "batch_starts": Int8Array(starts),
        "run_first_batches": Int4Array([run.first for run in runs]),
        "run_last_batches": Int4Array([run.last for run in runs]),
        "run_min_timestamps": Int8Array([run.min_timestamp_ms for run in runs]),
        "run_max_timestamps": Int8Array([run.max_timestamp_ms for run in runs]),
        "run_running_max_timestamps": Int8Array([run.running_max_timestamp_ms for run in runs]),
        "turn_heads": Int4Array([turn.head for turn in turns]),
        "turn_producers": Int8Array([turn.producer_id for turn in turns]),
        "turn_epochs": Int4Array([turn.producer_epoch for turn in turns]),
        "turn_recent_from": Int4Array([to - len(numbers) + 1 for to, numbers in zip(recent_to, recent, strict=True)]),
        "turn_recent_to": Int4Array(recent_to),
        "recent_batches": Int4Array([number for numbers in recent for number in numbers]),
    }


def _turns(batches: Sequence[PlacedBatch], parts: Sequence[int]) -> list[_Turn] | None:
    """None: a producer's batches do not follow one another."""
    turns: dict[tuple[int, ProducerId], _Turn] = {}
    for number, (batch, part) in enumerate(zip(batches, parts, strict=True), 1):
        producer_id, sequence = batch.producer_id, batch.base_sequence
        if producer_id == NO_PRODUCER_ID:
            continue
        turn = turns.get((part, producer_id))
        if turn is None:
            turn = turns[part, producer_id] = _Turn(number, producer_id, batch.producer_epoch, sequence)
        elif turn.next_sequence != sequence or turn.producer_epoch != batch.producer_epoch:
            return None
        turn.batches.append(number)
        turn.next_sequence = (sequence + batch.record_count) & SEQUENCE_MASK
    return list(turns.values())


def _runs(
    batches: Sequence[PlacedBatch], parts: Sequence[int], segments: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int], list[_Run]]:
    """Of each batch the records before it in its partition; of each partition records, bytes and greatest timestamp;
    the runs.
    """
    starts: list[int] = []
    records: list[int] = []
    lengths: list[int] = []
    max_timestamps: list[int] = []
    runs: list[_Run] = []
    last_part, last_segment, end = 0, 0, -1
    for number, (batch, part, segment) in enumerate(zip(batches, parts, segments, strict=False), 1):
        position, length, max_ms = batch.position, batch.length, batch.max_timestamp_ms
        if part != last_part:
            starts.append(0)
            records.append(batch.record_count)
            lengths.append(length)
            max_timestamps.append(max_ms)
        else:
            starts.append(records[-1])
            records[-1] += batch.record_count
            lengths[-1] += length
            if max_ms > max_timestamps[-1]:
                max_timestamps[-1] = max_ms
        if part != last_part or segment != last_segment or position != end:
            runs.append(_Run(number, number, batch.min_timestamp_ms, max_ms, max_timestamps[-1]))
        else:
            run = runs[-1]
            run.last = number
            run.min_timestamp_ms = min(run.min_timestamp_ms, batch.min_timestamp_ms)
            run.max_timestamp_ms = max(run.max_timestamp_ms, max_ms)
            run.running_max_timestamp_ms = max_timestamps[-1]
        last_part, last_segment, end = part, segment, position + length
    return starts, records, lengths, max_timestamps, runs


def _running_total(numbers: Sequence[int]) -> list[int]:
    total, totals = 0, []
    for number in numbers:
        total += number
        totals.append(total)
    return totals
