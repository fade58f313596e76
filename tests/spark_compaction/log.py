"""Builders: a log with real segments in the bucket and real runs in the sequencer, and what must be read back
of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from compactor.history_log_jobs import LocalRetentionJob
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, SegmentToCommit
from sequencer.commits.producers import ProducerIdentity
from sequencer.commits.transactions import EndCause, Ended, ProducerOfTransactions
from storage.arrow.arrow_columns import RECORD_SCHEMA, encode_batch
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    Compression,
    read_header,
    with_log_append_time,
    write_header,
)
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import Partition, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectStore

RETENTION = HousekeeperSettings(retention_runs_per_step=64, retention_partitions_at_once=4)
CLUSTER = "tidelog"
LEASE_S = 60.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRANSACTIONAL = 0x10
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


@dataclass(kw_only=True)
class Transaction:
    """A transactional producer and what it wrote since its last end."""

    producer: ProducerOfTransactions
    sequences: dict[int, int] = field(default_factory=dict)
    written: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Topics and rows."""


@dataclass
class Log:
    sequencer: Sequencer
    store: ObjectStore
    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    expected: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """Per topic the rows of its history: partition, offset, timestamp, timestamp type, key, value, headers.
    """
    aborted: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """Per topic the rows of aborted transactions."""
    sealing: dict[str, TopicKey] = field(default_factory=dict)
    """Per topic the key that seals what is written."""

    async def topic(self, name: str, partitions: int = 1, **config: str) -> TopicId:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        topic = await self.sequencer.topics.create(name, partitions, settings)
        self.topic_ids[name] = topic.topic_id
        self.expected[name] = []
        self.aborted[name] = []
        return topic.topic_id

    async def write(self, topic: str, *batches: SentBatch) -> None:
        """One segment with these batches, uploaded, then sequenced."""
        pending = [_pending(self.topic_ids[topic], batch) for batch in batches]
        if topic in self.sealing:
            pending = [sealed(each, self.sealing[topic]) for each in pending]
        self.expected[topic] += await self._commit(pending, batches)

    async def transaction(self, transactional_id: str) -> Transaction:
        identity = await self.sequencer.transactions.initialize(transactional_id, 600_000)
        assert isinstance(identity, ProducerIdentity)
        return Transaction(
            producer=ProducerOfTransactions(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
            )
        )

    async def write_in(self, transaction: Transaction, topic: str, *batches: SentBatch) -> None:
        """As `write`. The rows are expected once the transaction commits."""
        topic_id = self.topic_ids[topic]
        parts = [(topic_id, Partition(batch.partition)) for batch in batches]
        await self.sequencer.transactions.add(transaction.producer, parts)
        pending = [_in_transaction(_pending(topic_id, batch), transaction) for batch in batches]
        if topic in self.sealing:
            pending = [sealed(each, self.sealing[topic]) for each in pending]
        transaction.written += [(topic, row) for row in await self._commit(pending, batches)]

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        ended = await self.sequencer.transactions.end(
            transaction.producer, is_commit=commit, cause=EndCause.CLIENT
        )
        assert isinstance(ended, Ended)
        for topic, row in transaction.written:
            (self.expected if commit else self.aborted)[topic].append(row)
        transaction.written.clear()

    async def _commit(
        self, pending: Sequence[PendingBatch], batches: Sequence[SentBatch]
    ) -> list[tuple[Any, ...]]:
        segment_id = new_segment_id()
        key = segment_key(CLUSTER, segment_id)
        await self.sequencer.reservations.reserve({segment_id: key}, LEASE_S, "test")
        sealed = seal_segment(segment_id, "test", PendingBatches.of(pending))
        await self.store.put(key, sealed.chunks)
        [committed] = await self.sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=sealed.size_bytes, batches=sealed.placed)]
        )
        assert isinstance(committed, Committed)
        rows = []
        for position, outcome in zip(sealed.order, committed.outcomes, strict=True):
            assert isinstance(outcome, Assigned)
            rows += _rows(batches[position], outcome.base_offset)
        return rows


def records(count: int, start: int = 0, **fields: Any) -> tuple[Sent, ...]:
    """Plain records, numbered by `start`."""
    return tuple(
        Sent(key=f"key-{n % 7}".encode(), value=f"value-{n}".encode(), **fields)
        for n in range(start, start + count)
    )


def one(partition: int, *sent: Sent, **fields: Any) -> SentBatch:
    return SentBatch(partition=partition, records=sent, **fields)


async def drop_local(sequencer: Sequencer) -> int:
    """Drops the raw runs that have given way to Parquet. Returns how many."""
    job, dropped, progress = LocalRetentionJob(sequencer, RETENTION), 0, None
    while True:
        step = await job.step(progress)
        dropped, progress = dropped + step.done["runs"], step.progress
        if not step.more:
            return dropped


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


def sealed(pending: PendingBatch, key: TopicKey) -> PendingBatch:
    data = memoryview(key.seal(pending.batch.data, pending.partition))
    return replace(pending, batch=replace(pending.batch, data=data, header=read_header(data)))


def _in_transaction(pending: PendingBatch, transaction: Transaction) -> PendingBatch:
    valid, producer = pending.batch, transaction.producer
    sequence = transaction.sequences.get(pending.partition, 0)
    transaction.sequences[pending.partition] = sequence + valid.header.record_count
    header = replace(
        valid.header,
        attributes=valid.header.attributes | _TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
    )
    records = bytes(valid.data)[HEADER_BYTES:]
    header = replace(header, crc=crc32c((write_header(header) + records)[CRC_START:]))
    return replace(pending, batch=validate_produced(write_header(header) + records, BatchLimits()))


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
