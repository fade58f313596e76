"""The right answers of the sequencer, as a small pure model: one batch at a time, one operation after
another, without SQL, chains or shortcuts.

It shares only the types of questions and answers with the code under test.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sequencer.commits.commits import (
    Assigned,
    BatchOutcome,
    Committed,
    Duplicate,
    FencedEpoch,
    Outcomes,
    OutOfOrderSequence,
    SegmentRefused,
    SegmentToCommit,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
)
from sequencer.commits.coordinates import PartitionBounds, PartitionCoordinates, PartitionKey, RunCoordinate
from storage.identifiers import NO_PRODUCER_ID, ObjectKey, Offset, ProducerId, SegmentId
from storage.segments.segment_batches import PlacedBatch

SEQUENCES = 2**31
REMEMBERED_BATCHES = 10
HALF_THE_SEQUENCES = 2**30
NEVER_FORGOTTEN = ProducerId(2**53)
"""From this id on: given out in the year 2248, after every topic was created and after all that expiry
removed.
"""


@dataclass(slots=True)
class ModelProducer:
    epoch: int
    accepted: list[tuple[int, int, int, int]]
    """Base sequence, last sequence, base offset and maximum timestamp, oldest first."""


@dataclass(slots=True)
class ModelPartition:
    live: bool = True
    log_start: int = 0
    end: int = 0
    max_timestamp_ms: int = -1
    epoch: int = 0
    runs: list[RunCoordinate] = field(default_factory=list)
    producers: dict[ProducerId, ModelProducer] = field(default_factory=dict)


@dataclass(slots=True)
class ModelSegment:
    object_key: ObjectKey
    state: str = "reserved"
    answer: Committed | None = None


@dataclass(slots=True)
class ModelSequencer:
    partitions: dict[PartitionKey, ModelPartition] = field(default_factory=dict)
    segments: dict[SegmentId, ModelSegment] = field(default_factory=dict)

    def commit(self, segments: Sequence[SegmentToCommit]) -> tuple[Committed | SegmentRefused, ...]:
        answers = tuple(self._commit_one(segment) for segment in segments)
        keys = [(batch.topic_id, batch.partition) for segment in segments for batch in segment.batches]
        all_exist = all(key in self.partitions for key in keys)
        return tuple(
            replace(answer, log_starts=self._log_starts(segment) if all_exist else None)
            if isinstance(answer, Committed)
            else answer
            for segment, answer in zip(segments, answers, strict=True)
        )

    def _log_starts(self, segment: SegmentToCommit) -> NDArray[np.int64]:
        keys = [(batch.topic_id, batch.partition) for batch in segment.batches]
        return np.array([self.partitions[key].log_start for key in keys], np.int64)

    def doom(self, segment_ids: Sequence[SegmentId]) -> None:
        for segment_id in segment_ids:
            assert self.segments[segment_id].state == "reserved", "only a reservation can be doomed"
            self.segments[segment_id].state = "doomed"

    def delete_topic(self, keys: Sequence[PartitionKey]) -> None:
        for key in keys:
            self.partitions[key].live = False

    def move_log_start(self, key: PartitionKey, before: int) -> None:
        """Records below `before` go, and with them the runs that hold nothing else."""
        partition = self.partitions[key]
        if before > partition.log_start:
            partition.log_start = before
            partition.epoch += 1
            partition.runs = [run for run in partition.runs if run.last_offset >= before]

    def read(self, key: PartitionKey, from_offset: int, max_runs: int) -> PartitionCoordinates | None:
        partition = self.partitions[key]
        if not partition.live:
            return None
        wanted = [run for run in partition.runs if run.last_offset >= max(from_offset, partition.log_start)]
        return PartitionCoordinates(
            topic_id=key[0],
            partition=key[1],
            log_start_offset=Offset(partition.log_start),
            local_start_offset=Offset(0),
            high_watermark=Offset(partition.end),
            last_stable_offset=Offset(partition.end),
            coordinate_epoch=partition.epoch,
            runs=tuple(wanted[:max_runs]),
        )

    def bounds(self, key: PartitionKey) -> PartitionBounds | None:
        partition = self.partitions[key]
        if not partition.live:
            return None
        return PartitionBounds(
            log_start_offset=Offset(partition.log_start),
            local_start_offset=Offset(0),
            high_watermark=Offset(partition.end),
            last_stable_offset=Offset(partition.end),
            max_timestamp_ms=partition.max_timestamp_ms,
        )

    def first_run_at(self, key: PartitionKey, timestamp_ms: int, from_offset: int) -> RunCoordinate | None:
        partition = self.partitions[key]
        for run in partition.runs if partition.live else ():
            if run.max_timestamp_ms >= timestamp_ms and run.last_offset >= max(
                from_offset, partition.log_start
            ):
                return run
        return None

    def _commit_one(self, segment: SegmentToCommit) -> Committed | SegmentRefused:
        stored = self.segments.get(segment.segment_id)
        if stored is None:
            return SegmentRefused(reason="missing")
        if stored.state == "doomed":
            return SegmentRefused(reason="doomed")
        if stored.answer is None:
            outcomes = tuple(self._judge(batch) for batch in segment.batches)
            runs = self._append(segment, stored.object_key, outcomes)
            stored.answer = Committed(found=Outcomes.of(outcomes), runs=runs, is_news=True, log_starts=None)
            stored.state = "committed"
        return stored.answer

    def _judge(self, batch: PlacedBatch) -> BatchOutcome:
        partition = self.partitions.get((batch.topic_id, batch.partition))
        if partition is None or not partition.live:
            return UnknownPartition()
        if batch.producer_id != NO_PRODUCER_ID:
            refusal = _judge_sequence(batch, partition)
            if refusal is not None:
                return refusal
            _remember(batch, partition)
        base = Offset(partition.end)
        partition.end += batch.record_count
        partition.max_timestamp_ms = max(partition.max_timestamp_ms, batch.max_timestamp_ms)
        return Assigned(base_offset=base)

    def _append(
        self, segment: SegmentToCommit, object_key: ObjectKey, outcomes: Sequence[BatchOutcome]
    ) -> tuple[RunCoordinate, ...]:
        """Neighbouring assigned batches of a partition are one run."""
        made: list[RunCoordinate] = []
        for batch, outcome in zip(segment.batches, outcomes, strict=True):
            if not isinstance(outcome, Assigned):
                continue
            run = RunCoordinate(
                topic_id=batch.topic_id,
                partition=batch.partition,
                base_offset=outcome.base_offset,
                last_offset=Offset(outcome.base_offset + batch.record_count - 1),
                object_key=object_key,
                object_size_bytes=segment.size_bytes,
                position=batch.position,
                length=batch.length,
                min_timestamp_ms=batch.min_timestamp_ms,
                max_timestamp_ms=batch.max_timestamp_ms,
            )
            if made and _adjacent(made[-1], run):
                run = _joined(made.pop(), run)
            made.append(run)
        for run in made:
            self.partitions[run.topic_id, run.partition].runs.append(run)
        return tuple(made)


def _judge_sequence(batch: PlacedBatch, partition: ModelPartition) -> BatchOutcome | None:
    """None: accepted."""
    known = partition.producers.get(batch.producer_id)
    if known is None and batch.base_sequence != 0:
        if batch.producer_id >= NEVER_FORGOTTEN:
            return OutOfOrderSequence()
        return UnknownProducer(log_start_offset=Offset(partition.log_start))
    if known is None:
        return None
    if batch.producer_epoch < known.epoch:
        return FencedEpoch()
    if batch.producer_epoch > known.epoch:
        return None if batch.base_sequence == 0 else OutOfOrderSequence()
    last = (batch.base_sequence + batch.record_count - 1) % SEQUENCES
    for base_sequence, last_sequence, base_offset, max_timestamp_ms in known.accepted:
        if (base_sequence, last_sequence) == (batch.base_sequence, last):
            return Duplicate(base_offset=Offset(base_offset), max_timestamp_ms=max_timestamp_ms)
    expected = (known.accepted[-1][1] + 1) % SEQUENCES
    if batch.record_count <= (expected - batch.base_sequence) % SEQUENCES <= HALF_THE_SEQUENCES:
        return WrittenBefore()
    return None if batch.base_sequence == expected else OutOfOrderSequence()


def _remember(batch: PlacedBatch, partition: ModelPartition) -> None:
    known = partition.producers.get(batch.producer_id)
    if known is None or known.epoch != batch.producer_epoch:
        known = partition.producers[batch.producer_id] = ModelProducer(batch.producer_epoch, [])
    last = (batch.base_sequence + batch.record_count - 1) % SEQUENCES
    accepted = (batch.base_sequence, last, partition.end, batch.max_timestamp_ms)
    known.accepted = [*known.accepted, accepted][-REMEMBERED_BATCHES:]


def _adjacent(run: RunCoordinate, after: RunCoordinate) -> bool:
    same_partition = (run.topic_id, run.partition) == (after.topic_id, after.partition)
    return same_partition and run.position + run.length == after.position


def _joined(run: RunCoordinate, after: RunCoordinate) -> RunCoordinate:
    return RunCoordinate(
        topic_id=run.topic_id,
        partition=run.partition,
        base_offset=run.base_offset,
        last_offset=after.last_offset,
        object_key=run.object_key,
        object_size_bytes=run.object_size_bytes,
        position=run.position,
        length=run.length + after.length,
        min_timestamp_ms=min(run.min_timestamp_ms, after.min_timestamp_ms),
        max_timestamp_ms=max(run.max_timestamp_ms, after.max_timestamp_ms),
    )
