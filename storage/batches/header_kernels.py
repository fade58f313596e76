"""Kernels that read and check the headers of many produced batches in one call (see `produced_batches`).

Promises:
- No kernel reads outside the given bytes, whatever they are.
- A batch that is called plain is exactly one that `validate_produced` would accept without looking at its
  records.

Arrays: `data` is uint8 of shape (bytes,). All others are int64 with one row per batch: `asked` has
ASKED_COLUMNS, `rows` HEADER_COLUMNS, `limits` LIMIT_COLUMNS. The first columns of `rows` are a span of
`batch_kernels`, so the rows can be scanned as they are.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.batches.batch_kernels import (
    APPEND_TIMESTAMP,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    END,
    FAULT,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    SOUND,
    SPAN_COLUMNS,
    START,
    TIMESTAMP_TYPE,
)
from storage.native.arguments import BYTES_IN, LONG_ROWS_IN, LONG_ROWS_OUT, LONGS_OUT
from storage.native.kernels import helper, kernel

# Columns of `asked`: the batch's bytes are `[from, to)`; FOUND_CRC is the CRC32C of the bytes that its CRC
# covers.
FROM, TO, FOUND_CRC = 0, 1, 2
ASKED_COLUMNS: Final = 3

# Columns of `rows`, after those of a span.
IS_PLAIN = SPAN_COLUMNS
LEADER_EPOCH = SPAN_COLUMNS + 1
CRC = SPAN_COLUMNS + 2
PRODUCER_ID = SPAN_COLUMNS + 3
PRODUCER_EPOCH = SPAN_COLUMNS + 4
BASE_SEQUENCE = SPAN_COLUMNS + 5
IS_TRANSACTIONAL = SPAN_COLUMNS + 6
HEADER_COLUMNS: Final = SPAN_COLUMNS + 7

# Columns of `limits`.
MAX_MESSAGE_BYTES, MAX_DECOMPRESSED_BYTES, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = 0, 1, 2, 3
LIMIT_COLUMNS: Final = 4

_HEADER_BYTES = 61
_LENGTH_OVERHEAD_BYTES = 12
_MAGIC_V2 = 2
_TRANSACTIONAL = 0x10
"""The attributes of a batch that is transactional and nothing else."""
_NO_PRODUCER_ID = -1
_NO_TIMESTAMP_MS = -1
_LAST_TIMESTAMP_MS = 253402300799999
"""As in `batch_validation`."""


@helper
def _int32_at(data: NDArray[np.uint8], position: int) -> Any:
    return np.int64(
        np.int32(
            (np.uint32(data[position]) << np.uint32(24))
            | (np.uint32(data[position + 1]) << np.uint32(16))
            | (np.uint32(data[position + 2]) << np.uint32(8))
            | np.uint32(data[position + 3])
        )
    )


@helper
def _int64_at(data: NDArray[np.uint8], position: int) -> Any:
    return (_int32_at(data, position) << np.int64(32)) | (
        _int32_at(data, position + 4) & np.int64(0xFFFFFFFF)
    )


@helper
def _int16_at(data: NDArray[np.uint8], position: int) -> Any:
    return _int32_at(data, position) >> np.int64(16)


@helper
def _is_plain(data: NDArray[np.uint8], start: int, end: int, found_crc: int, row: NDArray[np.int64]) -> Any:
    """True if these bytes are exactly one batch by its length and CRC, uncompressed and without any
    attribute but being transactional."""
    attributes = _int16_at(data, start + 21)
    if data[start + 16] != _MAGIC_V2 or _int64_at(data, start) != 0 or attributes & ~_TRANSACTIONAL != 0:
        return False
    if attributes != 0 and row[PRODUCER_ID] == _NO_PRODUCER_ID:
        return False
    if _int32_at(data, start + 8) + _LENGTH_OVERHEAD_BYTES != end - start or row[CRC] != found_crc:
        return False
    if row[COUNT] < 1 or row[LAST_OFFSET_DELTA] != row[COUNT] - 1 or row[PRODUCER_ID] < _NO_PRODUCER_ID:
        return False
    return row[PRODUCER_ID] == _NO_PRODUCER_ID or (row[PRODUCER_EPOCH] >= 0 and row[BASE_SEQUENCE] >= 0)


@kernel(BYTES_IN, LONG_ROWS_IN, LONG_ROWS_OUT)
def read_headers(data: NDArray[np.uint8], asked: NDArray[np.int64], rows: NDArray[np.int64]) -> Any:
    """Fills `rows` and returns how many batches are plain. A batch that is not plain gets an empty span."""
    plain = 0
    for index in range(asked.shape[0]):
        start, end = asked[index, FROM], asked[index, TO]
        row = rows[index]
        row[:] = 0
        if end - start < _HEADER_BYTES:
            continue
        row[LEADER_EPOCH] = _int32_at(data, start + 12)
        row[CRC] = _int32_at(data, start + 17) & np.int64(0xFFFFFFFF)
        row[LAST_OFFSET_DELTA] = _int32_at(data, start + 23)
        row[BASE_TIMESTAMP] = _int64_at(data, start + 27)
        row[APPEND_TIMESTAMP] = _int64_at(data, start + 35)
        row[PRODUCER_ID] = _int64_at(data, start + 43)
        row[PRODUCER_EPOCH] = _int16_at(data, start + 51)
        row[BASE_SEQUENCE] = _int32_at(data, start + 53)
        row[COUNT] = _int32_at(data, start + 57)
        row[IS_TRANSACTIONAL] = (_int16_at(data, start + 21) & _TRANSACTIONAL) != 0
        if _is_plain(data, start, end, asked[index, FOUND_CRC], row):
            row[START], row[END] = start + _HEADER_BYTES, end
            row[BASE_OFFSET], row[TIMESTAMP_TYPE] = 0, 0
            row[IS_PLAIN] = 1
            plain += 1
        else:
            row[COUNT] = 0
    return plain


@kernel(LONG_ROWS_IN, LONG_ROWS_IN, LONG_ROWS_IN, LONGS_OUT)
def judge(
    rows: NDArray[np.int64], found: NDArray[np.int64], limits: NDArray[np.int64], sound: NDArray[np.int64]
) -> Any:
    """Sets `sound` (int64, shape (batches,)) to 1 for each batch that is certainly sound, by `rows` and by
    `found` (shape (batches, FINDINGS), from `scan_each`). Returns how many are."""
    count = 0
    for index in range(rows.shape[0]):
        row, findings, limit = rows[index], found[index], limits[index]
        records_bytes = row[END] - row[START]
        is_sound = (
            row[IS_PLAIN] != 0
            and findings[FAULT] == SOUND
            and findings[MAX_TIMESTAMP] == row[APPEND_TIMESTAMP]
            and limit[EARLIEST_TIMESTAMP] <= findings[MIN_TIMESTAMP]
            and findings[MAX_TIMESTAMP] <= limit[LATEST_TIMESTAMP]
            and _NO_TIMESTAMP_MS <= row[BASE_TIMESTAMP] <= _LAST_TIMESTAMP_MS
            and records_bytes + _HEADER_BYTES <= limit[MAX_MESSAGE_BYTES]
            and records_bytes <= limit[MAX_DECOMPRESSED_BYTES]
        )
        sound[index] = is_sound
        count += is_sound
    return count
