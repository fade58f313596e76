"""The contract of every object store: memory, a directory, and S3 by rclone and (where there is one)
MinIO.
"""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from storage.identifiers import ObjectKey
from storage.segments.keys import checked_key
from storage.stores.object_store import ObjectChanged, ObjectNotFound, ObjectStore
from tests.storage.conftest import ignores_conditions

KEY = checked_key("cluster/segments/ab/one")


async def keys_of(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


async def test_an_object_is_read_back_as_its_chunks_joined(any_store: ObjectStore) -> None:
    await any_store.put(KEY, [b"abc", memoryview(b"xdefx")[1:4], b"", b"ghi"])

    assert await any_store.get(KEY) == b"abcdefghi"


async def test_an_object_is_replaced_as_a_whole(any_store: ObjectStore) -> None:
    await any_store.put(KEY, [b"a longer object"])
    await any_store.put(KEY, [b"short"])

    assert await any_store.get(KEY) == b"short"
    assert (await any_store.head(KEY)).size_bytes == 5


async def test_ranges_are_slices_wherever_they_lie(any_store: ObjectStore) -> None:
    data = bytes(range(10))
    await any_store.put(KEY, [data])

    for start, end in itertools.product([0, 1, 9, 10, 11, 1 << 40], [0, 1, 5, 10, 11, 1 << 40, None]):
        if end is None or start <= end:
            assert await any_store.get(KEY, start, end) == data[start:end], (start, end)


async def test_many_ranges_of_one_object_are_read_at_once(any_store: ObjectStore) -> None:
    data = b"".join(index.to_bytes(4, "big") for index in range(1 << 18))
    await any_store.put(KEY, [data])
    ranges = [(start, start + 40_000) for start in range(0, len(data), 40_000)]

    found = await asyncio.gather(*(any_store.get(KEY, start, end) for start, end in ranges))

    assert b"".join(found) == data


async def test_an_empty_object_is_an_object(any_store: ObjectStore) -> None:
    await any_store.put(KEY, [])

    assert await any_store.get(KEY) == b""
    assert await any_store.get(KEY, 0, 10) == b""
    assert (await any_store.head(KEY)).size_bytes == 0
    assert await keys_of(any_store) == [KEY]


async def test_a_missing_object_is_not_found(any_store: ObjectStore) -> None:
    await any_store.put(checked_key("cluster/segments/ab/one-more"), [b"x"])

    for key in (KEY, checked_key("elsewhere"), checked_key("cluster/segments/ab"), checked_key("cluster")):
        for call in (
            any_store.get(key),
            any_store.get(key, 5, 9),
            any_store.get(key, 3, 3),
            any_store.head(key),
        ):
            with pytest.raises(ObjectNotFound) as raised:
                await call
            assert raised.value.key == key


async def test_size_and_age_are_known(any_store: ObjectStore) -> None:
    await any_store.put(KEY, [b"x" * 1000])

    info = await any_store.head(KEY)

    assert (info.key, info.size_bytes) == (KEY, 1000)
    assert abs(datetime.now(UTC) - info.modified_at) < timedelta(minutes=5)
    assert [listed.size_bytes async for listed in any_store.list("")] == [1000]


async def test_listing_is_by_any_prefix_and_in_key_order(any_store: ObjectStore) -> None:
    names = ["a/b/2", "a/b/1", "a/b1", "a/bc/1", "b", "a!", "a/c with space+and%"]
    for name in names:
        await any_store.put(checked_key(name), [name.encode()])

    assert await keys_of(any_store) == sorted(names)
    assert await keys_of(any_store, "a/b") == ["a/b/1", "a/b/2", "a/b1", "a/bc/1"]
    assert await keys_of(any_store, "a/b/") == ["a/b/1", "a/b/2"]
    assert await keys_of(any_store, "a/b/2") == ["a/b/2"]
    assert await keys_of(any_store, "nothing/here") == []
    assert await any_store.get(checked_key("a/c with space+and%")) == b"a/c with space+and%"


async def test_more_objects_than_a_page_are_listed_and_deleted(any_store: ObjectStore) -> None:
    keys = [checked_key(f"many/{index % 7}/{index:05}") for index in range(1003)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(any_store.put(key, [b"x"]) for key in keys[first : first + 50]))
    await any_store.put(KEY, [b"stays"])

    assert await keys_of(any_store, "many/") == sorted(keys)
    await any_store.delete([*keys, checked_key("many/missing")])

    assert await keys_of(any_store) == [KEY]


async def test_deleting_nothing_or_what_is_missing_is_fine(any_store: ObjectStore) -> None:
    await any_store.delete([])
    await any_store.delete([KEY])
    await any_store.put(KEY, [b"x"])
    await any_store.delete([KEY, KEY])

    assert await keys_of(any_store) == []


async def test_keys_that_leave_the_store_are_refused(any_store: ObjectStore) -> None:
    for key in (ObjectKey("../outside"), ObjectKey("/etc/passwd"), ObjectKey("a//b"), ObjectKey("")):
        for call in (
            any_store.put(key, [b"x"]),
            any_store.get(key),
            any_store.head(key),
            any_store.delete([key]),
        ):
            with pytest.raises(ValueError, match="cannot be an object's key"):
                await call


async def test_a_cancelled_put_leaves_the_object_whole_or_absent(any_store: ObjectStore) -> None:
    body = [b"x" * (1 << 20)] * 16
    for pause_s in (0, 0.001, 0.01):
        putting = asyncio.create_task(any_store.put(KEY, body))
        await asyncio.sleep(pause_s)
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)

        # One look: a server that had all of it may publish it between two.
        found = [(info.key, info.size_bytes) async for info in any_store.list("")]
        assert found in ([], [(KEY, 16 << 20)])
        await any_store.delete([KEY])


async def test_the_last_of_concurrent_puts_wins_as_a_whole(any_store: ObjectStore) -> None:
    bodies = [bytes([index]) * 300_000 for index in range(6)]

    await asyncio.gather(*(any_store.put(KEY, [body]) for body in bodies))

    assert await any_store.get(KEY) in bodies
    await any_store.put(KEY, [b"last"])
    assert await any_store.get(KEY) == b"last"


async def test_a_probe_of_a_working_store_succeeds(any_store: ObjectStore) -> None:
    await any_store.probe()


async def test_an_object_is_created_once_and_then_replaced_only_over_its_latest_version(
    any_store: ObjectStore,
) -> None:
    await any_store.put_if(KEY, [b"fi", b"rst"], None)
    first = await any_store.get_tagged(KEY)

    await any_store.put_if(KEY, [b"second"], first.tag)
    second = await any_store.get_tagged(KEY)

    assert (first.data, second.data) == (b"first", b"second")
    assert first.tag != second.tag


async def test_a_conditional_put_is_refused_or_read_back_as_it_was_written(any_store: ObjectStore) -> None:
    """rclone ignores conditions. A caller that reads the object again sees the truth on every store."""
    await any_store.put_if(KEY, [b"first"], None)
    stale = (await any_store.get_tagged(KEY)).tag
    await any_store.put_if(KEY, [b"second"], stale)

    for expected_tag in (None, stale):
        refused = False
        try:
            await any_store.put_if(KEY, [b"third"], expected_tag)
        except ObjectChanged:
            refused = True
        assert (await any_store.get_tagged(KEY)).data == (b"second" if refused else b"third")
        assert refused != await ignores_conditions(any_store)
        await any_store.put(KEY, [b"second"])


async def test_a_conditional_put_over_an_object_that_is_gone_is_refused(any_store: ObjectStore) -> None:
    await any_store.put_if(KEY, [b"first"], None)
    tag = (await any_store.get_tagged(KEY)).tag
    await any_store.delete([KEY])

    if not await ignores_conditions(any_store):
        with pytest.raises(ObjectChanged):
            await any_store.put_if(KEY, [b"second"], tag)
    with pytest.raises(ObjectNotFound):
        await any_store.get_tagged(checked_key("cluster/elsewhere"))


async def test_one_of_several_concurrent_conditional_puts_wins(any_store: ObjectStore) -> None:
    await any_store.put_if(KEY, [b"first"], None)
    tag = (await any_store.get_tagged(KEY)).tag

    outcomes = await asyncio.gather(
        *(any_store.put_if(KEY, [b"%d" % index], tag) for index in range(8)), return_exceptions=True
    )

    winners = [index for index, outcome in enumerate(outcomes) if outcome is None]
    assert all(outcome is None or isinstance(outcome, ObjectChanged) for outcome in outcomes)
    assert len(winners) == 1 or await ignores_conditions(any_store)
    assert int((await any_store.get_tagged(KEY)).data) in winners
