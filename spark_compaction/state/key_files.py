"""Key files: which offset is the latest of each key, for the records that a job adds to a table.

The tasks that read the log write them under the job's prefix, so that they are swept with it. The tasks that
write the table read those of their partition.

Promise: a file that is not the one that was written is never used; each has a checksum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from spark_compaction.bucket import Bucket
from storage.arrow.latest_keys import SLOT_BYTES, LatestKeys
from storage.identifiers import ObjectKey

_CHUNK_ROWS: Final = 1 << 18
_NO_END: Final = 1 << 62


class KeyFileDamaged(Exception):
    """A key file is not the one that was written. The job has to be done again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    object_key: ObjectKey
    entries: int
    """A key may have several."""
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFiles:
    """Those of a partition. `secret` is that of their hashes, drawn for the job."""

    secret: bytes
    files: Sequence[KeyFile]


class KeyWriter:
    """Takes records of RECORD_SCHEMA in any order. `close` puts the object."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._done: list[NDArray[np.int64]] = []
        self._waiting = self._latest()
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        for start in range(0, rows.num_rows, _CHUNK_ROWS):
            some = rows.slice(start, _CHUNK_ROWS)
            if self._rows + some.num_rows > _CHUNK_ROWS:
                self._flush()
            self._waiting.put(some)
            self._rows += some.num_rows

    def close(self, bucket: Bucket, prefix: str) -> KeyFile:
        self._flush()
        data = np.concatenate(self._done).astype("<i8").tobytes()
        key = ObjectKey(f"{prefix}{uuid4().hex}.keys")
        bucket.put(key, data)
        return KeyFile(object_key=key, entries=sum(map(len, self._done)), crc32c=crc32c(data))

    def _flush(self) -> None:
        self._done.append(self._waiting.entries())
        self._waiting, self._rows = self._latest(), 0

    def _latest(self) -> LatestKeys:
        return _latest(_CHUNK_ROWS, self._secret)


class LastRecords:
    """Which records of a partition are the last of their keys, as far as its key files say."""

    def __init__(self, bucket: Bucket, keys: KeyFiles) -> None:
        """Raises KeyFileDamaged, ObjectNotFound or StoreUnavailable."""
        self._latest = _latest(sum(file.entries for file in keys.files), keys.secret)
        for file in keys.files:
            data = bucket.get(file.object_key)
            if len(data) != file.entries * SLOT_BYTES or crc32c(data) != file.crc32c:
                raise KeyFileDamaged(f"{file.object_key} is not the key file that was written")
            self._latest.put_entries(np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, 3))
        assert self._latest.passes == 1, "the table has room for all entries"

    def among(self, records: pa.RecordBatch) -> NDArray[np.bool_]:
        """True for each record that no other replaces. Tombstones and records without a key are not."""
        kept, _ = self._latest.kept(records, tombstones_to=_NO_END, end=_NO_END)
        return kept

    def replaced(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """True for each row of a table, with `offset` and `key`, that a record replaces."""
        columns = [rows.column("offset"), rows.column("key"), pa.nulls(rows.num_rows, pa.binary())]
        untold = pa.RecordBatch.from_arrays(columns, names=["offset", "key", "value"])
        kept, _ = self._latest.kept(untold, tombstones_to=0, end=_NO_END)
        return ~kept


def _latest(keys: int, secret: bytes) -> LatestKeys:
    """A table in which so many keys find room."""
    return LatestKeys((3 * keys + 16) * SLOT_BYTES, secret)
