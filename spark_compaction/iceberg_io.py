"""The bucket for PyIceberg: Iceberg locations in, objects of the bucket out.

Promises:
- It deletes nothing. PyIceberg would clean up after a failed commit, but only the garbage collector deletes
  objects (docs/design/history.md#unreferenced-files).
- It remembers what was written, so that a publish can record it.
"""

import io
from typing import Self

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from spark_compaction.bucket import Bucket, BucketAddress
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectNotFound

_RANGE_BUFFER_BYTES = 256 << 10


class BucketIO(FileIO):
    def __init__(self, address: BucketAddress, bucket: Bucket) -> None:
        super().__init__()
        self._address = address
        self._bucket = bucket
        self.written: list[ObjectKey] = []

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._address.key_of(location), self._bucket)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._address.key_of(location), self._bucket, self.written)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Does nothing: the garbage collector finds the object under the job's prefix."""


class _Input(InputFile):
    def __init__(self, location: str, key: ObjectKey, bucket: Bucket) -> None:
        super().__init__(location)
        self._key = key
        self._bucket = bucket

    def __len__(self) -> int:
        return self._bucket.size(self._key)

    def exists(self) -> bool:
        try:
            self._bucket.size(self._key)
        except ObjectNotFound:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - the library's signature
        """Metadata is read whole; of a data file only the requested ranges are read."""
        if not self._location.endswith(".parquet"):
            return io.BytesIO(self._bucket.get(self._key))
        return io.BufferedReader(_Ranges(self._key, self._bucket), _RANGE_BUFFER_BYTES)


class _Output(OutputFile):
    def __init__(self, location: str, key: ObjectKey, bucket: Bucket, written: list[ObjectKey]) -> None:
        super().__init__(location)
        self._key = key
        self._bucket = bucket
        self._written = written

    def __len__(self) -> int:
        return self._bucket.size(self._key)

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Input(self._location, self._key, self._bucket)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - names are never used twice
        self._written.append(self._key)
        return _Upload(self._key, self._bucket)


class _Upload(io.BytesIO):
    """Put as one object when closed without an error."""

    def __init__(self, key: ObjectKey, bucket: Bucket) -> None:
        super().__init__()
        self._key = key
        self._bucket = bucket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self._bucket.put(self._key, self.getvalue())
        super().close()


class _Ranges(io.RawIOBase):
    def __init__(self, key: ObjectKey, bucket: Bucket) -> None:
        self._key = key
        self._bucket = bucket
        self._size = bucket.size(key)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._bucket.get(self._key, self._at, min(self._at + len(target), self._size))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
