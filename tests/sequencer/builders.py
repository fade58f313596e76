"""Builders for tests: batches, segments, reserved segments."""

from collections.abc import Sequence
from dataclasses import dataclass

from sequencer.client import Sequencer
from sequencer.commits.commits import Committed, SegmentRefused, SegmentToCommit
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from storage.identifiers import (
    NO_PRODUCER_ID,
    BytePosition,
    ObjectKey,
    Partition,
    ProducerId,
    SegmentId,
    TopicId,
    new_segment_id,
)
from storage.segments.segment_batches import BatchTransaction, PlacedBatch, PlacedBatches

HEADER_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ABatch:
    """A batch before it has a place in a segment."""

    topic_id: TopicId
    partition: Partition
    records: int = 1
    timestamp_ms: int = 1_000
    producer_id: ProducerId = NO_PRODUCER_ID
    epoch: int = 0
    sequence: int = -1
    length: int = 100
    transaction: BatchTransaction = BatchTransaction.NONE


def a_segment(batches: Sequence[ABatch], segment_id: SegmentId | None = None) -> SegmentToCommit:
    """The batches laid out as a sealed segment has them: by partition, back to back."""
    placed = []
    position = HEADER_BYTES
    for batch in sorted(batches, key=lambda batch: (batch.topic_id.int, batch.partition)):
        placed.append(
            PlacedBatch(
                topic_id=batch.topic_id,
                partition=batch.partition,
                position=BytePosition(position),
                length=batch.length,
                record_count=batch.records,
                min_timestamp_ms=batch.timestamp_ms,
                max_timestamp_ms=batch.timestamp_ms,
                producer_id=batch.producer_id,
                producer_epoch=batch.epoch if batch.producer_id != NO_PRODUCER_ID else -1,
                base_sequence=batch.sequence,
                transaction=batch.transaction,
            )
        )
        position += batch.length
    return SegmentToCommit(
        segment_id=segment_id or new_segment_id(),
        size_bytes=position + HEADER_BYTES,
        batches=PlacedBatches.of(placed),
    )


def a_key(segment_id: SegmentId) -> ObjectKey:
    return ObjectKey(f"tidelog/segments/{segment_id}")


async def reserved(sequencer: Sequencer, batches: Sequence[ABatch], lease_s: float = 60.0) -> SegmentToCommit:
    """A segment whose id is reserved, as before every upload."""
    segment = a_segment(batches)
    await sequencer.reservations.reserve({segment.segment_id: a_key(segment.segment_id)}, lease_s, "test")
    return segment


async def committed(sequencer: Sequencer, batches: Sequence[ABatch]) -> Committed:
    """One segment of these batches, reserved and committed."""
    return accepted((await sequencer.commits.commit([await reserved(sequencer, batches)]))[0])


def accepted(answer: Committed | SegmentRefused) -> Committed:
    assert isinstance(answer, Committed), answer
    return answer


def an_acl(name: str) -> Acl:
    """Allows User:alice to read a topic."""
    return Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.LITERAL,
        name=name,
        principal="User:alice",
        host="*",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )
