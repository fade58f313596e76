"""Builders: a log with real segments in the bucket and real runs in the sequencer, and what must be read back
of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, SegmentToCommit
from storage.arrow.arrow_columns import RECORD_SCHEMA, encode_batch
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import Compression, with_log_append_time
from storage.identifiers import Partition, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectStore

CLUSTER = "tidelog"
LEASE_S = 60.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = "`partition`, `offset`, timestamp, timestamp_type, key, value, headers"


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A record as a producer sends it."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True)
class SentBatch:
    partition: int
    records: Sequence[Sent]
    compression: Compression = Compression.ZSTD
    append_time_ms: int | None = None


@dataclass
class Log:
    sequencer: Sequencer
    store: ObjectStore
    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    expected: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """Per topic the rows of its history: partition, offset, timestamp, timestamp type, key, value, headers.
    """

    async def topic(self, name: str, partitions: int = 1, **config: str) -> TopicId:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        topic = await self.sequencer.topics.create(name, partitions, settings)
        self.topic_ids[name] = topic.topic_id
        self.expected[name] = []
        return topic.topic_id

    async def write(self, topic: str, *batches: SentBatch) -> None:
        """One segment with these batches, uploaded, then sequenced."""
        segment_id = new_segment_id()
        key = segment_key(CLUSTER, segment_id)
        await self.sequencer.reservations.reserve({segment_id: key}, LEASE_S, "test")
        pending = [_pending(self.topic_ids[topic], batch) for batch in batches]
        sealed = seal_segment(segment_id, "test", PendingBatches.of(pending))
        await self.store.put(key, sealed.chunks)
        [committed] = await self.sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=sealed.size_bytes, batches=sealed.placed)]
        )
        assert isinstance(committed, Committed)
        for position, outcome in zip(sealed.order, committed.outcomes, strict=True):
            assert isinstance(outcome, Assigned)
            self.expected[topic] += _rows(batches[position], outcome.base_offset)


def records(count: int, start: int = 0, **fields: Any) -> tuple[Sent, ...]:
    """Plain records, numbered by `start`."""
    return tuple(
        Sent(key=f"key-{n % 7}".encode(), value=f"value-{n}".encode(), **fields)
        for n in range(start, start + count)
    )


def one(partition: int, *sent: Sent, **fields: Any) -> SentBatch:
    return SentBatch(partition=partition, records=sent, **fields)


def time_of(timestamp_ms: int) -> datetime | None:
    return None if timestamp_ms == -1 else EPOCH + timedelta(milliseconds=timestamp_ms)


def _pending(topic_id: TopicId, batch: SentBatch) -> PendingBatch:
    columns: dict[str, list[Any]] = {
        "offset": list(range(len(batch.records))),
        "timestamp": [time_of(sent.timestamp_ms) for sent in batch.records],
        "timestamp_type": [0] * len(batch.records),
        "key": [sent.key for sent in batch.records],
        "value": [sent.value for sent in batch.records],
        "headers": [[{"key": key, "value": value} for key, value in sent.headers] for sent in batch.records],
    }
    encoded = encode_batch(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA), batch.compression)
    valid = validate_produced(encoded, BatchLimits())
    if batch.append_time_ms is not None:
        valid = with_log_append_time(valid, batch.append_time_ms)
    return PendingBatch(topic_id=topic_id, partition=Partition(batch.partition), batch=valid)


def _rows(batch: SentBatch, base_offset: int) -> list[tuple[Any, ...]]:
    appended = batch.append_time_ms
    return [
        (
            batch.partition,
            base_offset + position,
            time_of(sent.timestamp_ms if appended is None else appended),
            0 if appended is None else 1,
            sent.key,
            sent.value,
            [{"key": key, "value": value} for key, value in sent.headers],
        )
        for position, sent in enumerate(batch.records)
    ]
