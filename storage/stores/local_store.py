"""Objects as files in one directory: `file:///directory`.

Promise: an object is whole and on disk when `put` returns. It is written to another name, synced and renamed,
and the directories are synced. What a killed process leaves is in `.uploads`: no listing shows that folder,
and opening a store sweeps it. Blocking calls run in threads. A `put` that has seen its cancellation publishes
nothing.
"""

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.segments.keys import checked_key
from storage.stores.direct_writes import DirectWrites
from storage.stores.object_store import (
    ObjectChanged,
    ObjectInfo,
    ObjectNotFound,
    StoreUnavailable,
    TaggedObject,
    content_tag,
)
from storage.threads import Threads

_UPLOADS = ".uploads"
_ABANDONED_AFTER_S = 3600.0


class LocalStore:
    def __init__(self, directory: Path, threads: int = 8) -> None:
        """Makes the directory if necessary. Raises StoreUnavailable if it cannot. At most `threads` calls run
        at once."""
        self._directory = directory
        self._threads = Threads("store", threads)
        self._uploads = directory / _UPLOADS
        self._writes = DirectWrites()
        try:
            self._uploads.mkdir(parents=True, exist_ok=True)
            self._sweep_abandoned(time.time())
        except OSError as error:
            raise self._unavailable(error) from error

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        cancelled = threading.Event()
        try:
            await self._threads.run(self._put, self._path(key), chunks, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except OSError as error:
            raise self._unavailable(error) from error

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        """The condition holds among all processes that use this directory through this class."""
        cancelled = threading.Event()
        try:
            await self._threads.run(self._put_if, key, chunks, expected_tag, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except OSError as error:
            raise self._unavailable(error) from error

    async def get_tagged(self, key: ObjectKey) -> TaggedObject:
        data = await self.get(key)
        return TaggedObject(data=data, tag=content_tag(data))

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        try:
            return await self._threads.run(self._get, self._path(key), start, end)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise ObjectNotFound(key) from None
        except OSError as error:
            raise self._unavailable(error) from error

    async def head(self, key: ObjectKey) -> ObjectInfo:
        info = await self._threads.run(self._info, key)
        if info is None:
            raise ObjectNotFound(key)
        return info

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        try:
            await self._threads.run(self._delete, [self._path(key) for key in keys])
        except OSError as error:
            raise self._unavailable(error) from error

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        try:
            keys = await self._threads.run(self._keys, prefix)
        except OSError as error:
            raise self._unavailable(error) from error
        for key in keys:
            info = await self._threads.run(self._info, key)
            if info is not None:
                yield info

    async def probe(self) -> None:
        if not await self._threads.run(os.access, self._uploads, os.W_OK):
            raise StoreUnavailable(
                f"cannot write into the store's directory {self._directory}; is it there, may this user write?"
            )

    async def close(self) -> None:
        self._threads.close()

    def _path(self, key: ObjectKey) -> Path:
        if key.split("/", 1)[0] == _UPLOADS:
            raise ValueError(f"{key!r} lies in {_UPLOADS}, which the store keeps for itself")
        return self._directory / checked_key(key)

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"cannot use the store's directory {self._directory}: {error}")

    def _put(self, path: Path, chunks: Sequence[Buffer], cancelled: threading.Event) -> None:
        upload = self._uploads / uuid4().hex
        try:
            self._writes.write(upload, chunks)
            self._make_directories(path.parent)
            if not cancelled.is_set():
                upload.replace(path)
                _sync_directory(path.parent)
        finally:
            upload.unlink(missing_ok=True)

    def _put_if(
        self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None, cancelled: threading.Event
    ) -> None:
        path = self._path(key)
        lock = os.open(self._uploads, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                tag = content_tag(self._get(path, 0, None))
            except (FileNotFoundError, NotADirectoryError):
                tag = None
            if tag != expected_tag:
                raise ObjectChanged(key)
            self._put(path, chunks, cancelled)
        finally:
            os.close(lock)

    def _make_directories(self, directory: Path) -> None:
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _sync_directory(each.parent)

    @staticmethod
    def _get(path: Path, start: int, end: int | None) -> bytes:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            stop = size if end is None else min(end, size)
            pieces = []
            while start < stop:
                piece = os.pread(file.fileno(), stop - start, start)
                if not piece:
                    break
                pieces.append(piece)
                start += len(piece)
            return b"".join(pieces)

    def _info(self, key: ObjectKey) -> ObjectInfo | None:
        path = self._path(key)
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        if not path.is_file():
            return None
        return ObjectInfo(key=key, size_bytes=stat.st_size, modified_at=datetime.fromtimestamp(stat.st_mtime, UTC))

    @staticmethod
    def _delete(paths: Sequence[Path]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        for parent in {path.parent for path in paths}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _sync_directory(parent)

    def _keys(self, prefix: str) -> Sequence[ObjectKey]:
        # Walk only the deepest directory that the prefix names as a whole.
        top = self._directory / prefix.rpartition("/")[0]
        found = []
        for directory, subdirectories, files in os.walk(top):
            if Path(directory) == self._directory and _UPLOADS in subdirectories:
                subdirectories.remove(_UPLOADS)
            relative = Path(directory).relative_to(self._directory)
            found += [key for name in files if (key := (relative / name).as_posix()).startswith(prefix)]
        return [ObjectKey(key) for key in sorted(found)]

    def _sweep_abandoned(self, now_s: float) -> None:
        for upload in self._uploads.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if upload.stat().st_mtime < now_s - _ABANDONED_AFTER_S:
                    upload.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
