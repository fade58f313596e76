"""Reads row groups of history files as Arrow columns, so that agents can serve them
(docs/design/history.md#parquet-is-the-log).

Promises:
- A row group's range holds every byte that the decoding of its records needs, except the file's footer.
- The columns of a record are the first of a file. Columns behind them (fields of values, for SQL) are not
  read.
- Damaged bytes are an error: history files have checksums of their pages.
"""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from storage.arrow.arrow_schema import RECORD_SCHEMA

_RECORD_COLUMNS = ["partition", *RECORD_SCHEMA.names]
_RECORD_CHUNKS = 8
"""Column chunks of these columns: headers have two."""
FOOTER_GUESS_BYTES = 64 << 10
"""Bytes at the end of a file that hold the footers of most files."""
_END_BYTES = 8
"""The footer's length and the magic."""


class DamagedRowGroup(Exception):
    """The bytes are not those of the row group."""


def row_group_range(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Returns the position and the length of the records' column chunks, which lie back to back."""
    chunks = [group.column(number) for number in range(_RECORD_CHUNKS)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    return min(starts), max(ends) - min(starts)


def footer_bytes(tail: bytes | memoryview) -> int:
    """Returns how many bytes at a file's end the footer takes, given some of them."""
    return int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES


def read_row_group(
    footer: bytes | memoryview, position: int, pieces: Sequence[memoryview], partition: int
) -> pa.RecordBatch:
    """Returns the records of the row group at `position` as RECORD_SCHEMA. `pieces` are its bytes in order.
    Raises DamagedRowGroup.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        number = _number(metadata, position)
        part = _Part(position, b"".join(pieces) if len(pieces) > 1 else pieces[0])
        file = pq.ParquetFile(
            pa.PythonFile(part, mode="r"), metadata=metadata, page_checksum_verification=True
        )
        rows = file.read_row_group(number, columns=_RECORD_COLUMNS, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedRowGroup(str(error)) from error
    bounds = metadata.row_group(number).column(0).statistics
    if bounds is None or (bounds.min, bounds.max) != (partition, partition):
        raise DamagedRowGroup(f"the row group at byte {position} is not one of partition {partition}")
    [batch] = rows.drop_columns(["partition"]).cast(RECORD_SCHEMA).combine_chunks().to_batches()
    return batch


def _number(metadata: pq.FileMetaData, position: int) -> int:
    for number in range(metadata.num_row_groups):
        if row_group_range(metadata.row_group(number))[0] == position:
            return number
    raise ValueError(f"no row group begins at byte {position}")


class _Part(io.RawIOBase):
    """A file with only one range of its bytes."""

    def __init__(self, start: int, data: bytes | memoryview) -> None:
        self._start = start
        self._data = memoryview(data)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = self._start + len(self._data)
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: end}[whence]
        return self._at

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        first = self._at - self._start
        if first < 0:
            raise ValueError(f"byte {self._at} is not in the range from {self._start}")
        data = self._data[first : first + len(target)]
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
