"""Pages from memory or from the store: an agent serves itself and its peers with them
(docs/design/read-path.md#tail-and-history).

Promises:
- A page that many ask for is fetched once.
- Reads of history (merged segments, and objects older than `tail_age_s`) have their own cache, load budget
  and store connections. They keep to a pace while the tail is in use.
- Of a page larger than the cache only the requested range is read.
- A page of the wrong size is never kept.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cache_ring.pages.byte_budget import ByteBudget
from cache_ring.pages.catch_up_pace import CatchUpPace
from cache_ring.pages.latency import MedianLatency
from cache_ring.pages.page_cache import Page, PageCache
from cache_ring.pages.page_layout import PageKey, PageLayout, PageRange
from cache_ring.settings import CacheRingSettings
from storage.identifiers import ObjectKey
from storage.segments.keys import is_merged, segment_id_of
from storage.stores.object_store import ObjectStore, StoreUnavailable

_PATIENCE: Final = 4
"""The share of `page_load_timeout_s` after which a waiting load of history no longer gives way to the
tail."""


class DamagedPage(Exception):
    """The bytes are not those that the coordinate names."""


@dataclass(slots=True)
class StoreCounts:
    """Counters for metrics: requests to the store."""

    gets: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    store: ObjectStore
    cache: PageCache[PageKey]
    loading: ByteBudget


class StorePages:
    """`catch_up_store` is a second client of the same bucket, so that history does not queue before the
    tail."""

    def __init__(
        self,
        store: ObjectStore,
        catch_up_store: ObjectStore,
        settings: CacheRingSettings,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self.layout = PageLayout(settings.max_page_bytes, settings.history_page_bytes)
        self._clock = clock
        self._wall_clock = wall_clock
        self._tail = _Lane(
            store=store,
            cache=PageCache(settings.page_cache_bytes),
            loading=ByteBudget(settings.tail_load_bytes),
        )
        self._catch_up = _Lane(
            store=catch_up_store,
            cache=PageCache(settings.catch_up_cache_bytes),
            loading=ByteBudget(settings.catch_up_load_bytes),
        )
        self._pace = CatchUpPace(settings.catch_up_load_bytes)
        self._tail_used_s = -math.inf
        self.counts = StoreCounts()
        self.get_latency = MedianLatency()

    @property
    def tail_cache(self) -> PageCache[PageKey]:
        return self._tail.cache

    @property
    def catch_up_cache(self) -> PageCache[PageKey]:
        return self._catch_up.cache

    def kept(self, wanted: PageRange) -> memoryview | None:
        """Returns the bytes if their page is in memory."""
        for lane in (self._tail, self._catch_up):
            page = lane.cache.get(wanted.page)
            if page is not None and len(page) == wanted.page_bytes:
                self._note_use(lane)
                return wanted.of(memoryview(page))
        return None

    def has(self, page: PageKey) -> bool:
        return page in self._tail.cache or page in self._catch_up.cache

    def keeps(self, wanted: PageRange) -> bool:
        """True if the page stays in memory once it is loaded."""
        return wanted.page_bytes <= self._lane(wanted.page.object_key).cache.budget_bytes

    def put_own(self, key: ObjectKey, page: bytes) -> None:
        """Keeps an object that this agent has just written."""
        self._note_use(self._tail)
        self._tail.cache.put(PageKey(key, 0), page)

    def forget(self, page: PageKey) -> None:
        self._tail.cache.drop(page)
        self._catch_up.cache.drop(page)

    async def read(self, wanted: PageRange) -> memoryview:
        """Returns the bytes. Raises ObjectNotFound, StoreUnavailable or DamagedPage."""
        found = self.kept(wanted)
        if found is not None:
            return found
        key = wanted.page.object_key
        lane = self._lane(key)
        self._note_use(lane)
        if wanted.page_bytes > lane.cache.budget_bytes:
            return memoryview(await self._load(lane, key, wanted.start, wanted.end))
        page = await lane.cache.get_or_load(
            wanted.page, lambda: self._load(lane, key, wanted.page_start, wanted.page_end)
        )
        return wanted.of(memoryview(page))

    def is_history(self, key: ObjectKey) -> bool:
        """True if the object is read with the catch-up budget. Its age is in its name, so all agents
        agree."""
        segment_id = segment_id_of(key)
        if segment_id is None or is_merged(key):
            return True
        made_ms = segment_id.int >> 80
        return self._wall_clock() * 1000 - made_ms > self._settings.tail_age_s * 1000

    async def close(self) -> None:
        for lane in (self._tail, self._catch_up):
            await lane.cache.close()

    def _lane(self, key: ObjectKey) -> _Lane:
        return self._catch_up if self.is_history(key) else self._tail

    def _note_use(self, lane: _Lane) -> None:
        if lane is self._tail:
            self._tail_used_s = self._clock()

    def _yields(self) -> bool:
        """True if history must leave room for the tail."""
        return self._clock() - self._tail_used_s < self._settings.catch_up_yields_s

    def _keep_pace(self) -> None:
        loading = self._catch_up.loading
        if not self._yields():
            self._pace.forget()
        hurries = loading.longest_wait_s >= self._settings.page_load_timeout_s / _PATIENCE
        is_free = hurries or not self._yields()
        loading.limit_bytes = self._settings.catch_up_load_bytes if is_free else self._pace.limit_bytes

    def _hurry(self) -> None:
        """Suspends the pace, as long as the first in the queue has waited for long."""
        self._catch_up.loading.limit_bytes = self._settings.catch_up_load_bytes

    async def _load(self, lane: _Lane, key: ObjectKey, start: int, end: int) -> Page:
        rest_s = 0.0
        try:
            async with asyncio.timeout(self._settings.page_load_timeout_s):
                taken = await self._turn(lane, end - start)
                try:
                    started_s = self._clock()
                    self.counts.gets += 1
                    data = await lane.store.get(key, start, end)
                    took_s = self._clock() - started_s
                    if lane is self._catch_up:
                        rest_s = self._paced(len(data), took_s)
                finally:
                    _give_back(lane, taken, rest_s)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{key} could not be loaded within TIDELOG_PAGE_LOAD_TIMEOUT_S ({self._settings.page_load_timeout_s} s)"
            ) from error
        self.get_latency.add(took_s)
        self.counts.bytes_read += len(data)
        if len(data) != end - start:
            raise DamagedPage(
                f"{key} has {len(data)} bytes from {start} on, not the {end - start} its coordinate names"
            )
        return data

    async def _turn(self, lane: _Lane, size_bytes: int) -> int:
        """Takes a place in the load budget. A load of history that waited too long suspends the pace for a
        while."""
        if lane is self._tail:
            return await lane.loading.take(size_bytes)
        self._keep_pace()
        taken = lane.loading.try_take(size_bytes)
        if taken is not None:
            return taken
        patience_s = self._settings.page_load_timeout_s / _PATIENCE
        hurry = asyncio.get_running_loop().call_later(patience_s, self._hurry)
        try:
            return await lane.loading.take(size_bytes)
        finally:
            hurry.cancel()

    def _paced(self, size_bytes: int, took_s: float) -> float:
        """Notes a load of history, and returns how long its place stays taken."""
        loading = self._catch_up.loading
        if self._yields():
            self._pace.loaded(size_bytes, took_s, loading.taken_bytes, self._clock())
        self._keep_pace()
        return self._pace.rest_s(took_s) if loading.is_waited_for else 0.0


def _give_back(lane: _Lane, taken: int, rest_s: float) -> None:
    """Gives the bytes back at once, and the place only after the rest."""
    if rest_s:
        asyncio.get_running_loop().call_later(rest_s, lane.loading.give_back, taken)
    else:
        lane.loading.give_back(taken)
