"""Objects whose bytes are in their keys, in front of a store that has everything else."""

import pytest

from storage.identifiers import ObjectKey
from storage.segments.keys import inline_bytes, inline_key
from storage.stores.inline_objects import InlineObjects
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectNotFound, is_there

DATA = bytes(range(256))


async def test_an_inline_object_is_read_from_its_key_and_never_from_the_store() -> None:
    store = MemoryStore()
    both = InlineObjects(store)
    key = inline_key(DATA)

    assert inline_bytes(key) == DATA
    assert await both.get(key) == DATA
    assert await both.get(key, 10, 20) == DATA[10:20]
    assert (await both.head(key)).size_bytes == 256
    assert await is_there(both, key)
    await both.delete([key])
    assert [info async for info in both.list("")] == []


async def test_all_other_objects_are_the_stores() -> None:
    both = InlineObjects(MemoryStore())
    key = ObjectKey("tidelog/segments/00/1")
    await both.put(key, [b"abc"])

    assert inline_bytes(key) is None
    assert await both.get(key, 1) == b"bc"
    await both.delete([key, inline_key(DATA)])
    with pytest.raises(ObjectNotFound):
        await both.get(key)
