"""Encodes Arrow columns as record batches: for records that leave the history, and to compare both
directions.

The kernels encode columns as the records of a batch. The caller sizes their output by `record_sizes`.

Arrays, for n records with h headers in all: `sizes`, `offset_deltas` and `timestamp_deltas` are int64 of
shape (n,). Each binary column is three arrays: its offsets (int32, one more than it has rows), its validity
(uint8, one byte per row) and its content (uint8). Keys and values have n rows, header names and contents have
h rows. `list_offsets` (int32, shape (n + 1,)) says which headers belong to which record.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from storage.arrow.arrow_schema import MICROSECONDS, RECORD_SCHEMA
from storage.batches.batch_validation import NO_TIMESTAMP_MS
from storage.batches.byte_arrays import as_byte_array
from storage.batches.compression import FAST_ZSTD_LEVEL, ZSTD_LEVEL, compress
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    MAGIC_V2,
    MOST_EMPTY_OFFSETS,
    BatchHeader,
    Compression,
    TimestampType,
    attributes_of,
    empty_batch,
    write_header,
)
from storage.identifiers import NO_PRODUCER_ID
from storage.native.arguments import BYTES_IN, BYTES_OUT, INTS_IN, LONGS_IN, LONGS_OUT
from storage.native.kernels import helper, kernel


@helper
def _zigzag(value: int) -> Any:
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)


@helper
def _varint_size(value: int) -> Any:
    rest = _zigzag(value) >> np.uint64(7)
    size = np.int64(1)
    while rest:
        rest >>= np.uint64(7)
        size += 1
    return size


@helper
def _put_varint(out: NDArray[np.uint8], position: int, value: int) -> Any:
    rest = _zigzag(value)
    while rest >= 0x80:
        out[position] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(0x80)
        rest >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(rest)
    return position + 1


@helper
def _field_size(offsets: NDArray[np.int32], valid: NDArray[np.uint8], row: int) -> Any:
    if not valid[row]:
        return np.int64(1)
    length = np.int64(offsets[row + 1] - offsets[row])
    return _varint_size(length) + length


@helper
def _copy(out: NDArray[np.uint8], to: int, data: NDArray[np.uint8], start: int, length: int) -> Any:
    """Returns the position after the copied bytes. Indices are unsigned: a signed index may count from the
    end, and the check for that keeps the loop from being vectorised.
    """
    target, source = np.uint64(to), np.uint64(start)
    for index in range(np.uint64(length)):
        out[target + index] = data[source + index]
    return start + length


@helper
def _put_field(
    out: NDArray[np.uint8],
    position: int,
    offsets: NDArray[np.int32],
    valid: NDArray[np.uint8],
    content: NDArray[np.uint8],
    row: int,
) -> Any:
    if not valid[row]:
        return _put_varint(out, position, -1)
    begin = offsets[row]
    length = np.int64(offsets[row + 1] - begin)
    position = _put_varint(out, position, length)
    _copy(out, position, content, begin, length)
    return position + length


_COLUMNS = (
    *(LONGS_IN, LONGS_IN),
    *(INTS_IN, BYTES_IN, BYTES_IN),
    *(INTS_IN, BYTES_IN, BYTES_IN),
    *(INTS_IN, INTS_IN, BYTES_IN, BYTES_IN, INTS_IN, BYTES_IN, BYTES_IN),
)


@kernel(LONGS_OUT, *_COLUMNS)
def record_sizes(
    sizes: NDArray[np.int64],
    offset_deltas: NDArray[np.int64],
    timestamp_deltas: NDArray[np.int64],
    key_offsets: NDArray[np.int32],
    key_valid: NDArray[np.uint8],
    keys: NDArray[np.uint8],  # noqa: ARG001 - the same parameters as `put_records`
    value_offsets: NDArray[np.int32],
    value_valid: NDArray[np.uint8],
    values: NDArray[np.uint8],  # noqa: ARG001
    list_offsets: NDArray[np.int32],
    name_offsets: NDArray[np.int32],
    name_valid: NDArray[np.uint8],
    names: NDArray[np.uint8],  # noqa: ARG001
    content_offsets: NDArray[np.int32],
    content_valid: NDArray[np.uint8],
    contents: NDArray[np.uint8],  # noqa: ARG001
) -> Any:
    """Fills `sizes` with each record's length without its own length varint. Returns the bytes of all records
    with these varints."""
    total = np.int64(0)
    for row in range(len(sizes)):
        size = np.int64(1) + _varint_size(timestamp_deltas[row]) + _varint_size(offset_deltas[row])
        size += _field_size(key_offsets, key_valid, row) + _field_size(value_offsets, value_valid, row)
        first, last = list_offsets[row], list_offsets[row + 1]
        size += _varint_size(np.int64(last - first))
        for header in range(first, last):
            size += _field_size(name_offsets, name_valid, header) + _field_size(
                content_offsets, content_valid, header
            )
        sizes[row] = size
        total += _varint_size(size) + size
    return total


@kernel(BYTES_OUT, LONGS_IN, *_COLUMNS)
def put_records(
    out: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    offset_deltas: NDArray[np.int64],
    timestamp_deltas: NDArray[np.int64],
    key_offsets: NDArray[np.int32],
    key_valid: NDArray[np.uint8],
    keys: NDArray[np.uint8],
    value_offsets: NDArray[np.int32],
    value_valid: NDArray[np.uint8],
    values: NDArray[np.uint8],
    list_offsets: NDArray[np.int32],
    name_offsets: NDArray[np.int32],
    name_valid: NDArray[np.uint8],
    names: NDArray[np.uint8],
    content_offsets: NDArray[np.int32],
    content_valid: NDArray[np.uint8],
    contents: NDArray[np.uint8],
) -> Any:
    """Writes all records into `out` (uint8). Returns how many bytes they take."""
    position = np.int64(0)
    for row in range(len(sizes)):
        position = _put_varint(out, position, sizes[row])
        out[position] = 0  # bits for the attributes of a record: none are defined
        position = _put_varint(out, position + 1, timestamp_deltas[row])
        position = _put_varint(out, position, offset_deltas[row])
        position = _put_field(out, position, key_offsets, key_valid, keys, row)
        position = _put_field(out, position, value_offsets, value_valid, values, row)
        first, last = list_offsets[row], list_offsets[row + 1]
        position = _put_varint(out, position, np.int64(last - first))
        for header in range(first, last):
            position = _put_field(out, position, name_offsets, name_valid, names, header)
            position = _put_field(out, position, content_offsets, content_valid, contents, header)
    return position


_INT32_MAX = 2**31 - 1
_OFFSETS_PER_BATCH_BITS = 30
_RECORD_OVERHEAD_BYTES = 16
"""About the size of a record without its key, value and headers."""


def encode_batch(
    records: pa.RecordBatch,
    compression: Compression,
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    zstd_level: int = ZSTD_LEVEL,
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
    times_ms = timestamps_ms(columns.column("timestamp"))
    if kind is TimestampType.LOG_APPEND_TIME and len(np.unique(times_ms)) > 1:
        raise ValueError("a batch of log append time has one timestamp")
    base_timestamp_ms = int(times_ms[0]) if len(times_ms) else NO_TIMESTAMP_MS
    records_bytes = _records(columns, offsets - base, times_ms - base_timestamp_ms)
    body = compress(records_bytes, compression, zstd_level=zstd_level)
    header = BatchHeader(
        base_offset=base,
        size_bytes=HEADER_BYTES + len(body),
        leader_epoch=0,
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes_of(compression, kind),
        last_offset_delta=last - base,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=int(times_ms.max(initial=NO_TIMESTAMP_MS)),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(offsets),
    )
    checked = crc32c(body, crc32c(write_header(header)[CRC_START:]))
    return write_header(replace(header, crc=checked)) + body


def encode_span(
    records: pa.RecordBatch, compression: Compression, *, base_offset: int, last_offset: int, batch_bytes: int
) -> bytes:
    """Returns v2 batches back to back that span `[base_offset, last_offset]` exactly.

    `records` are in offset order; those outside the span are left out. A batch has about `batch_bytes` of
    records before compression. A larger record is alone in it, because readers bound a batch's size. Batches
    also end where one batch cannot hold what follows: another timestamp type, another time of append, offsets
    too far apart. A range without records is an empty batch that says so (`BatchHeader.is_erased`).
    """
    offsets = records.column("offset").to_numpy()
    first, end = np.searchsorted(offsets, [base_offset, last_offset + 1])
    rows = records.slice(first, end - first)
    offsets = offsets[first:end]
    cuts = [*_cuts(rows, offsets, batch_bytes).tolist(), len(offsets)]
    batches = []
    reached = base_offset
    for start, stop in itertools.pairwise(cuts):
        until = int(offsets[stop]) - 1 if stop < len(offsets) else last_offset
        begins, ends = reached, until
        if until - reached > _INT32_MAX:
            begins, ends = int(offsets[start]), int(offsets[stop - 1])
        batches += _empty_batches(reached, begins - 1)
        batches.append(
            encode_batch(
                rows.slice(start, stop - start),
                compression,
                base_offset=begins,
                last_offset=ends,
                zstd_level=FAST_ZSTD_LEVEL,
            )
        )
        batches += _empty_batches(ends + 1, until)
        reached = until + 1
    batches += _empty_batches(reached, last_offset)
    return b"".join(batches)


def _cuts(rows: pa.RecordBatch, offsets: NDArray[np.int64], batch_bytes: int) -> NDArray[np.int64]:
    """The rows at which a batch begins."""
    if not len(offsets):
        return np.empty(0, np.int64)
    headers: Any = rows.column("headers")
    of_rows = _offsets(headers, 1)
    sizes = np.full(len(offsets), _RECORD_OVERHEAD_BYTES, np.int64)
    for column in (rows.column("key"), rows.column("value")):
        sizes += np.diff(_offsets(column, 1))
    for name in ("key", "value"):
        sizes += np.diff(_offsets(headers.values.field(name), 1)[of_rows])
    before = np.cumsum(sizes) - sizes
    kinds = rows.column("timestamp_type").to_numpy(zero_copy_only=False)
    append_times = np.where(
        kinds == TimestampType.LOG_APPEND_TIME, timestamps_ms(rows.column("timestamp")), NO_TIMESTAMP_MS
    )
    begins = np.ones(len(offsets), np.bool_)
    begins[1:] = (
        (np.diff(before // batch_bytes) != 0)
        | (sizes[1:] > batch_bytes)
        | (np.diff(kinds) != 0)
        | (np.diff(append_times) != 0)
        | (np.diff(offsets >> _OFFSETS_PER_BATCH_BITS) != 0)
    )
    return np.flatnonzero(begins)


def _empty_batches(base_offset: int, last_offset: int) -> list[bytes]:
    batches = []
    while base_offset <= last_offset:
        offsets = min(last_offset - base_offset + 1, MOST_EMPTY_OFFSETS)
        batches.append(empty_batch(offsets, NO_TIMESTAMP_MS, is_erased=True))
        base_offset += offsets
    return batches


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


def timestamps_ms(column: "pa.Array[Any]") -> NDArray[np.int64]:
    """Milliseconds; -1 where there is none."""
    microseconds = (
        column.cast(pa.int64()).fill_null(NO_TIMESTAMP_MS * MICROSECONDS).to_numpy(zero_copy_only=False)
    )
    return np.asarray(microseconds // MICROSECONDS, np.int64)


def _records(
    columns: pa.RecordBatch, offset_deltas: NDArray[np.int64], timestamp_deltas: NDArray[np.int64]
) -> memoryview:
    headers: Any = columns.column("headers")
    entries = headers.values
    arrays = (
        *(offset_deltas, timestamp_deltas),
        *binary_arrays(columns.column("key")),
        *binary_arrays(columns.column("value")),
        _offsets(headers, 1),
        *binary_arrays(entries.field("key")),
        *binary_arrays(entries.field("value")),
    )
    sizes = np.empty(len(offset_deltas), np.int64)
    out = np.empty(record_sizes(sizes, *arrays), np.uint8)
    put_records(out, sizes, *arrays)
    return out.data.toreadonly()


def binary_arrays(array: "pa.Array[Any]") -> tuple[NDArray[Any], ...]:
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
