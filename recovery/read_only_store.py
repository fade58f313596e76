"""A store for rehearsals: reads are real, writes do nothing."""

from collections.abc import AsyncIterator, Sequence

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectInfo, ObjectStore


class ReadOnlyStore:
    """The methods of `ObjectStore` that recovery uses."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.get = store.get
        self.head = store.head
        self.probe = store.probe
        self.close = store.close
        self.get_tagged = store.get_tagged

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        """Does nothing."""

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], tag: str | None) -> None:
        """Does nothing."""

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Does nothing."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)
