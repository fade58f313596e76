"""How much history is loaded at once while the tail is in use, through a store that answers on demand."""

import asyncio
from uuid import UUID

from cache_ring.pages.page_layout import PageKey, PageRange
from cache_ring.pages.store_pages import StorePages
from cache_ring.settings import CacheRingSettings
from storage.identifiers import ObjectKey, SegmentId
from storage.segments.keys import segment_key
from storage.stores.memory_store import MemoryStore

PAGE_BYTES = 1_000
AT_ONCE = 4
SETTINGS = CacheRingSettings(catch_up_load_bytes=AT_ONCE * PAGE_BYTES, catch_up_yields_s=1.0)


class PatientStore(MemoryStore):
    """Answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        self.asked += 1
        await self.may_answer.wait()
        return await super().get(key, start, end)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_key(number: int, made_ms: int = 0) -> ObjectKey:
    return segment_key("tidelog", SegmentId(UUID(int=made_ms << 80 | number)))


def whole(key: ObjectKey) -> PageRange:
    return PageRange(PageKey(key, 0), PAGE_BYTES, 0, PAGE_BYTES, 0, PAGE_BYTES)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def replaying(store: PatientStore, pages: StorePages) -> list[asyncio.Task[memoryview]]:
    keys = [a_key(number) for number in range(10)]
    for key in keys:
        await store.put(key, [bytes(PAGE_BYTES)])
    tasks = [asyncio.create_task(pages.read(whole(key))) for key in keys]
    await settle()
    return tasks


async def answered(store: PatientStore, tasks: list[asyncio.Task[memoryview]]) -> None:
    store.may_answer.set()
    async with asyncio.timeout(60):
        assert [len(page) for page in await asyncio.gather(*tasks)] == [PAGE_BYTES] * len(tasks)


async def test_history_alone_is_loaded_as_fast_as_its_budget_allows() -> None:
    store = PatientStore()
    pages = StorePages(MemoryStore(), store, SETTINGS, Clock())

    tasks = await replaying(store, pages)

    assert store.asked == AT_ONCE
    await answered(store, tasks)


async def test_history_keeps_to_its_pace_while_the_tail_is_in_use() -> None:
    store = PatientStore()
    pages = StorePages(MemoryStore(), store, SETTINGS, Clock())
    pages.put_own(a_key(99), bytes(PAGE_BYTES))

    tasks = await replaying(store, pages)

    assert store.asked == 1
    await answered(store, tasks)


async def test_a_reader_of_the_tail_sets_the_pace() -> None:
    tail, store, clock = MemoryStore(), PatientStore(), Clock()
    pages = StorePages(tail, store, SETTINGS, clock, wall_clock=lambda: 1_000.0)
    written = a_key(99, made_ms=1_000_000)
    await tail.put(written, [bytes(PAGE_BYTES)])
    await pages.read(whole(written))

    tasks = await replaying(store, pages)

    assert store.asked == 1
    await answered(store, tasks)


async def test_history_is_loaded_at_full_speed_once_the_tail_is_not_in_use() -> None:
    store, clock = PatientStore(), Clock()
    pages = StorePages(MemoryStore(), store, SETTINGS, clock)
    pages.put_own(a_key(99), bytes(PAGE_BYTES))

    clock.now_s += SETTINGS.catch_up_yields_s
    tasks = await replaying(store, pages)

    assert store.asked == AT_ONCE
    await answered(store, tasks)
