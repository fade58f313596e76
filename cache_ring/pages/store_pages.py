"""Pages from memory or from the store: an agent serves itself and its peers with them
(docs/design/read-path.md#tail-and-history).

Promises:
- A page that many ask for is fetched once.
- Reads of history (merged segments, and objects older than `tail_age_s`) have their own cache, load budget
  and store connections. They keep to a pace while the tail is in use.
- Of a page larger than the cache only the requested range is read.
- A page of the wrong size is never kept.

`CatchUpPace` decides how much history may be loaded at once while the tail is in use, because a replay must
never slow the tail. Pure. Whether more concurrent loads bring more depends on their bottleneck. Loads that
wait for a distant store do not slow each other down. Loads that share a machine or a link take twice as long
if there are twice as many. So the limit is found by measuring how long loads take: it doubles as long as each
load keeps 0.8 of its speed at half the limit, which is 1.6 times the rate. The better of two measurements
counts. The result holds for `HELD_S`, then the search begins again. If even the first doubling does not pay,
one load after another would still keep others waiting. Then short rests separate successive loads.

`MedianLatency` is pure, and remembers at most the last `_KEPT` durations.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from cache_ring.pages.byte_budget import ByteBudget
from cache_ring.pages.page_cache import Page, PageCache
from cache_ring.pages.page_layout import PageKey, PageLayout, PageRange
from cache_ring.settings import CacheRingSettings
from storage.identifiers import ObjectKey
from storage.segments.keys import is_merged, segment_id_of
from storage.stores.object_store import ObjectStore, StoreUnavailable

STEPS: Final = 3
HELD_S: Final = 30.0
REST: Final = 0.5
"""As a share of the time that a load took."""
LONGEST_REST_S: Final = 0.1
_MEASURED_LOADS: Final = 16
_KEPT_SPEED: Final = 0.8
_MEASURES: Final = 2


def was_made_before(key: ObjectKey, time_ms: int) -> bool:
    """True if the object was made before a time, by its name, or at an unknown time (history)."""
    segment_id = segment_id_of(key)
    return segment_id is None or segment_id.int >> 80 < time_ms


class CatchUpPace:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._speed_below = 0.0
        self.forget()

    def forget(self) -> None:
        """Call it when the tail is not in use: it drops the result, and the search begins again."""
        self._held_until_s: float | None = None
        self._step = 0
        self._measures, self._speed = 0, 0.0
        self._measure_from(None)

    @property
    def limit_bytes(self) -> int:
        return max(1, self._most_bytes >> (STEPS - 1 - self._step))

    def rest_s(self, took_s: float) -> float:
        """How long to rest after a load that took `took_s` and kept another waiting."""
        is_shared = self._held_until_s is not None and self._step == 0
        return min(REST * took_s, LONGEST_REST_S) if is_shared else 0.0

    def loaded(self, size_bytes: int, took_s: float, at_once_bytes: int, now_s: float) -> None:
        """Notes that a load has ended, one of `at_once_bytes` concurrent bytes. It counts if it began within
        the current limit, and while more than half the limit was loading."""
        if self._held_until_s is not None:
            if now_s < self._held_until_s:
                return
            self.forget()
        if self._began_s is None:
            self._measure_from(now_s)
            return
        least_bytes = self.limit_bytes // 2 if self._step else 0
        most_bytes = max(self.limit_bytes, size_bytes)  # a load above the limit runs alone
        if now_s - took_s >= self._began_s and least_bytes < at_once_bytes <= most_bytes:
            self._count(size_bytes, took_s, now_s)

    def _count(self, size_bytes: int, took_s: float, now_s: float) -> None:
        self._loads += 1
        self._bytes += size_bytes
        self._took_s += took_s
        if self._loads >= _MEASURED_LOADS and self._took_s > 0:
            self._measured(self._bytes / self._took_s, now_s)
            self._measure_from(now_s)

    def _measure_from(self, now_s: float | None) -> None:
        self._began_s = now_s
        self._loads, self._bytes, self._took_s = 0, 0, 0.0

    def _measured(self, speed: float, now_s: float) -> None:
        self._measures += 1
        self._speed = max(self._speed, speed)
        if self._measures < _MEASURES:
            return
        speed, self._speed, self._measures = self._speed, 0.0, 0
        if self._step and speed < self._speed_below * _KEPT_SPEED:
            self._step -= 1
            self._held_until_s = now_s + HELD_S
            return
        self._speed_below = speed
        if self._step == STEPS - 1:
            self._held_until_s = now_s + HELD_S
        else:
            self._step += 1


_KEPT = 64


class MedianLatency:
    def __init__(self) -> None:
        self._durations_s: deque[float] = deque(maxlen=_KEPT)
        self._median_s: float | None = None

    def add(self, duration_s: float) -> None:
        self._durations_s.append(duration_s)
        self._median_s = None

    def median_s(self) -> float | None:
        """The median; None before the first duration."""
        if self._median_s is None and self._durations_s:
            self._median_s = median(self._durations_s)
        return self._median_s


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

    def drop_made_before(self, time_ms: int) -> None:
        """Drops the pages of objects made before a time, or at an unknown time."""
        for lane in (self._tail, self._catch_up):
            lane.cache.drop_all(lambda page: was_made_before(page.object_key, time_ms))

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
                f"{key} could not be loaded within TIDELOG_PAGE_LOAD_TIMEOUT_S "
                f"({self._settings.page_load_timeout_s} s)"
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
