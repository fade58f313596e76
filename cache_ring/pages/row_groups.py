"""Serves row groups of history files as the record batches that consumers get
(docs/design/history.md#parquet-is-the-log).

Promises:
- The batches cover the coordinate's offsets exactly, as those of a run do.
- A row group is decoded once for all concurrent readers, and its batches are kept: `row_group_cache_bytes` of
  them.
- At most `row_group_threads` row groups are decoded at a time, and `row_group_load_bytes` of them are loaded.
- The batches of an encrypted file are sealed with its key before they are kept. The read path opens them, as
  it opens those of segments. A wait for a key holds no room of others.
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
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import TopicKey, sealed_batches
from storage.fair_limit import FairLimit
from storage.identifiers import KeyId, ObjectKey, Offset, TopicId
from storage.segments.keys import is_history_file
from storage.stores.object_store import StoreUnavailable
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
KeyOf = Callable[[TopicId, KeyId], Coroutine[Any, Any, TopicKey]]


class _Footer(NamedTuple):
    data: memoryview
    key_id: KeyId | None
    """Of the topic's key that encrypts the file; None: it is in the clear."""


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
    """`compression_of` returns the compression of a topic's batches, `key_of` a key of a topic or raises
    KeyUnavailable. `forget` makes the next read go to the store.
    """

    def __init__(
        self,
        layout: PageLayout,
        read: ReadPage,
        forget: Callable[[PageRange], None],
        compression_of: Callable[[TopicId], Compression],
        key_of: KeyOf,
        settings: CacheRingSettings,
    ) -> None:
        self._layout = layout
        self._read = read
        self._forget = forget
        self._compression_of = compression_of
        self._key_of = key_of
        self.cache: PageCache[_Key] = PageCache(settings.row_group_cache_bytes)
        self._indexes = RunIndexes(settings.run_index_batches)
        self._footers: OrderedDict[ObjectKey, _Footer] = OrderedDict()
        self._loading = FairLimit(settings.row_group_load_bytes)
        self._threads = Threads("row-groups", settings.row_group_threads)

    def in_memory(self, run: RunCoordinate) -> RunBytes | None:
        """Returns the batches if they are in this agent's memory."""
        if run.object_key == NOTHING:
            return self._batches(run, _empty_batches(run))
        kept = self.cache.get(self._key(run))
        return None if kept is None else self._batches(run, kept)

    async def read_run(self, run: RunCoordinate) -> RunBytes:
        """Raises ObjectNotFound, StoreUnavailable (also without the key of the file), or DamagedPage if the
        store's own bytes are wrong.
        """
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
        for tries in range(1, _DAMAGE_TRIES + 1):
            try:
                return await self._encoded(run)
            except DamagedPage:
                self._footers.pop(run.object_key, None)
                for wanted in self._ranges(run, run.position, run.position + run.length):
                    self._forget(wanted)
                if tries == _DAMAGE_TRIES:
                    raise
        raise AssertionError

    async def _encoded(self, run: RunCoordinate) -> bytes:
        footer = await self._footer(run)
        key: TopicKey | None = None
        if footer.key_id is not None:
            try:
                key = await self._key_of(run.topic_id, footer.key_id)
            except KeyUnavailable as error:
                raise StoreUnavailable(str(error)) from error
        await self._loading.take(None, run.length)
        try:
            pieces = await self._pieces(run, run.position, run.position + run.length)
            compression = self._compression_of(run.topic_id)
            return await self._threads.run(_encode, run, footer.data, pieces, compression, key)
        finally:
            self._loading.give_back(run.length)

    async def _footer(self, run: RunCoordinate) -> _Footer:
        kept = self._footers.get(run.object_key)
        if kept is not None:
            self._footers.move_to_end(run.object_key)
            return kept
        from storage.arrow.row_groups import FOOTER_GUESS_BYTES

        guess = min(FOOTER_GUESS_BYTES, run.object_size_bytes)
        await self._loading.take(None, guess)
        try:
            data = await self._footer_bytes(run, guess)
            footer = _Footer(data, await self._threads.run(_key_id, run.object_key, data))
        finally:
            self._loading.give_back(guess)
        if len(data) <= _FOOTER_BYTES // 2:
            self._keep(run.object_key, footer)
        return footer

    async def _footer_bytes(self, run: RunCoordinate, guess: int) -> memoryview:
        from storage.arrow.row_groups import footer_bytes

        size = run.object_size_bytes
        tail = b"".join(await self._pieces(run, size - guess, size))
        length = footer_bytes(tail)
        if len(tail) < length <= size:
            tail = b"".join(await self._pieces(run, size - length, size))
        return memoryview(tail[-length:])

    def _keep(self, key: ObjectKey, footer: _Footer) -> None:
        kept = self._footers
        kept[key] = footer
        while len(kept) > _FOOTERS or sum(len(each.data) for each in kept.values()) > _FOOTER_BYTES:
            kept.popitem(last=False)

    async def _pieces(self, run: RunCoordinate, start: int, end: int) -> list[memoryview]:
        return await side_by_side(map(self._read, self._ranges(run, start, end)))

    def _ranges(self, run: RunCoordinate, start: int, end: int) -> list[PageRange]:
        return self._layout.ranges_of(run.object_key, run.object_size_bytes, start, end)


def _key_id(object_key: ObjectKey, footer: memoryview) -> KeyId | None:
    # Arrow's import takes 0.1 s. An agent that serves no history never needs it.
    from storage.arrow.row_groups import DamagedRowGroup, key_id_of_footer

    try:
        return key_id_of_footer(footer, object_key)
    except DamagedRowGroup as error:
        raise DamagedPage(f"{object_key}: {error}") from error


def _encode(
    run: RunCoordinate,
    footer: memoryview,
    pieces: list[memoryview],
    compression: Compression,
    key: TopicKey | None,
) -> bytes:
    from storage.arrow.arrow_encoding import encode_span
    from storage.arrow.row_groups import DamagedRowGroup, read_row_group

    try:
        records = read_row_group(footer, run.position, pieces, run.partition, key)
    except DamagedRowGroup as error:
        raise DamagedPage(f"{run.object_key}: {error}") from error
    batches = encode_span(
        records,
        compression,
        base_offset=run.base_offset,
        last_offset=run.last_offset,
        batch_bytes=BATCH_BYTES,
    )
    return batches if key is None else sealed_batches(batches, run.partition, key)


def _empty_batches(run: RunCoordinate) -> bytes:
    left = run.last_offset - run.base_offset + 1
    batches = []
    while left:
        batches.append(empty_batch(min(left, MOST_EMPTY_OFFSETS), NO_TIMESTAMP_MS))
        left -= min(left, MOST_EMPTY_OFFSETS)
    return b"".join(batches)
