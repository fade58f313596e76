"""Minutes of a replay while the tail is in use, in virtual time, through stores that are far away or shared
with it.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from uuid import UUID

from cache_ring.pages.page_layout import PageKey, PageRange
from cache_ring.pages.store_pages import HELD_S, StorePages
from cache_ring.settings import CacheRingSettings
from storage.identifiers import ObjectKey, SegmentId
from storage.segments.keys import segment_key
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import StoreUnavailable
from tests.support.virtual_time import run_virtually

PAGE = bytes(1_000)
SETTINGS = CacheRingSettings(catch_up_load_bytes=5 * len(PAGE), catch_up_cache_bytes=len(PAGE))
WRITTEN = segment_key("tidelog", SegmentId(UUID(int=(1 << 127) - 1)))


class FarStore(MemoryStore):
    """Each GET takes its time, whatever the number of GETs."""

    def __init__(self, get_s: Callable[[], float]) -> None:
        super().__init__()
        self._get_s = get_s
        self.loading = 0

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        self.loading += 1
        try:
            await self._loaded()
        finally:
            self.loading -= 1
        return await super().get(key, start, end)

    async def _loaded(self) -> None:
        await asyncio.sleep(self._get_s())


class SharedStore(FarStore):
    """GETs go through one by one, until the store is no longer shared."""

    def __init__(self, get_s: Callable[[], float]) -> None:
        super().__init__(get_s)
        self.turn = asyncio.Lock()
        self.is_shared = True

    async def _loaded(self) -> None:
        if not self.is_shared:
            return await super()._loaded()
        async with self.turn:
            return await super()._loaded()


class Replay:
    """Readers of history, each of its own objects, and a writer of the tail."""

    def __init__(self, store: FarStore, readers: int) -> None:
        self.store = store
        self.loaded = 0
        self.failed = 0
        self.loading_s: dict[int, float] = {}
        self.tail_is_used = True
        self._objects = 0
        self._pages = StorePages(store, store, SETTINGS, clock=asyncio.get_running_loop().time)
        self._readers = [asyncio.create_task(self._read()) for _ in range(readers)]

    async def goes_on(self, lasts_s: float) -> float:
        """Returns the loads per second in this time. `loading_s` has the time for each number of concurrent
        loads.
        """
        before, self.loading_s = self.loaded, {}
        for _ in range(round(lasts_s / 0.01)):
            if self.tail_is_used:
                self._pages.put_own(WRITTEN, PAGE)
            self.loading_s[self.store.loading] = self.loading_s.get(self.store.loading, 0.0) + 0.01
            await asyncio.sleep(0.01)
        return (self.loaded - before) / lasts_s

    async def keeps(self, readers: int) -> None:
        """Keeps only this many readers from now on."""
        self._readers, gone = self._readers[:readers], self._readers[readers:]
        for reader in gone:
            reader.cancel()
        await asyncio.gather(*gone, return_exceptions=True)

    async def ends(self) -> None:
        await self.keeps(0)
        await self._pages.close()

    async def _read(self) -> None:
        while True:
            self._objects += 1
            key = segment_key("tidelog", SegmentId(UUID(int=self._objects)))
            await self.store.put(key, [PAGE])
            try:
                await self._pages.read(PageRange(PageKey(key, 0), len(PAGE), 0, len(PAGE), 0, len(PAGE)))
                self.loaded += 1
            except StoreUnavailable:
                self.failed += 1


def jitter(seed: int) -> Callable[[], float]:
    """100 ms, more or less. One in a hundred takes two seconds more."""
    randomness = random.Random(seed)
    return lambda: 0.1 * randomness.lognormvariate(0, 0.3) + 2.0 * (randomness.random() < 0.01)


def test_a_far_store_gives_a_replay_nearly_what_it_gives_without_a_tail() -> None:
    async def rate(get_s: Callable[[], float], *, tail_is_used: bool) -> float:
        replay = Replay(FarStore(get_s), readers=20)
        replay.tail_is_used = tail_is_used
        per_second = await replay.goes_on(100)
        await replay.ends()
        return per_second

    steady = [run_virtually(partial(rate, lambda: 0.1, tail_is_used=used)) for used in (True, False)]
    uneven = [run_virtually(partial(rate, jitter(1), tail_is_used=used)) for used in (True, False)]

    assert steady[0] > 0.8 * steady[1]
    assert uneven[0] > 0.8 * uneven[1]


def test_a_store_shared_with_the_tail_is_asked_for_one_page_at_a_time_with_rests() -> None:
    async def main() -> None:
        replay = Replay(SharedStore(lambda: 0.05), readers=20)
        await replay.goes_on(10)

        await replay.goes_on(100)

        assert max(replay.loading_s) == 2
        assert replay.loading_s[2] < 10
        assert 25 < replay.loading_s[0] < 40
        await replay.ends()

    run_virtually(main)


def test_loads_do_not_rest_once_the_tail_is_not_in_use() -> None:
    async def main() -> None:
        replay = Replay(SharedStore(lambda: 0.05), readers=20)
        await replay.goes_on(10)

        replay.tail_is_used = False
        await replay.goes_on(2)

        assert await replay.goes_on(10) > 0.99 / 0.05
        assert min(replay.loading_s) >= 4  # one has just ended
        await replay.ends()

    run_virtually(main)


def test_a_lone_reader_does_not_rest() -> None:
    async def main() -> None:
        replay = Replay(SharedStore(lambda: 0.05), readers=20)
        await replay.goes_on(10)
        await replay.keeps(1)

        await replay.goes_on(1)

        assert await replay.goes_on(10) > 19
        await replay.ends()

    run_virtually(main)


def test_a_store_that_is_no_longer_shared_is_detected_soon() -> None:
    async def main() -> None:
        store = SharedStore(lambda: 0.05)
        replay = Replay(store, readers=20)
        await replay.goes_on(10)

        store.is_shared = False
        await replay.goes_on(HELD_S)

        assert await replay.goes_on(20) > 0.8 * 5 / 0.05
        await replay.ends()

    run_virtually(main)


def test_the_pace_delays_no_load_until_it_fails() -> None:
    async def main() -> None:
        replay = Replay(
            FarStore(lambda: 4.0), readers=40
        )  # one at a time: 160 s, of which a load may wait 70

        await replay.goes_on(300)

        assert replay.failed == 0
        await replay.ends()

    run_virtually(main)
