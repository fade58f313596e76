"""Reads row groups of history files as Arrow columns, so that agents can serve them
(docs/design/history.md#parquet-is-the-log).

Promises:
- A row group's range holds every byte that the decoding of its records needs, except the file's footer.
- The columns of a record are the first of a file. Columns behind them (fields of values, for SQL) are not
  read.
- Damaged bytes are an error: history files have checksums of their pages.
- Offsets rise, between the bounds that the footer has. An encrypted file's footer is signed, and its column
  of offsets is not: without this, records could be left out for a changed offset.
- Without its key, only what is in the clear is asked of an encrypted file: pyarrow would end the process.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.arrow.arrow_schema import RECORD_SCHEMA
from storage.encryption.parquet_keys import check_name, key_id_of, to_decrypt
from storage.encryption.sealed_batches import SealBroken, TopicKey
from storage.identifiers import KeyId

_RECORD_COLUMNS = ["partition", *RECORD_SCHEMA.names]
_RECORD_CHUNKS = 8
"""Column chunks of these columns: headers have two."""
FOOTER_GUESS_BYTES = 64 << 10
"""Bytes at the end of a file that hold the footers of most files."""
_OFFSET = 1
"""The column of offsets."""
_END_BYTES = 8
"""The footer's length and the magic."""


class DamagedRowGroup(Exception):
    """The bytes are not those of the row group."""


def row_group_range(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Returns the position and the length of the records' column chunks, which lie back to back. The metadata
    of an encrypted file must have been read with its key.
    """
    chunks = [group.column(number) for number in range(_RECORD_CHUNKS)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    return min(starts), max(ends) - min(starts)


def footer_bytes(tail: bytes | memoryview) -> int:
    """Returns how many bytes at a file's end the footer takes, given some of them."""
    return int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES


def key_id_of_footer(footer: bytes | memoryview, object_key: str) -> KeyId | None:
    """Returns the id of the key that a file needs. None: it is in the clear. Raises DamagedRowGroup, also if
    it is not the file that the object's key names. What an encrypted file's footer says counts once
    `read_row_group` has read it with the key.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        check_name(metadata, object_key)
        return key_id_of(metadata)
    except (pa.ArrowException, OSError, ValueError, SealBroken) as error:
        raise DamagedRowGroup(str(error)) from error


def read_row_group(
    footer: bytes | memoryview,
    position: int,
    pieces: Sequence[memoryview],
    partition: int,
    key: TopicKey | None = None,
) -> pa.RecordBatch:
    """Returns the records of the row group at `position` as RECORD_SCHEMA. `pieces` are its bytes in order,
    and `key` the one of `key_id_of_footer`. Raises DamagedRowGroup.
    """
    decryption = None if key is None else to_decrypt({key.key_id: key})
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer), decryption_properties=decryption)
        number = _number(metadata, position)
        part = _Part(position, b"".join(pieces) if len(pieces) > 1 else pieces[0])
        file = pq.ParquetFile(
            pa.PythonFile(part, mode="r"),
            metadata=metadata,
            decryption_properties=decryption,
            page_checksum_verification=True,
        )
        rows = file.read_row_group(number, columns=_RECORD_COLUMNS, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedRowGroup(str(error)) from error
    bounds = metadata.row_group(number).column(0).statistics
    if bounds is None or (bounds.min, bounds.max) != (partition, partition):
        raise DamagedRowGroup(f"the row group at byte {position} is not one of partition {partition}")
    [batch] = rows.drop_columns(["partition"]).cast(RECORD_SCHEMA).combine_chunks().to_batches()
    try:
        OffsetCheck(metadata, [number]).take(batch.column("offset").to_numpy())
    except ValueError as error:
        raise DamagedRowGroup(str(error)) from error
    return batch


class OffsetCheck:
    """Checks the offsets of row groups that are read one after another. `metadata` of an encrypted file must
    have been read with its key, unless only columns in the clear are read.
    """

    def __init__(self, metadata: pq.FileMetaData, numbers: Sequence[int]) -> None:
        self._left = [
            (group.num_rows, *_bounds(group)) for group in map(metadata.row_group, reversed(numbers))
        ]
        self._at = 0
        """Rows of the current group so far."""
        self._last = -1

    def take(self, offsets: NDArray[np.int64]) -> None:
        """Takes the offsets of the next rows. Raises ValueError."""
        while len(offsets):
            if not self._left:
                raise ValueError("row groups have more rows than the footer says")
            count, first, last = self._left[-1]
            some, offsets = np.split(offsets, [count - self._at])
            begins_wrong = self._at == 0 and some[0] != first
            self._at += len(some)
            if self._at == count:
                self._left.pop()
                self._at = 0
            ends_wrong = self._at == 0 and some[-1] != last
            if begins_wrong or ends_wrong or some[0] <= self._last or (np.diff(some) <= 0).any():
                raise ValueError(f"the offsets of a row group are not those from {first} to {last}")
            self._last = int(some[-1])


def _bounds(group: pq.RowGroupMetaData) -> tuple[int, int]:
    bounds: Any = group.column(_OFFSET).statistics
    if bounds is None or not bounds.has_min_max:
        raise ValueError("a row group has no bounds of its offsets")
    return bounds.min, bounds.max


def _number(metadata: pq.FileMetaData, position: int) -> int:
    for number in range(metadata.num_row_groups):
        first = metadata.row_group(number).column(0)  # in the clear, also in an encrypted file
        if (first.dictionary_page_offset or first.data_page_offset) == position:
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
