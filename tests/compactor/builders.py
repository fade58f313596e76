"""Builders: real segments of real batches, uploaded and committed as by an agent, and quick housekeepers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.record import MemoryRecordsBuilder

from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.commits import Committed, SegmentToCommit
from sequencer.topics.topics import Topic
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import ValidBatch
from storage.identifiers import ObjectKey, Partition, SegmentId, new_segment_id
from storage.segments.keys import checkpoints_prefix, journal_prefix, ownership_key, segment_key
from storage.segments.segment import SealedSegment, seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectInfo, ObjectNotFound, ObjectStore

CLUSTER = "tidelog"
LEASE_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed segment and its key."""

    key: ObjectKey
    sealed: SealedSegment

    @property
    def segment_id(self) -> SegmentId:
        return self.sealed.segment_id

    @property
    def to_commit(self) -> SegmentToCommit:
        return SegmentToCommit(
            segment_id=self.sealed.segment_id, size_bytes=self.sealed.size_bytes, batches=self.sealed.placed
        )


def a_batch(records: int = 1, timestamp_ms: int = 1_000) -> ValidBatch:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    for number in range(records):
        builder.append(timestamp=timestamp_ms, key=b"key", value=b"value %d" % number)
    builder.close()
    return validate_produced(builder.buffer(), BatchLimits())


def pending(topic: Topic, records: int = 1, *, partition: int = 0, timestamp_ms: int = 1_000) -> PendingBatch:
    return PendingBatch(
        topic_id=topic.topic_id, partition=Partition(partition), batch=a_batch(records, timestamp_ms)
    )


async def reserved(
    sequencer: Sequencer, batches: Sequence[PendingBatch], lease_s: float = LEASE_S
) -> Segment:
    """Sealed under a reserved id; not uploaded."""
    segment_id = new_segment_id()
    key = segment_key(CLUSTER, segment_id)
    await sequencer.reservations.reserve({segment_id: key}, lease_s, "test")
    return Segment(key=key, sealed=seal_segment(segment_id, "test", PendingBatches.of(batches)))


async def upload(store: ObjectStore, segment: Segment) -> None:
    await store.put(segment.key, segment.sealed.chunks)


async def written(sequencer: Sequencer, store: ObjectStore, *batches: PendingBatch) -> Segment:
    """Reserved, uploaded and committed."""
    segment = await reserved(sequencer, batches)
    await upload(store, segment)
    [answer] = await sequencer.commits.commit([segment.to_commit])
    assert isinstance(answer, Committed)
    return segment


async def listed(store: ObjectStore) -> list[ObjectInfo]:
    """All keys except the object that names the bucket's owner."""
    return [info async for info in store.list(f"{CLUSTER}/") if info.key != ownership_key(CLUSTER)]


async def keys_in(store: ObjectStore) -> set[str]:
    """Keys of data, without the journal's objects, which come and go with time."""
    journal = (journal_prefix(CLUSTER), checkpoints_prefix(CLUSTER))
    return {info.key for info in await listed(store) if not info.key.startswith(journal)}


async def is_there(store: ObjectStore, segment: Segment) -> bool:
    try:
        await store.head(segment.key)
    except ObjectNotFound:
        return False
    return True


def settings(**changed: Any) -> HousekeeperSettings:
    """The defaults, in small steps, so that tests take more than one."""
    return HousekeeperSettings.model_validate(
        {
            "retention_partitions_per_step": 3,
            "retention_runs_per_step": 4,
            "garbage_segments_per_step": 4,
            "restore_horizon_s": 0,
            **changed,
        }
    )
