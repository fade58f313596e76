"""Serves row groups of history files as the record batches that consumers get
(docs/design/history.md#parquet-is-the-log).

Promises:
- The batches cover the coordinate's offsets exactly, as those of a run do.
- A row group is decoded once for all concurrent readers, and its batches are kept: `row_group_cache_bytes` of
  them.
- At most `row_group_threads` row groups are decoded at a time, and `row_group_load_bytes` of them are loaded.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from cache_ring.pages.page_cache import PageCache
from cache_ring.pages.page_layout import PageLayout, PageRange
from cache_ring.pages.run_bytes import RunBytes, RunIndexes
from cache_ring.pages.store_pages import DamagedPage
from cache_ring.settings import CacheRingSettings
from sequencer.commits.coordinates import NOTHING, RunCoordinate
from storage.batches.batch_validation import NO_TIMESTAMP_MS
from storage.batches.record_batch import MOST_EMPTY_OFFSETS, Compression, empty_batch
from storage.fair_limit import FairLimit
from storage.identifiers import ObjectKey, Offset, TopicId
from storage.segments.keys import is_history_file
from storage.stores.side_by_side import side_by_side
from storage.threads import Threads

BATCH_BYTES = 1 << 20
"""Bytes of records before compression, in a batch."""
_FOOTERS = 64
_FOOTER_BYTES = 4 << 20
"""Of footers that are kept: part of what an agent takes beyond its settings. A table of a thousand columns
has footers of a megabyte.
"""
_DAMAGE_TRIES = 2

ReadPage = Callable[[PageRange], Coroutine[Any, Any, memoryview]]


class _Key(NamedTuple):
    object_key: ObjectKey
    position: int
    base_offset: Offset
    last_offset: Offset
    compression: Compression


def is_row_group(run: RunCoordinate) -> bool:
    """True if the coordinate names a row group or `NOTHING`, not a run of batches."""
    return run.object_key == NOTHING or is_history_file(run.object_key)


class RowGroups:
    """`compression_of` returns the compression of a topic's batches. `forget` makes the next read go to the
    store.
    """

    def __init__(
        self,
        layout: PageLayout,
        read: ReadPage,
        forget: Callable[[PageRange], None],
        compression_of: Callable[[TopicId], Compression],
        settings: CacheRingSettings,
    ) -> None:
        self._layout = layout
        self._read = read
        self._forget = forget
        self._compression_of = compression_of
        self.cache: PageCache[_Key] = PageCache(settings.row_group_cache_bytes)
        self._indexes = RunIndexes(settings.run_index_batches)
        self._footers: OrderedDict[ObjectKey, memoryview] = OrderedDict()
        self._loading = FairLimit(settings.row_group_load_bytes)
        self._threads = Threads("row-groups", settings.row_group_threads)

    def in_memory(self, run: RunCoordinate) -> RunBytes | None:
        """Returns the batches if they are in this agent's memory."""
        if run.object_key == NOTHING:
            return self._batches(run, _empty_batches(run))
        kept = self.cache.get(self._key(run))
        return None if kept is None else self._batches(run, kept)

    async def read_run(self, run: RunCoordinate) -> RunBytes:
        """Raises ObjectNotFound, StoreUnavailable, or DamagedPage if the store's own bytes are wrong."""
        found = self.in_memory(run)
        if found is None:
            found = self._batches(run, await self.cache.get_or_load(self._key(run), lambda: self._load(run)))
        return found

    def drop(self) -> None:
        """Drops all decoded batches: records of theirs may have been erased."""
        self.cache.drop_all(lambda _: True)
        self._footers.clear()

    async def close(self) -> None:
        await self.cache.close()
        self._threads.close()

    def _key(self, run: RunCoordinate) -> _Key:
        compression = self._compression_of(run.topic_id)
        return _Key(run.object_key, run.position, run.base_offset, run.last_offset, compression)

    def _batches(self, run: RunCoordinate, data: bytes | memoryview) -> RunBytes:
        found = self._indexes.run_bytes(run._replace(length=len(data)), [memoryview(data)])
        if found is None:
            raise DamagedPage(
                f"the batches of {run.object_key} at byte {run.position} do not fill its offsets"
            )
        return found

    async def _load(self, run: RunCoordinate) -> bytes:
        await self._loading.take(None, run.length)
        try:
            for tries in range(1, _DAMAGE_TRIES + 1):
                try:
                    return await self._encoded(run)
                except DamagedPage:
                    self._footers.pop(run.object_key, None)
                    for wanted in self._ranges(run, run.position, run.position + run.length):
                        self._forget(wanted)
                    if tries == _DAMAGE_TRIES:
                        raise
        finally:
            self._loading.give_back(run.length)
        raise AssertionError

    async def _encoded(self, run: RunCoordinate) -> bytes:
        footer = await self._footer(run)
        pieces = await self._pieces(run, run.position, run.position + run.length)
        return await self._threads.run(_encode, run, footer, pieces, self._compression_of(run.topic_id))

    async def _footer(self, run: RunCoordinate) -> memoryview:
        kept = self._footers.get(run.object_key)
        if kept is not None:
            self._footers.move_to_end(run.object_key)
            return kept
        from storage.arrow.row_groups import FOOTER_GUESS_BYTES, footer_bytes

        size = run.object_size_bytes
        tail = b"".join(await self._pieces(run, max(0, size - FOOTER_GUESS_BYTES), size))
        length = footer_bytes(tail)
        if len(tail) < length <= size:
            tail = b"".join(await self._pieces(run, size - length, size))
        footer = memoryview(tail[-length:])
        if length <= _FOOTER_BYTES // 2:
            self._keep(run.object_key, footer)
        return footer

    def _keep(self, key: ObjectKey, footer: memoryview) -> None:
        self._footers[key] = footer
        while len(self._footers) > _FOOTERS or sum(map(len, self._footers.values())) > _FOOTER_BYTES:
            self._footers.popitem(last=False)

    async def _pieces(self, run: RunCoordinate, start: int, end: int) -> list[memoryview]:
        return await side_by_side(map(self._read, self._ranges(run, start, end)))

    def _ranges(self, run: RunCoordinate, start: int, end: int) -> list[PageRange]:
        return self._layout.ranges_of(run.object_key, run.object_size_bytes, start, end)


def _encode(
    run: RunCoordinate, footer: memoryview, pieces: list[memoryview], compression: Compression
) -> bytes:
    # Arrow's import takes 0.1 s. An agent that serves no history never needs it.
    from storage.arrow.arrow_encoding import encode_span
    from storage.arrow.row_groups import DamagedRowGroup, read_row_group

    try:
        records = read_row_group(footer, run.position, pieces, run.partition)
    except DamagedRowGroup as error:
        raise DamagedPage(f"{run.object_key}: {error}") from error
    return encode_span(
        records,
        compression,
        base_offset=run.base_offset,
        last_offset=run.last_offset,
        batch_bytes=BATCH_BYTES,
    )


def _empty_batches(run: RunCoordinate) -> bytes:
    left = run.last_offset - run.base_offset + 1
    batches = []
    while left:
        batches.append(empty_batch(min(left, MOST_EMPTY_OFFSETS), NO_TIMESTAMP_MS))
        left -= min(left, MOST_EMPTY_OFFSETS)
    return b"".join(batches)
