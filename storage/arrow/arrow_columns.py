"""Records as Arrow columns, and back. What is read back equals what was written
(docs/design/promises.md#p6-equality).

Promises:
- No record becomes a Python object. Python walks the batches, native code walks the records.
- Offsets are assigned here, from the run's first offset on. Control batches are skipped: they take offsets
  but hold no user's records.
- Under LogAppendTime every record has its batch's time.
- A timestamp of -1 (none) is null in Arrow, and -1 again on the way back. Every other timestamp has an Arrow
  value.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.arrow.arrow_encoding import encode_batch
from storage.arrow.arrow_schema import HISTORY_SCHEMA, MICROSECONDS, RECORD_SCHEMA
from storage.batches.batch_kernels import (
    HEADER_KEY_BYTES,
    HEADER_VALUE_BYTES,
    HEADERS,
    KEY_BYTES,
    RECORDS,
    SPAN_COLUMNS,
    VALUE_BYTES,
    fill_columns,
)
from storage.batches.batch_validation import (
    NO_TIMESTAMP_MS,
    BatchFault,
    InvalidBatch,
    check_crc,
    plain_records,
    scan,
    span_row,
)
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import MAGIC_V2, index_batches, read_header

__all__ = ["HISTORY_SCHEMA", "RECORD_SCHEMA", "decode_batches", "decode_pieces", "encode_batch"]

MOST_PLAIN_BYTES = 2**31 - 1
"""The most bytes of records in one RecordBatch: offsets within an Arrow column have 32 bits."""


PIECE_BYTES = 4 << 20
"""About the most bytes of records in a piece, which the last batch in it may exceed by itself."""


def decode_batches(
    buffer: Buffer,
    start: int,
    end: int,
    base_offset: int,
    is_left_out: NDArray[np.bool_] | None = None,
) -> pa.RecordBatch:
    """Returns the records of the batches that lie back to back in `[start, end)`. The first batch starts at
    `base_offset`. `is_left_out` (shape (batches,)) says whose records are not wanted.

    Checks the CRC32C and the structure of what it reads. Raises InvalidBatch, and ValueError if the batches
    do not fill the range exactly.
    """
    [(rows, _)] = _pieces(memoryview(buffer), start, end, base_offset, MOST_PLAIN_BYTES, is_left_out)
    return rows


def decode_pieces(
    buffer: Buffer,
    base_offset: int,
    piece_bytes: int = PIECE_BYTES,
    is_left_out: NDArray[np.bool_] | None = None,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """As `decode_batches`, for all of `buffer`, in pieces: a batch may have thousands of times its bytes once
    it is decompressed. Yields the records and the offset after them. Without batches there is no piece."""
    if len(buffer):
        yield from _pieces(memoryview(buffer), 0, len(buffer), base_offset, piece_bytes, is_left_out)


def _pieces(
    data: memoryview,
    start: int,
    end: int,
    base_offset: int,
    piece_bytes: int,
    is_left_out: NDArray[np.bool_] | None,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields at least one piece. None of its batches but the last one begins beyond `piece_bytes`."""
    sections: list[NDArray[np.uint8]] = []
    rows: list[tuple[int, ...]] = []
    size = 0
    for number, (position, size_bytes, last_offset_delta) in enumerate(
        index_batches(data, start, end).tolist()
    ):
        if size >= piece_bytes:
            yield _decoded(sections, rows), base_offset
            sections, rows, size = [], [], 0
        batch = data[position : position + size_bytes]
        header = read_header(batch)
        if header.magic != MAGIC_V2:
            raise InvalidBatch(
                BatchFault.UNSUPPORTED_FORMAT, f"message format {header.magic} at byte {position}"
            )
        check_crc(batch, header)
        if not header.is_control and (is_left_out is None or not is_left_out[number]):
            plain = plain_records(batch, header, MOST_PLAIN_BYTES - size)
            rows.append(span_row(header, size, size + len(plain), base_offset))
            sections.append(plain)
            size += len(plain)
        base_offset += last_offset_delta + 1
    yield _decoded(sections, rows), base_offset


def _decoded(sections: list[NDArray[np.uint8]], rows: list[tuple[int, ...]]) -> pa.RecordBatch:
    """The records of all sections. A row says where a batch's records are in the joined sections."""
    plain = sections[0] if len(sections) == 1 else np.concatenate([*sections, np.empty(0, np.uint8)])
    plain.flags.writeable = False
    spans = np.array(rows, np.int64).reshape(-1, SPAN_COLUMNS)
    columns = _Columns(scan(plain, spans))
    fill_columns(plain, spans, *columns.arrays())
    return columns.record_batch()


class _Binary:
    """A nullable binary column that a kernel fills."""

    def __init__(self, rows: int, content_bytes: int) -> None:
        self.offsets = np.zeros(rows + 1, np.int32)
        self.valid = np.empty(rows, np.uint8)
        self.content = np.empty(content_bytes, np.uint8)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        return self.offsets, self.valid, self.content

    def array(self, kind: pa.DataType) -> "pa.Array[Any]":
        buffers = [_bitmap(self.valid), pa.py_buffer(self.offsets.data), pa.py_buffer(self.content.data)]
        return pa.Array.from_buffers(kind, len(self.valid), buffers)


class _Columns:
    """All columns of RECORD_SCHEMA, as large as a scan said."""

    def __init__(self, findings: NDArray[np.int64]) -> None:
        rows, headers = int(findings[RECORDS]), int(findings[HEADERS])
        self._offsets = np.empty(rows, np.int64)
        self._timestamps_ms = np.empty(rows, np.int64)
        self._timestamp_types = np.empty(rows, np.int32)
        self._key = _Binary(rows, int(findings[KEY_BYTES]))
        self._value = _Binary(rows, int(findings[VALUE_BYTES]))
        self._list_offsets = np.zeros(rows + 1, np.int32)
        self._header_key = _Binary(headers, int(findings[HEADER_KEY_BYTES]))
        self._header_value = _Binary(headers, int(findings[HEADER_VALUE_BYTES]))

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Returns the arrays in the order of `fill_columns`' parameters."""
        return (
            *(self._offsets, self._timestamps_ms, self._timestamp_types),
            *self._key.arrays(),
            *self._value.arrays(),
            self._list_offsets,
            *self._header_key.arrays(),
            *self._header_value.arrays(),
        )

    def record_batch(self) -> pa.RecordBatch:
        rows = len(self._offsets)
        timestamps = [
            _bitmap(self._timestamps_ms != NO_TIMESTAMP_MS),
            pa.py_buffer((self._timestamps_ms * MICROSECONDS).data),
        ]
        headers_type = RECORD_SCHEMA.field("headers").type
        headers = pa.StructArray.from_arrays(
            [self._header_key.array(pa.string()), self._header_value.array(pa.binary())],
            fields=list(headers_type.value_type),
        )
        lists = [None, pa.py_buffer(self._list_offsets.data)]
        columns = [
            pa.array(self._offsets),
            pa.Array.from_buffers(RECORD_SCHEMA.field("timestamp").type, rows, timestamps),
            pa.array(self._timestamp_types),
            self._key.array(pa.binary()),
            self._value.array(pa.binary()),
            pa.Array.from_buffers(headers_type, rows, lists, children=[headers]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _bitmap(valid: NDArray[Any]) -> pa.Buffer | None:
    """Arrow's validity bits; None if all are valid."""
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid.astype(np.bool_), bitorder="little").data)
