"""Kafka's record batch, format v2 (KIP-98): its 61-byte header and what may be changed in it.

    base offset i64 | batch length i32 | leader epoch i32 | magic i8 | CRC32C u32 | attributes i16 | last
    offset delta i32 | base timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 | base
    sequence i32 | record count i32 | records

The CRC covers everything from the attributes on. So base offset and leader epoch (the prefix) can be patched
when a batch is served, without touching the rest. `read_header` only reads; `batch_validation` decides
whether a batch is sound.
"""

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage.batches.batch_kernels import count_batches, place_batches
from storage.batches.byte_arrays import Buffer, as_byte_array
from storage.identifiers import NO_PRODUCER_ID, ProducerId

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_CHANGEABLE = struct.Struct(">Ihiqq")  # CRC to max timestamp

HEADER_BYTES = _HEADER.size
PREFIX_BYTES = _PREFIX.size
"""Base offset, batch length and leader epoch: what `patched_prefix` replaces."""
LENGTH_OVERHEAD_BYTES = 12
"""Base offset and batch length: the batch length does not count these bytes."""
CRC_POSITION = 17
CRC_START = 21
MAGIC_POSITION = 16
MAGIC_V2 = 2
MOST_EMPTY_OFFSETS = (1 << 31) - 1
"""The most offsets that one empty batch may span."""

_BATCH_INDEX = np.dtype([("position", np.int64), ("size_bytes", np.int64), ("last_offset_delta", np.int64)])

_ABORT, _COMMIT = 0, 1
_COORDINATOR_EPOCH = 0
"""Nothing fences markers by it: there is no coordinator in memory."""

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_DELETE_HORIZON_BIT = 0x40


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The fields of a batch's header; `size_bytes` is the whole batch, header included."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> Compression:
        """Raises ValueError for the three unused codes."""
        return Compression(self.attributes & _COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return (
            TimestampType.LOG_APPEND_TIME
            if self.attributes & _LOG_APPEND_TIME_BIT
            else TimestampType.CREATE_TIME
        )

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def is_erased(self) -> bool:
        """True if an erasure or a cleaning took out all its records. A batch that stands for offsets that are
        lost (`empty_batch`) has no record either, but one timestamp."""
        return self.record_count == 0 and self.base_timestamp_ms != self.max_timestamp_ms

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & _DELETE_HORIZON_BIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidBatch:
    """Exactly one batch that passed `validate_produced`. The timestamps are those of its records; -1:
    none."""

    header: BatchHeader
    data: memoryview
    min_timestamp_ms: int
    max_timestamp_ms: int


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the header that starts at `position`. Raises ValueError if fewer than 61 bytes are left."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise ValueError(
            f"a record batch has a {HEADER_BYTES}-byte header, only {max(0, len(buffer) - position)} "
            "bytes are left"
        )
    fields = _HEADER.unpack_from(buffer, position)
    return BatchHeader(
        base_offset=fields[0],
        size_bytes=fields[1] + LENGTH_OVERHEAD_BYTES,
        leader_epoch=fields[2],
        magic=fields[3],
        crc=fields[4],
        attributes=fields[5],
        last_offset_delta=fields[6],
        base_timestamp_ms=fields[7],
        max_timestamp_ms=fields[8],
        producer_id=ProducerId(fields[9]),
        producer_epoch=fields[10],
        base_sequence=fields[11],
        record_count=fields[12],
    )


def attributes_of(compression: Compression, timestamp_type: TimestampType) -> int:
    """Returns the attributes of a batch that is neither transactional nor control."""
    return compression | (_LOG_APPEND_TIME_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)


def erased_batch(header: BatchHeader) -> bytes:
    """Returns the batch of `header` without its records. It keeps its offsets and its producer's sequence
    numbers. It has no greatest timestamp, so no look-up by time stops at it."""
    emptied = replace(
        header,
        size_bytes=HEADER_BYTES,
        attributes=header.attributes & ~_COMPRESSION_MASK,
        base_timestamp_ms=0,
        max_timestamp_ms=-1,
        record_count=0,
    )
    return write_header(replace(emptied, crc=crc32c(write_header(emptied)[CRC_START:])))


def with_compression(header: BatchHeader, compression: Compression) -> BatchHeader:
    """Returns the header with this compression in its attributes. Length and CRC are not changed."""
    return replace(header, attributes=header.attributes & ~_COMPRESSION_MASK | compression)


def write_header(header: BatchHeader) -> bytes:
    """Returns the 61 bytes of `header`, with its CRC as given."""
    return _HEADER.pack(
        header.base_offset,
        header.size_bytes - LENGTH_OVERHEAD_BYTES,
        header.leader_epoch,
        header.magic,
        header.crc,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )


def marker_batch(
    producer_id: ProducerId, producer_epoch: int, *, is_commit: bool, timestamp_ms: int
) -> bytes:
    """Returns the control batch that ends a transaction in a partition (KIP-98): one record without
    compression, at one offset."""
    key = struct.pack(">hh", 0, _COMMIT if is_commit else _ABORT)
    value = struct.pack(">hi", 0, _COORDINATOR_EPOCH)
    # Lengths are zigzag varints, here of one byte. Before the key: attributes, and no difference to the
    # batch's time and offset. After the value: no headers.
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    record = bytes([2 * len(body)]) + body
    header = BatchHeader(
        base_offset=0,
        size_bytes=HEADER_BYTES + len(record),
        leader_epoch=0,
        magic=MAGIC_V2,
        crc=0,
        attributes=_TRANSACTIONAL_BIT | _CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    checked = (write_header(header) + record)[CRC_START:]
    return write_header(replace(header, crc=crc32c(checked))) + record


def empty_batch(offsets: int, timestamp_ms: int, *, is_erased: bool = False) -> bytes:
    """Returns a batch without records that spans `offsets` offsets, so that consumers go on after it. Raises
    ValueError for less than one offset or more than MOST_EMPTY_OFFSETS.

    `is_erased`: the records were taken out on purpose, and are not lost. The batch then has two timestamps.
    """
    if not 1 <= offsets <= MOST_EMPTY_OFFSETS:
        raise ValueError(f"a batch spans 1 to {MOST_EMPTY_OFFSETS} offsets, not {offsets}")
    header = BatchHeader(
        base_offset=0,
        size_bytes=HEADER_BYTES,
        leader_epoch=0,
        magic=MAGIC_V2,
        crc=0,
        attributes=0,
        last_offset_delta=offsets - 1,
        base_timestamp_ms=timestamp_ms + is_erased,
        max_timestamp_ms=timestamp_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    return write_header(replace(header, crc=crc32c(write_header(header)[CRC_START:])))


def patched_prefix(base_offset: int, size_bytes: int, leader_epoch: int = 0) -> bytes:
    """Returns the first 16 bytes of a batch of `size_bytes` that now starts at `base_offset`."""
    return _PREFIX.pack(base_offset, size_bytes - LENGTH_OVERHEAD_BYTES, leader_epoch)


def patch_prefix(batches: bytearray, position: int, base_offset: int, size_bytes: int) -> None:
    """As `patched_prefix`, in place, for the batch at `position`."""
    _PREFIX.pack_into(batches, position, base_offset, size_bytes - LENGTH_OVERHEAD_BYTES, 0)


def with_log_append_time(batch: ValidBatch, timestamp_ms: int) -> ValidBatch:
    """Returns a copy of the batch for a topic with message.timestamp.type=LogAppendTime: every record's time
    is `timestamp_ms`.
    """
    attributes = batch.header.attributes | _LOG_APPEND_TIME_BIT
    return _with_times(
        batch, attributes=attributes, min_timestamp_ms=timestamp_ms, max_timestamp_ms=timestamp_ms
    )


def with_max_timestamp(batch: ValidBatch, max_timestamp_ms: int) -> ValidBatch:
    """Returns a copy of the batch with the right max timestamp in its header. Kafka's brokers do the same for
    clients that get it wrong.
    """
    return _with_times(
        batch,
        attributes=batch.header.attributes,
        min_timestamp_ms=batch.min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def _with_times(
    batch: ValidBatch, *, attributes: int, min_timestamp_ms: int, max_timestamp_ms: int
) -> ValidBatch:
    header = batch.header
    data = bytearray(batch.data)
    times = (attributes, header.last_offset_delta, header.base_timestamp_ms, max_timestamp_ms)
    _CHANGEABLE.pack_into(data, CRC_POSITION, 0, *times)
    crc = crc32c(memoryview(data)[CRC_START:])
    _CHANGEABLE.pack_into(data, CRC_POSITION, crc, *times)
    return ValidBatch(
        header=replace(header, attributes=attributes, max_timestamp_ms=max_timestamp_ms, crc=crc),
        data=memoryview(data).toreadonly(),
        min_timestamp_ms=min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def index_batches(buffer: Buffer, start: int, end: int) -> NDArray[Any]:
    """Finds the batches that lie back to back in `[start, end)`, without looking at their contents.

    Returns a structured array of shape (batches,) with int64 fields `position`, `size_bytes` and
    `last_offset_delta`. Raises ValueError if a length does not fit.
    """
    if not 0 <= start <= end <= len(buffer):
        raise ValueError(f"[{start}, {end}) does not lie within {len(buffer)} bytes")
    data = as_byte_array(buffer)
    count = count_batches(data, start, end)
    if count < 0:
        raise ValueError(f"no record batch fits at position {-1 - count} of [{start}, {end})")
    rows = np.empty((count, _BATCH_INDEX.itemsize // 8), np.int64)
    place_batches(data, start, rows)
    return rows.view(_BATCH_INDEX).reshape(-1)


def relative_offsets(batches: NDArray[Any]) -> NDArray[np.int64]:
    """Returns where each batch of an index (`index_batches`) begins, counted from the first one's base
    offset. Shape (batches,)."""
    offsets: NDArray[np.int64] = batches["last_offset_delta"] + 1
    return np.cumsum(offsets) - offsets
