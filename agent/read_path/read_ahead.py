"""Loads the next pages of history for readers that go through it in order
(docs/design/read-path.md#reading-ahead).

Promises:
- Pages loaded ahead and not read yet are bounded in bytes and number: of all readers together, and of each.
  Readers share evenly, so that they do not push one another out of memory.
- Few pages are loaded ahead at once, and readers take turns. What a reader waits for itself finds free
  connections.
- A page in memory, or being loaded, is not loaded again.
- It ends when the reader's connection closes, and for a partition when the reader jumps. What was loaded in
  vain is counted.
- Never for the tail: what was just written is in memory or a push away.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from agent.read_path.settings import ReadPathSettings
from cache_ring.pages.page_layout import PageKey, PageRange
from cache_ring.pages.page_reader import PageReader
from cache_ring.pages.store_pages import DamagedPage
from sequencer.commits.coordinates import PartitionKey, RunCoordinate
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectNotFound, StoreUnavailable

log = logging.getLogger("tidelog")

_Key: TypeAlias = PageKey | tuple[ObjectKey, int, int]
"""A page that this agent loads whole, or a range to read from a peer."""


class Reader(Protocol):
    """A connection."""

    @property
    def is_gone(self) -> bool: ...


@dataclass(slots=True)
class ReadAheadCounts:
    """Counters for metrics."""

    loads: int = 0
    bytes_loaded: int = 0
    bytes_wasted: int = 0
    """Bytes loaded and not read before the reader went away, jumped, or was too slow."""


class AheadLimits(NamedTuple):
    """Limits of all readers together, and of one."""

    size_bytes: int
    pages: int
    reader_bytes: int
    reader_pages: int
    loads: int

    @classmethod
    def of(cls, settings: ReadPathSettings, cache_bytes: int) -> "AheadLimits":
        size_bytes = min(settings.catch_up_read_ahead_bytes, cache_bytes // 2)
        return cls(
            size_bytes=size_bytes,
            pages=settings.catch_up_read_ahead_pages,
            reader_bytes=min(settings.catch_up_reader_ahead_bytes, size_bytes),
            reader_pages=settings.catch_up_reader_ahead_pages,
            loads=settings.catch_up_read_ahead_loads,
        )


@dataclass(slots=True, eq=False)
class _Course:
    """A reader on its way through history."""

    reader: Reader
    unread: dict[_Key, "_Ahead"] = field(default_factory=dict)
    unread_bytes: int = 0
    waiting: dict[_Key, "_Ahead"] = field(default_factory=dict)
    """Those that wait for their turn to be loaded."""
    reached: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)
    """The offset of the last read per partition, and the offset up to which pages were loaded ahead."""


@dataclass(slots=True, eq=False)
class _Ahead:
    course: _Course
    partition: PartitionKey
    key: _Key
    wanted: PageRange
    size_bytes: int
    is_loaded: bool = False


class ReadAhead:
    def __init__(self, pages: PageReader, limits: AheadLimits) -> None:
        self._pages = pages
        self._limits = limits
        self._courses: dict[int, _Course] = {}
        """Readers with pages that were loaded ahead and not read, by the reader's identity."""
        self._turns: deque[_Course] = deque()
        """Those with pages that wait to be loaded."""
        self._unread: dict[_Key, _Ahead] = {}
        self._unread_bytes = 0
        self._loading: dict[_Key, asyncio.Task[None]] = {}
        self._is_closed = False
        self.counts = ReadAheadCounts()

    @property
    def unread_bytes(self) -> int:
        return self._unread_bytes

    @property
    def unread_pages(self) -> int:
        return len(self._unread)

    @property
    def loading(self) -> int:
        return len(self._loading)

    def reader_at(
        self,
        reader: Reader,
        partition: PartitionKey,
        known: Sequence[RunCoordinate],
        read: Sequence[RunCoordinate],
    ) -> None:
        """A reader is about to get the runs `read`, the first of `known`. Loads the pages of the next runs,
        if there are any.
        """
        course = self._courses.get(id(reader))
        if self._unread:
            if course is not None:
                self._note_jump(course, partition, read[0])
            for run in read:
                for wanted in self._pages.ranges_of(run):
                    self._taken(wanted)
        if len(known) == len(read) or not self._limits.size_bytes or not self._pages.is_history(known[-1]):
            return
        course = self._courses.get(id(reader)) or _Course(reader)
        until = self._plan(course, partition, known[len(read) :])
        if course.unread:
            self._courses[id(reader)] = course
            course.reached[partition] = (read[0].base_offset, until)
        self._load_in_turn()

    async def close(self) -> None:
        self._is_closed = True
        tasks = tuple(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _plan(self, course: _Course, partition: PartitionKey, runs: Sequence[RunCoordinate]) -> int:
        """Queues missing pages, as far as there is room. Returns the offset up to which that is."""
        _, until = course.reached.get(partition, (0, 0))
        for run in runs:
            if run.base_offset < until:
                continue
            for wanted in self._pages.ranges_of(run):
                range_key = (wanted.page.object_key, wanted.start, wanted.end)
                if self._is_coming(wanted.page) or self._is_coming(range_key) or self._pages.has(wanted):
                    continue
                is_peers = self._pages.is_of_a_peer(wanted.page)
                size_bytes = wanted.end - wanted.start if is_peers else wanted.page_bytes
                if not self._has_room(course, size_bytes):
                    return until
                key: _Key = range_key if is_peers else wanted.page
                self._queue(_Ahead(course, partition, key, wanted, size_bytes))
            until = run.last_offset + 1
        return until

    def _is_coming(self, key: _Key) -> bool:
        return key in self._unread or key in self._loading

    def _queue(self, ahead: _Ahead) -> None:
        course = ahead.course
        if not course.waiting:
            self._turns.append(course)
        self._unread[ahead.key] = course.unread[ahead.key] = course.waiting[ahead.key] = ahead
        self._unread_bytes += ahead.size_bytes
        course.unread_bytes += ahead.size_bytes

    def _has_room(self, course: _Course, size_bytes: int) -> bool:
        """A reader may always have one page, if the limits of all readers have room for it."""
        limits = self._limits
        if not self._fits(size_bytes):
            self._sweep()
        readers = len(self._courses) + (id(course.reader) not in self._courses)
        share_bytes = min(limits.reader_bytes, limits.size_bytes // readers)
        share_pages = min(limits.reader_pages, limits.pages // readers)
        is_within = course.unread_bytes + size_bytes <= share_bytes and len(course.unread) < share_pages
        return self._fits(size_bytes) and (is_within or not course.unread)

    def _fits(self, size_bytes: int) -> bool:
        limits = self._limits
        return self._unread_bytes + size_bytes <= limits.size_bytes and len(self._unread) < limits.pages

    def _sweep(self) -> None:
        """Frees the room of readers that left, and of pages that are no longer in memory."""
        for course in [course for course in self._courses.values() if course.reader.is_gone]:
            self._leave(course)
        for ahead in [ahead for ahead in self._unread.values() if ahead.is_loaded]:
            if not self._pages.has(ahead.wanted):
                self._waste(ahead)

    def _note_jump(self, course: _Course, partition: PartitionKey, first: RunCoordinate) -> None:
        read_from, until = course.reached.get(partition, (0, 0))
        if until and not read_from <= first.base_offset <= until:
            del course.reached[partition]
            for ahead in [ahead for ahead in course.unread.values() if ahead.partition == partition]:
                self._waste(ahead)

    def _leave(self, course: _Course) -> None:
        for ahead in tuple(course.unread.values()):
            self._waste(ahead)

    def _taken(self, wanted: PageRange) -> None:
        """A reader reads the page now. It may have been loaded for another one."""
        ahead = self._unread.get(wanted.page) or self._unread.get(
            (wanted.page.object_key, wanted.start, wanted.end)
        )
        if ahead is not None:
            self._forget(ahead)

    def _waste(self, ahead: _Ahead) -> None:
        self._forget(ahead)
        if ahead.is_loaded:
            self.counts.bytes_wasted += ahead.size_bytes
        elif (loading := self._loading.get(ahead.key)) is not None:
            loading.cancel()

    def _forget(self, ahead: _Ahead) -> None:
        course = ahead.course
        if self._unread.get(ahead.key) is not ahead:
            return  # it is forgotten already, and the page may belong to another reader by now
        del self._unread[ahead.key], course.unread[ahead.key]
        course.waiting.pop(ahead.key, None)
        self._unread_bytes -= ahead.size_bytes
        course.unread_bytes -= ahead.size_bytes
        if not course.unread:
            self._courses.pop(id(course.reader), None)

    def _load_in_turn(self) -> None:
        """Loads one page of each reader after another."""
        while self._turns and len(self._loading) < self._limits.loads and not self._is_closed:
            course = self._turns.popleft()
            if course.reader.is_gone:
                self._leave(course)
            if not course.waiting:
                continue
            key, ahead = next(iter(course.waiting.items()))
            del course.waiting[key]
            task = self._loading[key] = asyncio.create_task(self._load(ahead))
            task.add_done_callback(partial(self._ended, ahead))
            if course.waiting:
                self._turns.append(course)

    async def _load(self, ahead: _Ahead) -> None:
        try:
            await asyncio.sleep(0)  # the reader's own pages are requested first
            await self._pages.read(ahead.wanted)
            ahead.is_loaded = True
            self.counts.loads += 1
            self.counts.bytes_loaded += ahead.size_bytes
        except (ObjectNotFound, StoreUnavailable, DamagedPage) as error:
            self._forget(ahead)
            log.info(
                "read ahead: a page could not be loaded",
                extra={"object_key": ahead.wanted.page.object_key, "error": str(error)},
            )

    def _ended(self, ahead: _Ahead, _: asyncio.Task[None]) -> None:
        """Also called for a load that was cancelled before it began."""
        del self._loading[ahead.key]
        if ahead.course.reader.is_gone:
            self._leave(ahead.course)
        self._load_in_turn()
