"""Pages in memory. Least recently used pages go first. A page that several ask for is loaded once
(docs/design/read-path.md#pages).

Promises:
- At most `budget_bytes` are kept. A page larger than the budget is given to its waiters and not kept.
- A cancelled waiter does not cancel a load that others wait for. A load ends when its last waiter is gone.
- A failed load fails its waiters and is dropped.
- Whatever `drop_all` drops does not come back by a load that had begun.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

Key = TypeVar("Key")
Page: TypeAlias = bytes | memoryview
Load: TypeAlias = Callable[[], Coroutine[Any, Any, Page]]


@dataclass(slots=True)
class CacheCounts:
    """Counters for metrics."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    evictions: int = 0


@dataclass(slots=True)
class _Loading:
    task: asyncio.Task[Page]
    waiters: int = 0
    is_kept: bool = True


class PageCache(Generic[Key]):
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.kept_bytes = 0
        self.counts = CacheCounts()
        self._pages: OrderedDict[Key, Page] = OrderedDict()
        self._loading: dict[Key, _Loading] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._pages

    def get(self, key: Key) -> Page | None:
        """Returns the page if it is kept, and marks it as used."""
        page = self._pages.get(key)
        if page is None:
            return None
        self._pages.move_to_end(key)
        self.counts.hits += 1
        return page

    def put(self, key: Key, page: Page) -> None:
        """Keeps a page, unless it is larger than the whole budget."""
        self.drop(key)
        if len(page) > self.budget_bytes:
            return
        self._pages[key] = page
        self.kept_bytes += len(page)
        while self.kept_bytes > self.budget_bytes:
            _, evicted = self._pages.popitem(last=False)
            self.kept_bytes -= len(evicted)
            self.counts.evictions += 1

    def drop(self, key: Key) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self.kept_bytes -= len(page)

    def drop_all(self, concerns: Callable[[Key], bool]) -> None:
        """Drops the pages of these keys. Loads of them answer their waiters, and nothing is kept of them."""
        for key in [key for key in self._pages if concerns(key)]:
            self.drop(key)
        for key, loading in self._loading.items():
            loading.is_kept = loading.is_kept and not concerns(key)

    async def get_or_load(self, key: Key, load: Load) -> Page:
        """Returns the page from memory or by `load`, which runs once for all who ask. Raises what `load`
        raises."""
        page = self.get(key)
        if page is not None:
            return page
        loading = self._loading.get(key)
        if loading is None:
            self.counts.misses += 1
            loading = self._loading[key] = _Loading(task=asyncio.create_task(load()))
            loading.task.add_done_callback(lambda task: self._finished(key, task))
        else:
            self.counts.joined += 1
        loading.waiters += 1
        try:
            return await asyncio.shield(loading.task)
        finally:
            loading.waiters -= 1
            if loading.waiters == 0 and not loading.task.done():
                self._abandon(key, loading)

    async def close(self) -> None:
        """Cancels every load, waits until all have ended, and drops all pages."""
        tasks = [loading.task for loading in self._loading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pages.clear()
        self.kept_bytes = 0

    def _finished(self, key: Key, task: asyncio.Task[Page]) -> None:
        loading = self._loading.get(key)
        is_kept = True
        if loading is not None and loading.task is task:
            is_kept = loading.is_kept
            del self._loading[key]
        if not task.cancelled() and task.exception() is None and is_kept:
            self.put(key, task.result())

    def _abandon(self, key: Key, loading: _Loading) -> None:
        """The last waiter is gone: stops the load, so that the next request starts a new one."""
        if self._loading.get(key) is loading:
            del self._loading[key]
        loading.task.cancel()
