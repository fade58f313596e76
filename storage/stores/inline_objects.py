"""Objects whose bytes are in their keys: markers of transactions (docs/design/transactions.md#ending).

Promise: the store behind this is never asked for such an object.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from storage.identifiers import ObjectKey
from storage.segments.keys import inline_bytes, is_inline
from storage.stores.object_store import ObjectInfo, ObjectStore

_LONG_AGO = datetime.fromtimestamp(0, UTC)


class InlineObjects:
    """A store that also has the objects whose keys hold their bytes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.put = store.put
        self.put_if = store.put_if
        self.get_tagged = store.get_tagged
        self.list = store.list
        self.probe = store.probe
        self.close = store.close

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes | memoryview:
        data = inline_bytes(key)
        return await self._store.get(key, start, end) if data is None else data[start:end]

    async def head(self, key: ObjectKey) -> ObjectInfo:
        data = inline_bytes(key)
        if data is None:
            return await self._store.head(key)
        return ObjectInfo(key=key, size_bytes=len(data), modified_at=_LONG_AGO)

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        await self._store.delete([key for key in keys if not is_inline(key)])
