"""Erasing beside agents with warm caches, producers and merges."""

import asyncio
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from storage.batches.record_batch import Compression
from storage.stores.object_store import StoreSettings
from tests.agent.running import Running, running
from tests.erasure.conftest import SECRET, Place
from tests.erasure.reading import consumed
from tests.erasure.test_raw_log import PARTITIONS, left_of, write


def _cached(agent: Running, needle: bytes) -> int:
    """How many pages of an agent's memory have these bytes."""
    assembly = agent.app._reached.assembly
    assert assembly is not None
    pages = assembly.parts.pages
    caches: list[Any] = [pages.pages.tail_cache, pages.pages.catch_up_cache, pages.range_cache]
    caches.append(pages._row_groups.cache)
    return sum(needle in bytes(page) for cache in caches for page in cache._pages.values())


async def test_no_agent_keeps_a_page_with_the_records(
    place: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 6)
    async with (
        running(database_url, store_url, store_settings=store_settings) as ann,
        running(database_url, store_url, store_settings=store_settings) as bob,
        place.kept(),
    ):
        for agent in (ann, bob):
            assert len(await consumed(agent, "orders", PARTITIONS)) == len(place.log.expected["orders"])
        assert _cached(ann, SECRET) + _cached(bob, SECRET) > 0

        await place.erase(b"K")

        assert _cached(ann, SECRET) + _cached(bob, SECRET) == 0
        for agent in (ann, bob):
            for offset in (0, 3, 4, 13, 59):
                wanted = [row for row in left_of(place) if int(str(row[1])) >= offset]
                assert await consumed(agent, "orders", PARTITIONS, offset=offset) == wanted


async def test_an_idempotent_producer_goes_on_and_new_records_of_the_key_stay(
    place: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    await place.log.topic("orders", 1, retention_ms="-1")
    async with (
        running(database_url, store_url, store_settings=store_settings) as agent,
        place.kept(),
    ):
        producer = Producer(
            {"bootstrap.servers": agent.bootstrap, "enable.idempotence": True, "compression.type": "none"}
        )
        for number in range(20):
            producer.produce("orders", b"%d" % number, b"K" if number % 2 else b"other")
        assert await asyncio.to_thread(producer.flush, 30) == 0

        await place.erase(b"K")
        producer.produce("orders", b"later", b"K")
        assert await asyncio.to_thread(producer.flush, 30) == 0

        found = await consumed(agent, "orders", 1)
        assert [row[1:] for row in found] == [
            *((offset, b"other", b"%d" % offset) for offset in range(0, 20, 2)),
            (20, b"K", b"later"),
        ]


async def test_a_look_up_by_time_passes_what_was_erased(
    place: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    from tests.spark_compaction.log import Sent, SentBatch

    await place.log.topic("orders", 1, retention_ms="-1")
    for number in range(6):
        sent = Sent(key=b"K" if number in (1, 2, 5) else b"k", timestamp_ms=1_700_000_000_000 + 1000 * number)
        await place.log.write("orders", SentBatch(partition=0, records=(sent,), compression=Compression.ZSTD))
    async with place.kept():
        await place.erase(b"K")

    async with running(database_url, store_url, store_settings=store_settings) as agent:
        consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "x"})
        for number, offset in ((0, 0), (1, 3), (2, 3), (3, 3), (4, 4), (5, -1)):
            asked = [TopicPartition("orders", 0, 1_700_000_000_000 + 1000 * number)]
            [found] = await asyncio.to_thread(consumer.offsets_for_times, asked, 30)
            assert found.offset == offset, number
        consumer.close()


@pytest.mark.parametrize("merging", [False, True])
async def test_two_erasures_at_once_beside_merging(place: Place, *, merging: bool) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place, 20)
    changed = (
        {"merge_settle_s": 0, "merge_fan_in": 4, "merge_target_s": 0.001, "merge_object_bytes": 8192,
         "merge_run_bytes": 4096}
        if merging
        else {}
    )  # fmt: skip

    async with place.kept(**changed):
        await asyncio.gather(place.erase(b"K"), place.erase(b"key-3", b"key-4"))

    from tests.erasure.test_raw_log import rows_of

    assert await rows_of(place) == left_of(place, erased=(b"K", b"key-3", b"key-4"))
    assert await place.objects_with(SECRET) == []
    assert await place.objects_with(b"key-3") == []
    assert await place.is_healthy()
