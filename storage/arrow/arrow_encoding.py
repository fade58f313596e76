"""Arrow columns to record batches: for records that leave the history, and to compare both directions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from storage.arrow.arrow_schema import MICROSECONDS, RECORD_SCHEMA
from storage.arrow.encode_kernels import put_records, record_sizes
from storage.batches.batch_validation import NO_TIMESTAMP_MS
from storage.batches.byte_arrays import as_byte_array
from storage.batches.compression import compress
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    MAGIC_V2,
    BatchHeader,
    Compression,
    TimestampType,
    attributes_of,
    write_header,
)
from storage.identifiers import NO_PRODUCER_ID

_INT32_MAX = 2**31 - 1


def encode_batch(
    records: pa.RecordBatch,
    compression: Compression,
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """Returns one v2 batch of these records. They are in offset order; gaps between offsets stay gaps.

    The batch spans `[base_offset, last_offset]`, by default from the first record to the last. Without
    records both must be given. Raises ValueError if one batch cannot hold the records: two timestamp types,
    LogAppendTime with two times, or offsets out of order.
    """
    columns = records.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
    offsets = columns.column("offset").to_numpy(zero_copy_only=False)
    base = _bound(base_offset, offsets, 0)
    last = _bound(last_offset, offsets, -1)
    _check_offsets(offsets, base, last)
    kind = _timestamp_type(columns.column("timestamp_type"))
    timestamps_ms = _timestamps_ms(columns.column("timestamp"))
    if kind is TimestampType.LOG_APPEND_TIME and len(np.unique(timestamps_ms)) > 1:
        raise ValueError("a batch of log append time has one timestamp")
    base_timestamp_ms = int(timestamps_ms[0]) if len(timestamps_ms) else NO_TIMESTAMP_MS
    body = compress(_records(columns, offsets - base, timestamps_ms - base_timestamp_ms), compression)
    header = BatchHeader(
        base_offset=base,
        size_bytes=HEADER_BYTES + len(body),
        leader_epoch=0,
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes_of(compression, kind),
        last_offset_delta=last - base,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=int(timestamps_ms.max(initial=NO_TIMESTAMP_MS)),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(offsets),
    )
    checked = crc32c(body, crc32c(write_header(header)[CRC_START:]))
    return write_header(replace(header, crc=checked)) + body


def _bound(given: int | None, offsets: NDArray[np.int64], index: int) -> int:
    if given is not None:
        return given
    if not len(offsets):
        raise ValueError("a batch without records needs base_offset and last_offset")
    return int(offsets[index])


def _check_offsets(offsets: NDArray[np.int64], base: int, last: int) -> None:
    if not 0 <= last - base <= _INT32_MAX:
        raise ValueError(f"one batch cannot span the offsets {base} to {last}")
    if len(offsets) and (offsets[0] < base or offsets[-1] > last or (np.diff(offsets) <= 0).any()):
        raise ValueError(f"offsets are not ascending within {base} to {last}")


def _timestamp_type(column: "pa.Array[Any]") -> TimestampType:
    kinds = np.unique(column.to_numpy(zero_copy_only=False))
    if len(kinds) > 1:
        raise ValueError("a batch has one timestamp type")
    return TimestampType(int(kinds[0])) if len(kinds) else TimestampType.CREATE_TIME


def _timestamps_ms(column: "pa.Array[Any]") -> NDArray[np.int64]:
    microseconds = column.cast(pa.int64()).fill_null(NO_TIMESTAMP_MS * MICROSECONDS).to_numpy(zero_copy_only=False)
    return np.asarray(microseconds // MICROSECONDS, np.int64)


def _records(
    columns: pa.RecordBatch, offset_deltas: NDArray[np.int64], timestamp_deltas: NDArray[np.int64]
) -> memoryview:
    headers: Any = columns.column("headers")
    entries = headers.values
    arrays = (
        *(offset_deltas, timestamp_deltas),
        *_binary(columns.column("key")),
        *_binary(columns.column("value")),
        _offsets(headers, 1),
        *_binary(entries.field("key")),
        *_binary(entries.field("value")),
    )
    sizes = np.empty(len(offset_deltas), np.int64)
    out = np.empty(record_sizes(sizes, *arrays), np.uint8)
    put_records(out, sizes, *arrays)
    return out.data.toreadonly()


def _binary(array: "pa.Array[Any]") -> tuple[NDArray[Any], ...]:
    """Returns the offsets, the validity (one byte per row) and the content of a binary or string column. The
    column may be a slice."""
    content = array.buffers()[2]
    valid = array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    return _offsets(array, 1), valid, as_byte_array(memoryview(content) if content is not None else b"")


def _offsets(array: "pa.Array[Any]", index: int) -> NDArray[np.int32]:
    buffer = array.buffers()[index]
    if buffer is None or not len(array):
        return np.zeros(1, np.int32)
    every = np.frombuffer(memoryview(buffer), np.int32)
    return every[array.offset : array.offset + len(array) + 1]
