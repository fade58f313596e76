"""Kernels that encode Arrow columns as the records of a batch. The caller sizes the output by `record_sizes`.

Arrays, for n records with h headers in all: `sizes`, `offset_deltas` and `timestamp_deltas` are int64 of
shape (n,). Each binary column is three arrays: its offsets (int32, one more than it has rows), its validity
(uint8, one byte per row) and its content (uint8). Keys and values have n rows, header names and contents have
h rows. `list_offsets` (int32, shape (n + 1,)) says which headers belong to which record.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
            size += _field_size(name_offsets, name_valid, header) + _field_size(content_offsets, content_valid, header)
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
        out[position] = 0  # no record attributes are defined
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
