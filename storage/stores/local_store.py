"""Objects as files in one directory: `file:///directory`.

Promises:
- An object is whole and on disk when `put` returns. It is written under another name, synced and renamed, and
  the directories are synced.
- What a killed process leaves is in `.uploads`. No listing shows that folder, and opening a store sweeps it.
- Blocking calls run in threads. A `put` that has seen its cancellation publishes nothing.
- At most `_STAGED_BYTES` of buffers are kept for each writing thread.

If the file system can, bytes go from memory to the device without a copy in the page cache (`O_DIRECT`),
because the writer will not read them back. Making, filling and freeing pages of that cache costs twice the
CPU. Direct writes start at whole blocks in memory and in the file, so bytes are staged in a buffer. The end
of the file, less than a block, goes through the page cache.
"""

import asyncio
import contextlib
import errno
import fcntl
import mmap
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import numpy as np

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.segments.keys import checked_key
from storage.stores.object_store import (
    ObjectChanged,
    ObjectInfo,
    ObjectNotFound,
    StoreUnavailable,
    TaggedObject,
    content_tag,
)
from storage.threads import Threads

_BLOCK_BYTES = 4096
"""A multiple of what devices and file systems need."""
_STAGED_BYTES = 1 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectWrites:
    """Buffers are kept between files: fresh memory costs the kernel as much as the copy into it."""

    def __init__(self) -> None:
        self._buffers: list[mmap.mmap] = []

    def write(self, path: Path, chunks: Sequence[Buffer]) -> None:
        """Writes a file that does not exist yet. Raises OSError, and may leave a part of the file."""
        buffer = self._buffers.pop() if self._buffers else mmap.mmap(-1, _STAGED_BYTES)
        try:
            descriptor = _open_new(path)
            try:
                _write_staged(descriptor, chunks, buffer)
                os.fsync(descriptor)
                _forget(descriptor)
            finally:
                os.close(descriptor)
        finally:
            self._buffers.append(buffer)


def _open_new(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | _DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL or not _DIRECT:
            raise
        path.unlink(missing_ok=True)  # some file systems make the file before they refuse
        return os.open(path, flags, 0o666)


def _write_staged(descriptor: int, chunks: Sequence[Buffer], buffer: mmap.mmap) -> None:
    staged, written, filled = np.frombuffer(buffer, np.uint8), memoryview(buffer), 0
    for chunk in chunks:
        rest = np.frombuffer(chunk, np.uint8)
        while len(rest):
            taken = rest[: len(staged) - filled]
            staged[filled : filled + len(taken)] = taken  # without the GIL
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == len(staged):
                _write_all(descriptor, written)
                filled = 0
    whole = filled - filled % _BLOCK_BYTES
    _write_all(descriptor, written[:whole])
    _use_page_cache(descriptor)
    _write_all(descriptor, written[whole:filled])


def _write_all(descriptor: int, rest: memoryview) -> None:
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not _is_direct(descriptor):
                raise
            # The device's blocks are larger, or the last write ended within a block.
            _use_page_cache(descriptor)


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT)


def _use_page_cache(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_DIRECT)


def _forget(descriptor: int) -> None:
    """Drops what is in the page cache anyway. The system then uses the same memory for the next object:
    writing to memory that it never used costs five times the CPU.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


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
                f"cannot write into the store's directory {self._directory}; is it there, may this user "
                "write?"
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
        return ObjectInfo(
            key=key, size_bytes=stat.st_size, modified_at=datetime.fromtimestamp(stat.st_mtime, UTC)
        )

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
