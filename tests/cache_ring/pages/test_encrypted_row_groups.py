"""Row groups of encrypted history files: what an agent keeps of them, and what it does without their key."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache_ring.pages.row_groups import RowGroups
from cache_ring.pages.store_pages import DamagedPage, StorePages
from cache_ring.settings import CacheRingSettings
from sequencer.commits.coordinates import RunCoordinate
from storage.arrow.arrow_columns import decode_batches
from storage.arrow.row_groups import row_group_range
from storage.batches.record_batch import Compression
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import TopicKey, key_ids, opened
from storage.identifiers import BytePosition, KeyId, ObjectKey, Offset, Partition, TopicId
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import StoreUnavailable
from tests.storage.arrow.test_row_groups import KEY, a_file

SETTINGS = CacheRingSettings()
FILE, CLEAR = ObjectKey("tidelog/history/x/encrypted.parquet"), ObjectKey("tidelog/history/x/clear.parquet")


class Reader:
    """The row groups of an encrypted file and one in the clear, over a store in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.pages = StorePages(self.store, self.store, SETTINGS)
        self.keys = {KEY.key_id: KEY}
        self.files = {FILE: a_file(KEY), CLEAR: a_file()}
        self.asked = 0
        self.groups = RowGroups(
            self.pages.layout,
            self.pages.read,
            lambda wanted: self.pages.forget(wanted.page),
            lambda _: Compression.NONE,
            self.key_of,
            SETTINGS,
        )

    async def key_of(self, topic_id: TopicId, key_id: KeyId) -> TopicKey:
        self.asked += 1
        if (topic_id, key_id) != (KEY.topic_id, KEY.key_id) or key_id not in self.keys:
            raise KeyUnavailable(f"the topic has no key {key_id:016x}")
        return self.keys[key_id]

    async def run(self, name: ObjectKey, number: int) -> RunCoordinate:
        data, metadata = self.files[name]
        await self.store.put(name, [data])
        position, length = row_group_range(metadata.row_group(number))
        return RunCoordinate(
            topic_id=KEY.topic_id,
            partition=Partition(3),
            base_offset=Offset(100 * number),
            last_offset=Offset(100 * number + 99),
            object_key=name,
            object_size_bytes=len(data),
            position=BytePosition(position),
            length=length,
            min_timestamp_ms=0,
            max_timestamp_ms=0,
        )


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    found = Reader()
    yield found
    await found.groups.close()
    await found.pages.close()


async def test_what_is_kept_of_an_encrypted_file_is_sealed_and_opens_to_its_records(reader: Reader) -> None:
    run, clear = await reader.run(FILE, 1), await reader.run(CLEAR, 1)
    found, plain = await reader.groups.read_run(run), await reader.groups.read_run(clear)
    data = bytes(found.data())

    kept = reader.groups.in_memory(run)
    assert kept is not None
    assert bytes(kept.data()) == data
    assert key_ids(data) == {KEY.key_id}
    assert b"value" in bytes(plain.data())
    assert b"value" not in data
    batches = opened(data, 3, {KEY.key_id: KEY})
    assert batches == bytes(plain.data())
    assert decode_batches(batches, 0, len(batches), 100).column("offset").to_pylist() == list(range(100, 200))


async def test_without_its_key_a_file_is_unavailable_others_go_on_and_it_is_read_once_the_key_is_back(
    reader: Reader,
) -> None:
    run = await reader.run(FILE, 0)
    reader.keys.clear()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="no key 0000000000000011"):
            await reader.groups.read_run(run)
    await reader.groups.read_run(await reader.run(CLEAR, 0))
    reader.keys[KEY.key_id] = KEY
    assert key_ids(bytes((await reader.groups.read_run(run)).data())) == {KEY.key_id}


async def test_many_who_wait_for_a_key_take_no_room_from_others(reader: Reader) -> None:
    asked, answers = asyncio.Event(), asyncio.Event()
    inner = reader.groups._key_of

    async def slow(topic_id: TopicId, key_id: KeyId) -> TopicKey:
        asked.set()
        await answers.wait()
        return await inner(topic_id, key_id)

    reader.groups._key_of = slow
    waiting = [asyncio.create_task(reader.groups.read_run(await reader.run(FILE, n))) for n in range(3)]
    await asked.wait()
    await reader.groups.read_run(await reader.run(CLEAR, 0))
    assert reader.groups._loading.taken == 0
    assert not any(task.done() for task in waiting)
    answers.set()
    assert [key_ids(bytes(found.data())) for found in await asyncio.gather(*waiting)] == [{KEY.key_id}] * 3


async def test_a_damaged_byte_is_damage_and_not_a_missing_key(reader: Reader) -> None:
    run = await reader.run(FILE, 0)
    data, metadata = reader.files[FILE]
    damaged = bytearray(data)
    damaged[run.position + run.length - 5] ^= 1
    await reader.store.put(FILE, [bytes(damaged)])
    with pytest.raises(DamagedPage):
        await reader.groups.read_run(run)
    other = row_group_range(metadata.row_group(1))
    following = run._replace(
        position=BytePosition(other[0]), length=other[1], base_offset=Offset(100), last_offset=Offset(199)
    )
    assert key_ids(bytes((await reader.groups.read_run(following)).data())) == {KEY.key_id}
