"""A checksum of records that does not depend on how they are cut into batches, row groups or files.

It is computed from the rows as they were decoded, and again from the Parquet file that was written of them. Each column
is a stream of bytes: whether each row has a value, how long each value is, and the values one behind the other. The
checksum is the CRC-32C of each stream. So a row that is missing, moved or changed makes another checksum, and so does
a null that became empty.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c


class RecordDigest:
    """Of rows of RECORD_SCHEMA, added in order."""

    def __init__(self) -> None:
        self._crcs: dict[str, int] = {}
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._rows += rows.num_rows
        for field, column in zip(rows.schema, rows.columns, strict=True):
            for name, content in _streams(field.name, column):
                self._crcs[name] = crc32c(content, self._crcs.get(name, 0))

    @property
    def value(self) -> str:
        """Equal for equal rows."""
        return " ".join([str(self._rows), *(f"{self._crcs[name]:08x}" for name in sorted(self._crcs))])


def _streams(name: str, column: "pa.Array[Any]") -> Iterator[tuple[str, Any]]:
    """The column's streams of bytes, each under a name."""
    kind = column.type
    yield f"{name}?", np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
    if pa.types.is_list(kind):
        lengths = np.diff(_offsets(column))
        yield f"{name}#", np.ascontiguousarray(lengths)
        yield from _streams(f"{name}.", column.flatten())  # type: ignore[attr-defined]
    elif pa.types.is_struct(kind):
        for index, child in enumerate(column.flatten()):  # type: ignore[attr-defined]
            yield from _streams(f"{name}{index}", child)
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        filled = column.fill_null(b"" if pa.types.is_binary(kind) else "")
        offsets = _offsets(filled)
        yield f"{name}#", np.ascontiguousarray(np.diff(offsets))
        content = filled.buffers()[2]
        if content is not None and len(offsets):
            yield name, memoryview(content)[int(offsets[0]) : int(offsets[-1])]
    else:
        numbers = column.cast(pa.int64()).fill_null(0)
        yield name, np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False))


def _offsets(column: "pa.Array[Any]") -> Any:
    """Where each value begins, and the last one ends; of the rows of this array alone."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(memoryview(buffer), np.int32)[column.offset : column.offset + len(column) + 1]
