"""The commit's two pure ends: segments into the arrays that `sequence_segments` takes, and its outcomes into runs.

Promises that batches are handed over by partition, in the segments' order within it; that a chain holds one
producer's batches of one partition and segment whose sequences follow one another (modulo 2^31), so that SQL judges
chains, not batches; and that the runs made here from a segment's outcome are those that SQL wrote. What follows if
nothing has to be judged is worked out in `commit_in_turn`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequencer.array_parameters import Int4Array, Int8Array, UuidArray
from sequencer.commit_in_turn import SEQUENCE_MASK, commit_in_turn
from sequencer.coordinates import RunCoordinate
from sequencer.outcomes import Assigned, BatchOutcome
from storage.identifiers import NO_PRODUCER_ID, ObjectKey, Offset, ProducerId, SegmentId
from storage.segment import PlacedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCommit:
    """An uploaded segment; its batches as `seal_segment` placed them."""

    segment_id: SegmentId
    size_bytes: int
    batches: tuple[PlacedBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    parameters: Mapping[str, Any]
    order: tuple[tuple[int, int], ...]
    """For each batch handed over: its segment and its place within it."""


@dataclass(slots=True)
class _Chain:
    """The chain that a producer's next batch may continue."""

    number: int
    members: int
    segment: int
    producer_epoch: int
    next_sequence: int

    def takes(self, batch: PlacedBatch, segment: int) -> bool:
        return (self.segment, self.producer_epoch, self.next_sequence) == (
            segment,
            batch.producer_epoch,
            batch.base_sequence,
        )


def commit_request(segments: Sequence[SegmentToCommit]) -> CommitRequest:
    """Raises ValueError for a segment that is named twice: it would be applied twice in one statement."""
    if len({segment.segment_id for segment in segments}) < len(segments):
        raise ValueError("a commit names a segment twice")
    order = [(s, i) for s, segment in enumerate(segments) for i in range(len(segment.batches))]
    order.sort(key=lambda place: _partition_of(segments[place[0]].batches[place[1]]))
    batches = [segments[s].batches[i] for s, i in order]
    first_of_part: dict[tuple[int, int], PlacedBatch] = {}
    batch_parts = []
    for batch in batches:
        first_of_part.setdefault(_partition_of(batch), batch)
        batch_parts.append(len(first_of_part))
    batch_segments = [s + 1 for s, _ in order]
    parameters = {
        "segment_ids": UuidArray(segment.segment_id for segment in segments),
        "segment_sizes": Int8Array(segment.size_bytes for segment in segments),
        "topic_ids": UuidArray(batch.topic_id for batch in first_of_part.values()),
        "partition_numbers": Int4Array(batch.partition for batch in first_of_part.values()),
        "batch_parts": Int4Array(batch_parts),
        "batch_segments": Int4Array(batch_segments),
        "batch_positions": Int8Array(batch.position for batch in batches),
        "batch_lengths": Int4Array(batch.length for batch in batches),
        "batch_records": Int4Array(batch.record_count for batch in batches),
        "batch_min_timestamps": Int8Array(batch.min_timestamp_ms for batch in batches),
        "batch_max_timestamps": Int8Array(batch.max_timestamp_ms for batch in batches),
        "batch_sequences": Int4Array(batch.base_sequence for batch in batches),
        **_chains(batches, batch_parts, batch_segments),
        **commit_in_turn(batches, batch_parts, batch_segments, len(segments)),
    }
    return CommitRequest(parameters=parameters, order=tuple(order))


def _chains(batches: Sequence[PlacedBatch], parts: Sequence[int], segments: Sequence[int]) -> dict[str, Any]:
    """Batches without a producer are in chain 0."""
    open_chains: dict[tuple[int, ProducerId], _Chain] = {}
    heads: list[tuple[int, ProducerId, int]] = []
    batch_chains, batch_members = [], []
    for batch, part, segment in zip(batches, parts, segments, strict=True):
        if batch.producer_id == NO_PRODUCER_ID:
            batch_chains.append(0)
            batch_members.append(0)
            continue
        chain = open_chains.get((part, batch.producer_id))
        if chain is None or not chain.takes(batch, segment):
            heads.append((part, batch.producer_id, batch.producer_epoch))
            chain = _Chain(len(heads), 0, segment, batch.producer_epoch, batch.base_sequence)
            open_chains[part, batch.producer_id] = chain
        chain.members += 1
        chain.next_sequence = (batch.base_sequence + batch.record_count) & SEQUENCE_MASK
        batch_chains.append(chain.number)
        batch_members.append(chain.members)
    return {
        "chain_parts": Int4Array(part for part, _, _ in heads),
        "chain_producers": Int8Array(producer_id for _, producer_id, _ in heads),
        "chain_epochs": Int4Array(epoch for _, _, epoch in heads),
        "batch_chains": Int4Array(batch_chains),
        "batch_members": Int4Array(batch_members),
    }


def committed_runs(
    segment: SegmentToCommit, object_key: ObjectKey, outcomes: Sequence[BatchOutcome]
) -> tuple[RunCoordinate, ...]:
    """Where the assigned batches are: byte-adjacent ones of a partition are one run, as SQL writes it."""
    runs: list[list[tuple[PlacedBatch, Offset]]] = []
    last: PlacedBatch | None = None
    for batch, outcome in zip(segment.batches, outcomes, strict=True):
        if not isinstance(outcome, Assigned):
            continue
        if last is None or last.position + last.length != batch.position or _partition_of(last) != _partition_of(batch):
            runs.append([])
        runs[-1].append((batch, outcome.base_offset))
        last = batch
    return tuple([_run(members, segment, object_key) for members in runs])


def _run(
    members: Sequence[tuple[PlacedBatch, Offset]], segment: SegmentToCommit, object_key: ObjectKey
) -> RunCoordinate:
    first, base_offset = members[0]
    last, last_base_offset = members[-1]
    min_timestamp_ms, max_timestamp_ms = first.min_timestamp_ms, first.max_timestamp_ms
    if last is not first:
        min_timestamp_ms = min([batch.min_timestamp_ms for batch, _ in members])
        max_timestamp_ms = max([batch.max_timestamp_ms for batch, _ in members])
    return RunCoordinate(
        topic_id=first.topic_id,
        partition=first.partition,
        base_offset=base_offset,
        last_offset=Offset(last_base_offset + last.record_count - 1),
        object_key=object_key,
        object_size_bytes=segment.size_bytes,
        position=first.position,
        length=last.position + last.length - first.position,
        min_timestamp_ms=min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def _partition_of(batch: PlacedBatch) -> tuple[int, int]:
    """Sorts as the primary key: Postgres compares uuids as bytes, which is how their integers compare."""
    return batch.topic_id.int, batch.partition
