"""Kernels that walk the bytes of record batches: where batches and records are, whether their structure is
right, and what they contain.

Promises:
- No kernel reads outside `[start, end)`, whatever the bytes are. `count_batches` and `scan_spans` check every
  length before they follow it. `place_batches` may only follow `count_batches`. The other kernels may only
  get spans that `scan_spans` or `scan_each` found sound.

Arrays: `data` is uint8 of shape (bytes,). `spans` is int64 of shape (batches, SPAN_COLUMNS or more). Findings
are int64 of shape (FINDINGS,), or (batches, FINDINGS) for `scan_each`.

Helpers are in the same file as the kernels that call them, because changed source is detected file by file.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.native.arguments import (
    BYTES_IN,
    BYTES_OUT,
    INTS_OUT,
    LONG,
    LONG_ROWS_IN,
    LONG_ROWS_OUT,
    LONGS_IN,
    LONGS_OUT,
)
from storage.native.kernels import helper, kernel

_BATCH_HEADER_BYTES = 61

# The faults that `scan_spans` finds.
SOUND = 0
RECORDS_CUT_SHORT = 1
BAD_RECORD_LENGTH = 2
BAD_OFFSET_DELTA = 3
BAD_FIELD_LENGTH = 4
BAD_HEADER_COUNT = 5
HEADER_KEY_NOT_UTF8 = 6
BYTES_AFTER_RECORDS = 7

# Columns of the findings.
RECORDS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = 0, 1, 2, 3, 4, 5
MIN_TIMESTAMP, MAX_TIMESTAMP, FAULT, FAULTY = 6, 7, 8, 9
FINDINGS = 10
"""Totals, then the least and the greatest timestamp, then the fault and the index of the record or span that
has it."""

# Columns of a span: the uncompressed records of one batch in a buffer.
START, END, COUNT, BASE_OFFSET, LAST_OFFSET_DELTA, BASE_TIMESTAMP, APPEND_TIMESTAMP, TIMESTAMP_TYPE = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
SPAN_COLUMNS = 8

_FIRST_TIMESTAMP = np.iinfo(np.int64).min
_LAST_TIMESTAMP = np.iinfo(np.int64).max


@helper
def _int32_at(data: NDArray[np.uint8], position: int) -> Any:
    return np.int32(
        (np.uint32(data[position]) << np.uint32(24))
        | (np.uint32(data[position + 1]) << np.uint32(16))
        | (np.uint32(data[position + 2]) << np.uint32(8))
        | np.uint32(data[position + 3])
    )


@kernel(BYTES_IN, LONG, LONG)
def count_batches(data: NDArray[np.uint8], start: int, end: int) -> Any:
    """Returns how many batches lie in `[start, end)`. If one does not fit, returns -1 minus its position."""
    count = 0
    position: Any = start
    while position < end:
        size = (
            np.int64(12) + _int32_at(data, position + 8)
            if end - position >= _BATCH_HEADER_BYTES
            else np.int64(0)
        )
        if size < _BATCH_HEADER_BYTES or size > end - position:
            return -1 - position
        count += 1
        position += size
    return count


@kernel(BYTES_IN, LONG, LONG_ROWS_OUT)
def place_batches(data: NDArray[np.uint8], start: int, rows: NDArray[np.int64]) -> Any:
    """Fills `rows` (int64, shape (batches, 3)) with position, size and last offset delta of each batch. Call
    `count_batches` first."""
    position: Any = start
    for row in range(rows.shape[0]):
        size = np.int64(12) + _int32_at(data, position + 8)
        rows[row, 0] = position
        rows[row, 1] = size
        rows[row, 2] = _int32_at(data, position + 23)
        position += size
    return position


@helper
def _varint(data: NDArray[np.uint8], position: int, end: int, most_bytes: int, last_byte: int) -> Any:
    """Returns a zigzag varint and the position after it. The position is -1 if the varint is cut short, too
    long or outside its type's range."""
    value = np.uint64(0)
    shift = np.uint64(0)
    for index in range(most_bytes):
        if position >= end:
            break
        byte = data[np.uint64(position)]
        position += 1
        value |= np.uint64(byte & np.uint8(0x7F)) << shift
        if byte < 0x80:
            if index == most_bytes - 1 and byte > last_byte:
                break
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@helper
def _int_varint(data: NDArray[np.uint8], position: int, end: int) -> Any:
    if position < end and data[np.uint64(position)] < 0x80:  # most lengths have one byte
        byte = np.int64(data[np.uint64(position)])
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _varint(data, position, end, 5, 0x0F)


@helper
def _long_varint(data: NDArray[np.uint8], position: int, end: int) -> Any:
    return _varint(data, position, end, 10, 0x01)


@helper
def _is_utf8(data: NDArray[np.uint8], start: int, end: int) -> Any:
    """True for well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF."""
    position = start
    while position < end:
        lead = data[position]
        position += 1
        if lead < 0x80:
            continue
        low, high = np.uint8(0x80), np.uint8(0xBF)
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = np.uint8(0xA0)
            elif lead == 0xED:
                high = np.uint8(0x9F)
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = np.uint8(0x90)
            elif lead == 0xF4:
                high = np.uint8(0x8F)
        else:
            return False
        for _ in range(more):
            if position >= end or data[position] < low or data[position] > high:
                return False
            low, high = np.uint8(0x80), np.uint8(0xBF)
            position += 1
    return True


@helper
def _scan_field(data: NDArray[np.uint8], position: int, end: int) -> Any:
    """Returns the length of a nullable field (-1: null) and the position after it (-1: it does not fit)."""
    length, position = _int_varint(data, position, end)
    if position < 0 or length < -1 or length > end - position:
        return np.int64(0), np.int64(-1)
    return length, position + max(length, 0)


@helper
def _scan_headers(data: NDArray[np.uint8], position: int, end: int, found: NDArray[np.int64]) -> Any:
    """Adds the headers of one record to the findings. Returns their fault."""
    count, position = _int_varint(data, position, end)
    if position < 0 or count < 0 or count > end - position:
        return BAD_HEADER_COUNT
    for _ in range(count):
        length, after = _scan_field(data, position, end)
        if after < 0 or length < 0:
            return BAD_FIELD_LENGTH
        if not _is_utf8(data, after - length, after):
            return HEADER_KEY_NOT_UTF8
        found[HEADER_KEY_BYTES] += length
        length, position = _scan_field(data, after, end)
        if position < 0:
            return BAD_FIELD_LENGTH
        found[HEADER_VALUE_BYTES] += max(length, 0)
    found[HEADERS] += count
    return SOUND if position == end else BAD_RECORD_LENGTH


@helper
def _scan_record(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    span: NDArray[np.int64],
    least_delta: int,
    found: NDArray[np.int64],
) -> Any:
    """Adds one record, the bytes `[position, end)`, to the findings. Returns its fault and its offset
    delta."""
    timestamp_delta, position = _long_varint(data, position + 1, end)
    if position < 0:
        return BAD_RECORD_LENGTH, np.int64(0)
    offset_delta, position = _int_varint(data, position, end)
    if position < 0 or offset_delta < least_delta or offset_delta > span[LAST_OFFSET_DELTA]:
        return BAD_OFFSET_DELTA, np.int64(0)
    timestamp = span[BASE_TIMESTAMP] + timestamp_delta
    found[MIN_TIMESTAMP] = min(found[MIN_TIMESTAMP], timestamp)
    found[MAX_TIMESTAMP] = max(found[MAX_TIMESTAMP], timestamp)
    length, position = _scan_field(data, position, end)
    if position < 0:
        return BAD_FIELD_LENGTH, np.int64(0)
    found[KEY_BYTES] += max(length, 0)
    length, position = _scan_field(data, position, end)
    if position < 0:
        return BAD_FIELD_LENGTH, np.int64(0)
    found[VALUE_BYTES] += max(length, 0)
    found[RECORDS] += 1
    return _scan_headers(data, position, end, found), offset_delta


@helper
def _scan_span(data: NDArray[np.uint8], span: NDArray[np.int64], found: NDArray[np.int64]) -> Any:
    """Adds one batch's records to the findings. Returns the fault and the index of the record that has it."""
    position, end = span[START], span[END]
    least_delta = np.int64(0)
    for index in range(span[COUNT]):
        length, position = _int_varint(data, position, end)
        if position < 0:
            return RECORDS_CUT_SHORT, index
        if length < 1 or length > end - position:
            return BAD_RECORD_LENGTH, index
        fault, offset_delta = _scan_record(data, position, position + length, span, least_delta, found)
        if fault != SOUND:
            return fault, index
        least_delta = offset_delta + 1
        position += length
    return SOUND if position == end else BYTES_AFTER_RECORDS, span[COUNT]


@kernel(BYTES_IN, LONG_ROWS_IN, LONGS_OUT)
def scan_spans(data: NDArray[np.uint8], spans: NDArray[np.int64], found: NDArray[np.int64]) -> Any:
    """Fills `found` (int64, shape (FINDINGS,)) for all spans together and returns the fault. FAULTY is then
    the index of the faulty record, counted over all spans.
    """
    found[:] = 0
    found[MIN_TIMESTAMP] = _LAST_TIMESTAMP
    found[MAX_TIMESTAMP] = _FIRST_TIMESTAMP
    for row in range(spans.shape[0]):
        before = found[RECORDS]
        fault, index = _scan_span(data, spans[row], found)
        if fault != SOUND:
            found[FAULT] = fault
            found[FAULTY] = before + index
            return fault
    return SOUND


@kernel(BYTES_IN, LONG_ROWS_IN, LONG_ROWS_OUT)
def scan_each(data: NDArray[np.uint8], spans: NDArray[np.int64], found: NDArray[np.int64]) -> Any:
    """Fills `found` (int64, shape (batches, FINDINGS)) for each span. Returns how many spans are sound.
    `spans` may have further columns."""
    sound = 0
    for row in range(spans.shape[0]):
        findings = found[row]
        findings[:] = 0
        findings[MIN_TIMESTAMP] = _LAST_TIMESTAMP
        findings[MAX_TIMESTAMP] = _FIRST_TIMESTAMP
        fault, index = _scan_span(data, spans[row], findings)
        findings[FAULT] = fault
        findings[FAULTY] = index
        sound += fault == SOUND
    return sound


@kernel(BYTES_IN, LONG_ROWS_IN, LONG, LONG, LONG_ROWS_OUT)
def timestamps_outside(
    data: NDArray[np.uint8], spans: NDArray[np.int64], earliest: int, latest: int, found: NDArray[np.int64]
) -> Any:
    """Fills `found` (int64, shape (rows, 2)) with index and timestamp of the first records of a sound span
    whose timestamp is outside `[earliest, latest]`, as many as there are rows. Returns their count. A
    timestamp of -1 means none, and is never outside.
    """
    count = 0
    position, end = spans[0, START], spans[0, END]
    for index in range(spans[0, COUNT]):
        length, position = _int_varint(data, position, end)
        timestamp_delta, _ = _long_varint(data, position + 1, end)
        position += length
        timestamp = spans[0, BASE_TIMESTAMP] + timestamp_delta
        if (timestamp < earliest or timestamp > latest) and timestamp != -1:
            if count == found.shape[0]:
                break
            found[count, 0] = index
            found[count, 1] = timestamp
            count += 1
    return count


@helper
def _has_key(data: NDArray[np.uint8], position: int, end: int) -> Any:
    """True if the key of the record whose length ends at `position` is not null."""
    _, after = _long_varint(data, position + 1, end)
    _, after = _int_varint(data, after, end)
    length, _ = _int_varint(data, after, end)
    return length >= 0


@kernel(BYTES_IN, LONG_ROWS_IN, LONGS_OUT)
def null_keys(data: NDArray[np.uint8], spans: NDArray[np.int64], found: NDArray[np.int64]) -> Any:
    """Fills `found` (int64, shape (rows,)) with the indices of the first records of a sound span that have no
    key, as many as there are rows. Returns their count. An empty key is a key."""
    count = 0
    position, end = spans[0, START], spans[0, END]
    for index in range(spans[0, COUNT]):
        length, position = _int_varint(data, position, end)
        if not _has_key(data, position, end):
            if count == found.shape[0]:
                break
            found[count] = index
            count += 1
        position += length
    return count


@kernel(BYTES_IN, LONG_ROWS_IN, LONGS_IN, LONGS_OUT)
def judge_keys(
    data: NDArray[np.uint8], spans: NDArray[np.int64], needed: NDArray[np.int64], sound: NDArray[np.int64]
) -> Any:
    """Sets `sound` to 0 for each sound span that has a record without a key, where keys are `needed` (not 0).
    Both are int64 of shape (batches,). Returns how many are sound then. `spans` may have further columns."""
    count = 0
    for row in range(spans.shape[0]):
        if sound[row] != 0 and needed[row] != 0:
            position, end = spans[row, START], spans[row, END]
            for _ in range(spans[row, COUNT]):
                length, position = _int_varint(data, position, end)
                if not _has_key(data, position, end):
                    sound[row] = 0
                    break
                position += length
        count += sound[row]
    return count


@kernel(BYTES_IN, LONG_ROWS_IN, LONG, LONG, LONGS_OUT)
def first_since(
    data: NDArray[np.uint8], spans: NDArray[np.int64], timestamp: int, offset: int, found: NDArray[np.int64]
) -> Any:
    """Finds the first record of a sound span at or after both `timestamp` and `offset`. Writes its offset and
    its timestamp into `found` (int64, shape (2,)). Returns 1 if there is one, else 0."""
    position, end = spans[0, START], spans[0, END]
    is_append_time = spans[0, TIMESTAMP_TYPE] == 1
    for _ in range(spans[0, COUNT]):
        length, position = _int_varint(data, position, end)
        timestamp_delta, after = _long_varint(data, position + 1, end)
        offset_delta, after = _int_varint(data, after, end)
        position += length
        created = spans[0, BASE_TIMESTAMP] + timestamp_delta
        time = spans[0, APPEND_TIMESTAMP] if is_append_time else created
        if time >= timestamp and spans[0, BASE_OFFSET] + offset_delta >= offset:
            found[0] = spans[0, BASE_OFFSET] + offset_delta
            found[1] = time
            return 1
    return 0


@helper
def _copy(out: NDArray[np.uint8], to: int, data: NDArray[np.uint8], start: int, length: int) -> Any:
    """Returns the position after the copied bytes. Indices are unsigned: a signed index may count from the
    end, and the check for that keeps the loop from being vectorised.
    """
    target, source = np.uint64(to), np.uint64(start)
    for index in range(np.uint64(length)):
        out[target + index] = data[source + index]
    return start + length


@kernel(BYTES_IN, LONG_ROWS_IN, BYTES_IN, BYTES_OUT)
def copy_kept(
    data: NDArray[np.uint8], spans: NDArray[np.int64], kept: NDArray[np.uint8], out: NDArray[np.uint8]
) -> Any:
    """Copies those records of a sound span for which `kept` (uint8, one entry per record) is not 0. `out` has
    room for all. Returns how many bytes were copied."""
    position, end = spans[0, START], spans[0, END]
    to: Any = 0
    for index in range(spans[0, COUNT]):
        begin = position
        length, position = _int_varint(data, position, end)
        position += length
        if kept[index]:
            _copy(out, to, data, begin, position - begin)
            to += position - begin
    return to


@helper
def _copy_field(
    data: NDArray[np.uint8],
    position: int,
    offsets: NDArray[np.int32],
    valid: NDArray[np.uint8],
    content: NDArray[np.uint8],
    row: int,
) -> Any:
    """Copies a nullable field into row `row` of a binary column. Returns the position after it."""
    length, position = _int_varint(data, position, position + 5)
    begin = offsets[row]
    valid[row] = length >= 0
    length = max(length, 0)
    offsets[row + 1] = begin + length
    return _copy(content, begin, data, position, length)


@kernel(
    *(BYTES_IN, LONG_ROWS_IN),
    *(LONGS_OUT, LONGS_OUT, INTS_OUT),
    *(INTS_OUT, BYTES_OUT, BYTES_OUT),
    *(INTS_OUT, BYTES_OUT, BYTES_OUT),
    *(INTS_OUT, INTS_OUT, BYTES_OUT, BYTES_OUT, INTS_OUT, BYTES_OUT, BYTES_OUT),
)
def fill_columns(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    offsets: NDArray[np.int64],
    timestamps_ms: NDArray[np.int64],
    timestamp_types: NDArray[np.int32],
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
    """Decodes sound spans into Arrow's columns and returns the count of records.

    `scan_spans` says how large the arrays must be. For n records with h headers in all: `offsets` and
    `timestamps_ms` (int64) and `timestamp_types` (int32) have shape (n,). Column offsets (int32) have one
    entry more than the column has rows, validity (uint8) has one byte per row: n for keys and values, h for
    header names and contents. `list_offsets` has shape (n + 1,).
    """
    row = 0
    header = 0
    for span in range(spans.shape[0]):
        position, end = spans[span, START], spans[span, END]
        for _ in range(spans[span, COUNT]):
            _, position = _int_varint(data, position, end)
            timestamp_delta, position = _long_varint(data, position + 1, end)
            offset_delta, position = _int_varint(data, position, end)
            offsets[row] = spans[span, BASE_OFFSET] + offset_delta
            timestamp_types[row] = spans[span, TIMESTAMP_TYPE]
            is_append_time = spans[span, TIMESTAMP_TYPE] == 1
            created = spans[span, BASE_TIMESTAMP] + timestamp_delta
            timestamps_ms[row] = spans[span, APPEND_TIMESTAMP] if is_append_time else created
            position = _copy_field(data, position, key_offsets, key_valid, keys, row)
            position = _copy_field(data, position, value_offsets, value_valid, values, row)
            count, position = _int_varint(data, position, end)
            for _ in range(count):
                position = _copy_field(data, position, name_offsets, name_valid, names, header)
                position = _copy_field(data, position, content_offsets, content_valid, contents, header)
                header += 1
            row += 1
            list_offsets[row] = header
    return row
