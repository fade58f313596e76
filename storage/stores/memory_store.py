"""Objects in this process, for tests of pure logic and for experiments: `memory://name`.

Promises everything that a store promises, except that nothing survives the process.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.segments.keys import checked_key
from storage.stores.object_store import ObjectChanged, ObjectInfo, ObjectNotFound, TaggedObject, content_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    data: bytes
    modified_at: datetime


class MemoryStore:
    """One dictionary. Stores opened under the same name share it (`named`)."""

    _named: dict[str, dict[ObjectKey, _Object]] = {}  # noqa: RUF012 - sharing by name is the point

    def __init__(self, objects: dict[ObjectKey, _Object] | None = None) -> None:
        self._objects = {} if objects is None else objects

    @classmethod
    def named(cls, name: str) -> "MemoryStore":
        return cls(cls._named.setdefault(name, {}))

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        self._objects[checked_key(key)] = _Object(data=b"".join(chunks), modified_at=datetime.now(UTC))

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        found = self._objects.get(checked_key(key))
        if (None if found is None else content_tag(found.data)) != expected_tag:
            raise ObjectChanged(key)
        await self.put(key, chunks)

    async def get_tagged(self, key: ObjectKey) -> TaggedObject:
        data = self._found(key).data
        return TaggedObject(data=data, tag=content_tag(data))

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        return self._found(key).data[start:end]

    async def head(self, key: ObjectKey) -> ObjectInfo:
        found = self._found(key)
        return ObjectInfo(key=key, size_bytes=len(found.data), modified_at=found.modified_at)

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self._objects.pop(checked_key(key), None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in sorted(self._objects):
            if key.startswith(prefix) and key in self._objects:
                yield await self.head(key)

    async def probe(self) -> None:
        return

    async def close(self) -> None:
        return

    def _found(self, key: ObjectKey) -> _Object:
        found = self._objects.get(checked_key(key))
        if found is None:
            raise ObjectNotFound(key)
        return found
