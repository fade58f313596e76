"""Builders for storage tests. `a_batch` writes record batches byte by byte, without the code under test, so
that it can write wrong ones.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from crc32c import crc32c

from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.identifiers import Partition, SegmentId, TopicId
from storage.segments.segment import SealedSegment, seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches

LIMITS = BatchLimits()
ROOMY = BatchLimits(max_message_bytes=64 << 20)
SEGMENT_ID = SegmentId(UUID("018bcfe5-6800-7abc-8def-0123456789ab"))
ORDERS = TopicId(UUID(int=1))
PAYMENTS = TopicId(UUID(int=2))


@dataclass(frozen=True, kw_only=True)
class ARecord:
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp_delta: int = 0
    offset_delta: int | None = None
    encoded: bytes | None = field(default=None, repr=False)


def varint(value: int) -> bytes:
    """Zigzag, as in Kafka's protocol guide."""
    rest = (value << 1) ^ (value >> 63)
    rest &= (1 << 64) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes([rest])


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_bytes(record: ARecord, index: int) -> bytes:
    if record.encoded is not None:
        return record.encoded
    delta = index if record.offset_delta is None else record.offset_delta
    body = (
        b"\0" + varint(record.timestamp_delta) + varint(delta) + nullable(record.key) + nullable(record.value)
    )
    body += varint(len(record.headers)) + b"".join(
        nullable(key) + nullable(value) for key, value in record.headers
    )
    return varint(len(body)) + body


def a_batch(
    *records: ARecord,
    attributes: int = 0,
    base_offset: int = 0,
    base_timestamp_ms: int = 1_700_000_000_000,
    max_timestamp_ms: int | None = None,
    last_offset_delta: int | None = None,
    record_count: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    magic: int = 2,
    body: bytes | None = None,
) -> bytes:
    """Returns one batch. Fields that are not given are those of a correct client. `body` replaces the
    records' bytes.
    """
    rows = records or (ARecord(),)
    content = (
        b"".join(record_bytes(record, index) for index, record in enumerate(rows)) if body is None else body
    )
    latest = base_timestamp_ms + max(record.timestamp_delta for record in rows)
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        len(rows) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        latest if max_timestamp_ms is None else max_timestamp_ms,
        *producer,
        len(rows) if record_count is None else record_count,
    )
    return batch_of(checked + content, base_offset, magic)


def batch_of(checked: bytes, base_offset: int = 0, magic: int = 2) -> bytes:
    """The prefix and CRC before the bytes that the CRC covers."""
    return struct.pack(">qiibI", base_offset, 9 + len(checked), -1, magic, crc32c(checked)) + checked


def a_pending(topic_id: TopicId = ORDERS, partition: int = 0, data: bytes | None = None) -> PendingBatch:
    batch = validate_produced(a_batch() if data is None else data, LIMITS)
    return PendingBatch(topic_id=topic_id, partition=Partition(partition), batch=batch)


def a_segment(*batches: PendingBatch, writer: str = "agent-1") -> tuple[SealedSegment, bytes]:
    """A sealed segment and its bytes."""
    sealed = seal_segment(SEGMENT_ID, writer, PendingBatches.of(batches or (a_pending(),)))
    return sealed, b"".join(sealed.chunks)
