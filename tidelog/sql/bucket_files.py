"""The bucket as files that DuckDB reads: `tidelog://<key>`, each read a ranged GET.

DuckDB's own reader of S3 is an extension, which it would fetch from the internet, and which knows nothing of
the settings for endpoints, keys, timeouts and retries that all of Tidelog shares.

Promises:
- Only files that were announced can be opened: the data files of a statement's tables, and its tail.
- At most `_KEPT_BYTES` of small files and of ends of large ones are kept; a file never changes.
"""

import asyncio
import io
import threading
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from fsspec.spec import AbstractFileSystem

from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.open_store import open_store
from tidelog.sql.settings import SqlSettings

SCHEME: Final = "tidelog"
_WHOLE_BYTES: Final = 1 << 20
_END_BYTES: Final = 128 << 10
_KEPT_BYTES: Final = 64 << 20
_AT_ONCE: Final = 32
_NEVER_CHANGED: Final = datetime(2000, 1, 1, tzinfo=UTC)

Result = TypeVar("Result")


class BucketFiles:
    """The bucket for threads, on an event loop of its own."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bucket", daemon=True)
        self._thread.start()
        self._store: ObjectStore | None = None
        self._sizes: dict[str, int] = {}
        self._local: dict[str, Path] = {}
        self._kept: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        """By path the position of the first byte and the bytes up to the file's end."""
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self.failure: Exception | None = None
        """Why the last read failed: DuckDB passes on no more than its words."""

    def announce(self, sizes: Mapping[ObjectKey, int], local: Mapping[str, Path]) -> None:
        """The files that may be read from now on, objects of the bucket and files of this machine."""
        self._sizes = {str(key): size for key, size in sizes.items()}
        self._sizes |= {name: path.stat().st_size for name, path in local.items()}
        self._local = dict(local)

    def prefetch(self, keys: Iterable[ObjectKey]) -> None:
        """Reads the ends of files, with the footers, many at once: DuckDB would read one after another."""
        wanted: list[str] = []
        room = _KEPT_BYTES // 2
        for path in map(str, keys):
            if path not in self._kept and room > 0:
                wanted.append(path)
                room -= self._sizes[path] - self._first_kept(path)
        self._wait(self._keep_ends(wanted))

    def read_whole(self, keys: Sequence[ObjectKey]) -> list[bytes]:
        """Small objects, many at once."""

        async def read() -> list[bytes]:
            store = await self._open()
            limit = asyncio.Semaphore(_AT_ONCE)

            async def one(key: ObjectKey) -> bytes:
                async with limit:
                    return bytes(await store.get(key))

            return list(await asyncio.gather(*map(one, keys)))

        return self._wait(read())

    def read(self, path: str, start: int, end: int) -> bytes:
        """The bytes `[start, end)` of a file."""
        try:
            local = self._local.get(path)
            if local is not None:
                with local.open("rb") as file:
                    file.seek(start)
                    return file.read(end - start)
            with self._lock:
                first, kept = self._kept.get(path, (0, None))
                if kept is not None and start >= first:
                    self._kept.move_to_end(path)
                    return kept[start - first : end - first]
            return self._wait(self._get(path, start, end))
        except Exception as error:
            self.failure = error
            raise

    def size(self, path: str) -> int:
        """The file's bytes. Raises FileNotFoundError for a file that was not announced."""
        if path not in self._sizes:
            raise FileNotFoundError(f"{SCHEME}://{path} is no file of this statement's tables")
        return self._sizes[path]

    def close(self) -> None:
        async def end() -> None:
            if self._store is not None:
                await self._store.close()

        self._wait(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    async def _open(self) -> ObjectStore:
        if self._store is None:
            self._store = await open_store(self._settings.store_url, self._settings)
        return self._store

    async def _get(self, path: str, start: int, end: int) -> bytes:
        return bytes(await (await self._open()).get(ObjectKey(path), start, end))

    async def _keep_ends(self, paths: Sequence[str]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(path: str) -> None:
            first = self._first_kept(path)
            async with limit:
                try:
                    self._keep(path, first, await self._get(path, first, self._sizes[path]))
                except ObjectNotFound:
                    return  # the read that needs it says so

        await asyncio.gather(*map(one, paths))

    def _first_kept(self, path: str) -> int:
        """Where the kept end begins: small files are kept whole."""
        size = self._sizes[path]
        return 0 if size <= _WHOLE_BYTES else size - _END_BYTES

    def _keep(self, path: str, first: int, data: bytes) -> None:
        with self._lock:
            self._kept[path] = (first, data)
            self._kept_bytes += len(data)
            while self._kept_bytes > _KEPT_BYTES:
                _, (_, oldest) = self._kept.popitem(last=False)
                self._kept_bytes -= len(oldest)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Every call of the store ends within a bound."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class BucketFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """What DuckDB calls."""

    protocol = SCHEME
    cachable = False

    def __init__(self, files: BucketFiles) -> None:
        super().__init__()
        self._files = files

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]

    def exists(self, path: str, **_: Any) -> bool:
        return _path(path) in self._files._sizes

    def isfile(self, path: str) -> bool:
        return self.exists(path)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._files.size(_path(path)), "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002 - objects never change
        return _NEVER_CHANGED

    def _open(self, path: str, mode: str = "rb", **_: Any) -> "OpenFile":
        if mode != "rb":
            raise PermissionError(f"{path} is read only")
        return OpenFile(self._files, _path(path))


def _path(path: str) -> str:
    return path.removeprefix(f"{SCHEME}://")


class OpenFile(io.RawIOBase):
    """One file: each read is a ranged GET, or of what is kept."""

    def __init__(self, files: BucketFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._size = files.size(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        data = self._files.read(self._path, self._position, end) if end > self._position else b""
        self._position += len(data)
        return data
