"""A real store that stops where a test wants it to, so that something can happen there."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectInfo, ObjectStore, TaggedObject


class GatedStore:
    """Stops at the `at`-th call of "get", "put" or "after put" (done, but the caller does not know), until
    `opened` is set.
    """

    def __init__(self, store: ObjectStore, step: str, at: int = 1) -> None:
        self._store = store
        self._step = step
        self._calls_left = at
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.puts: list[ObjectKey] = []

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        await self._gate("put")
        await self._store.put(key, chunks)
        self.puts.append(key)
        await self._gate("after put")

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        await self._gate("put")
        await self._store.put_if(key, chunks, expected_tag)
        self.puts.append(key)
        await self._gate("after put")

    async def get_tagged(self, key: ObjectKey) -> TaggedObject:
        await self._gate("get")
        return await self._store.get_tagged(key)

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes | memoryview:
        await self._gate("get")
        return await self._store.get(key, start, end)

    async def head(self, key: ObjectKey) -> ObjectInfo:
        return await self._store.head(key)

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        await self._store.delete(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)

    async def probe(self) -> None:
        await self._store.probe()

    async def close(self) -> None:
        await self._store.close()

    async def _gate(self, step: str) -> None:
        if step != self._step:
            return
        self._calls_left -= 1
        if self._calls_left == 0:
            self.reached.set()
            await self.opened.wait()
