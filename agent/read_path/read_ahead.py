"""Loads the next pages of history for a reader that goes through it in order (DESIGN §6).

Promises at most `limit_bytes` of pages being loaded ahead, each once, none that is in memory, and never for the tail:
what was just written is in memory or a push away."""

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
        self._loading: dict[PageKey, asyncio.Task[None]] = {}
        self._loading_bytes = 0

    def reader_at(self, known: Sequence[RunCoordinate], read: Sequence[RunCoordinate]) -> None:
        """A reader has just got the runs `read`, the first of those `known`: load the pages of the next ones."""
        for run in known[len(read) :]:
            if not self._pages.is_history(run):
                continue
            for wanted in self._pages.ranges_of(run):
                if wanted.page in self._loading or self._pages.has(wanted):
                    continue
                if self._loading_bytes + wanted.page_bytes > self._limit_bytes:
                    return
                self._loading_bytes += wanted.page_bytes
                self._loading[wanted.page] = asyncio.create_task(self._load(wanted))

    async def close(self) -> None:
        tasks = tuple(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, wanted: PageRange) -> None:
        try:
            await self._pages.read(wanted)
        except (ObjectNotFound, StoreUnavailable, DamagedPage) as error:
            _log.info("read ahead: left out", extra={"object_key": wanted.page.object_key, "error": str(error)})
        finally:
            del self._loading[wanted.page]
            self._loading_bytes -= wanted.page_bytes
