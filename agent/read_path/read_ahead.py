"""Loads the next pages of history for readers that go through it in order (DESIGN §6).

Promises at most `limit_bytes` of pages loaded ahead and not read yet, of all readers together, so that they do not
push one another out of memory; each page once, none that is in memory, and never for the tail: what was just written
is in memory or a push away."""

import asyncio
import logging
from collections.abc import Sequence

from cache_ring.page_layout import PageKey, PageRange
from cache_ring.page_reader import PageReader
from cache_ring.store_pages import DamagedPage
from sequencer.coordinates import RunCoordinate
from storage.object_store import ObjectNotFound, StoreUnavailable

_log = logging.getLogger(__name__)


class ReadAhead:
    def __init__(self, pages: PageReader, limit_bytes: int) -> None:
        self._pages = pages
        self._limit_bytes = limit_bytes
        self._unread: dict[PageKey, PageRange] = {}
        """Loaded or being loaded, and not asked for by a reader."""
        self._unread_bytes = 0
        self._loading: dict[PageKey, asyncio.Task[None]] = {}

    def reader_at(self, known: Sequence[RunCoordinate], read: Sequence[RunCoordinate]) -> None:
        """A reader is about to get the runs `read`, the first of those `known`: load the pages of the next ones, if
        there are any."""
        if self._unread:
            for run in read:
                for wanted in self._pages.ranges_of(run):
                    self._forget(wanted.page)
        for run in known[len(read) :]:
            for wanted in self._pages.ranges_of(run):
                if wanted.page in self._unread or wanted.page in self._loading or self._pages.has(wanted):
                    continue
                if not self._has_room(wanted) or not self._pages.is_history(run):
                    return
                self._unread[wanted.page] = wanted
                self._unread_bytes += wanted.page_bytes
                self._loading[wanted.page] = asyncio.create_task(self._load(wanted))

    async def close(self) -> None:
        tasks = tuple(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, wanted: PageRange) -> None:
        try:
            await asyncio.sleep(0)  # what the reader itself waits for is asked for first
            await self._pages.read(wanted)
        except (ObjectNotFound, StoreUnavailable, DamagedPage) as error:
            self._forget(wanted.page)
            _log.info("read ahead: left out", extra={"object_key": wanted.page.object_key, "error": str(error)})
        finally:
            del self._loading[wanted.page]

    def _has_room(self, wanted: PageRange) -> bool:
        """Pages that are in memory no more (their reader left) make room."""
        if self._unread_bytes + wanted.page_bytes > self._limit_bytes:
            for page, unread in tuple(self._unread.items()):
                if page not in self._loading and not self._pages.has(unread):
                    self._forget(page)
        return self._unread_bytes + wanted.page_bytes <= self._limit_bytes

    def _forget(self, page: PageKey) -> None:
        unread = self._unread.pop(page, None)
        if unread is not None:
            self._unread_bytes -= unread.page_bytes
