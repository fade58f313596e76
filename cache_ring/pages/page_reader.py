"""Reads the bytes of a run from the nearest place: this agent's memory, the page's owner in its zone, or the
store (docs/design/read-path.md#pages).

From a peer only the run's own range is read and kept, because the rest of the page belongs to other
partitions.

Promises:
- Bytes that do not match the batches and offsets of the coordinate are never returned.
- A peer that is slow, gone or wrong costs a wait of about one GET, and then a GET. It never causes an error.
"""

import logging
from collections.abc import Callable, Sequence

from cache_ring.pages.page_cache import PageCache
from cache_ring.pages.page_layout import PageKey, PageRange
from cache_ring.pages.row_groups import RowGroups, is_row_group
from cache_ring.pages.run_bytes import RunBytes, RunIndexes
from cache_ring.pages.store_pages import DamagedPage, StorePages, was_made_before
from cache_ring.peers.page_protocol import ReadRange
from cache_ring.peers.peer_client import PeerClient, PeerUnavailable
from cache_ring.ring.membership import Membership
from cache_ring.ring.ring import Ring
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import LiveAgent
from sequencer.commits.coordinates import RunCoordinate
from sequencer.topics.topic_key_cache import TopicKeys
from storage.batches.record_batch import Compression
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import KeyId, ObjectKey, TopicId
from storage.segments.keys import inline_bytes, is_inline
from storage.stores.side_by_side import side_by_side

log = logging.getLogger("tidelog")

_RangeKey = tuple[ObjectKey, int, int]


class PageReader:
    def __init__(
        self,
        membership: Membership,
        pages: StorePages,
        peers: PeerClient,
        settings: CacheRingSettings,
        compression_of: Callable[[TopicId], Compression] = lambda _: Compression.ZSTD,
        keys: TopicKeys | None = None,
    ) -> None:
        """`compression_of` returns the compression of records that are read from a topic's history. `keys`
        decrypt it.
        """
        self._membership = membership
        self._pages = pages
        self._peers = peers
        self._settings = settings
        self._ranges: PageCache[_RangeKey] = PageCache(settings.peer_range_cache_bytes)
        self._indexes = RunIndexes(settings.run_index_batches)
        self._row_groups = RowGroups(
            pages.layout,
            self.read,
            lambda wanted: self._forget([wanted]),
            compression_of,
            _no_key if keys is None else keys.of_id,
            settings,
        )
        self._ring_seen: Ring | None = None

    @property
    def pages(self) -> StorePages:
        return self._pages

    @property
    def peers(self) -> PeerClient:
        return self._peers

    @property
    def range_cache(self) -> PageCache[_RangeKey]:
        return self._ranges

    def put_own(self, object_key: ObjectKey, chunks: bytes | Sequence[bytes | memoryview]) -> None:
        """Keeps an object that this agent has just uploaded, whole or in its pieces."""
        self._pages.put_own(object_key, chunks if isinstance(chunks, bytes) else b"".join(chunks))

    def ranges_of(self, run: RunCoordinate) -> list[PageRange]:
        """Returns the pages of the run's bytes, with the range in each."""
        if not run.length or is_inline(run.object_key):
            return []
        return self._pages.layout.ranges_of(
            run.object_key, run.object_size_bytes, run.position, run.position + run.length
        )

    def has(self, wanted: PageRange) -> bool:
        """True if the bytes are in this agent's memory."""
        return self._pages.has(wanted.page) or _range_key(wanted) in self._ranges

    def in_memory(self, run: RunCoordinate) -> RunBytes | None:
        """Returns the run's bytes and batches if they are in this agent's memory and belong to the run."""
        if is_row_group(run):
            return self._row_groups.in_memory(run)
        if (inline := inline_bytes(run.object_key)) is not None:
            return RunBytes.of(run, [memoryview(inline)])
        pieces = []
        for wanted in self.ranges_of(run):
            piece = self._kept(wanted)
            if piece is None:
                return None
            pieces.append(piece)
        return self._indexes.run_bytes(run, pieces)

    def pages_of(self, run: RunCoordinate) -> tuple[PageKey, ...]:
        return tuple(wanted.page for wanted in self.ranges_of(run))

    def brings_all_of(self, page: PageKey, run: RunCoordinate) -> bool:
        """True if reading the run, which is in this page alone, leaves the whole page in this agent's memory.
        False for a peer's page, or one too large to keep."""
        if is_row_group(run):
            return False
        [wanted] = self.ranges_of(run)
        return self._pages.keeps(wanted) and self._owner(page) is None

    def is_of_a_peer(self, page: PageKey) -> bool:
        """True if the page is read from a peer: then the range is kept, not the page."""
        return self._owner(page) is not None

    def is_history(self, coordinate: RunCoordinate) -> bool:
        return self._pages.is_history(coordinate.object_key)

    async def read_run(self, run: RunCoordinate) -> RunBytes:
        """Returns the run's bytes and batches. Raises ObjectNotFound, StoreUnavailable, or DamagedPage if the
        store's own bytes are wrong."""
        if is_row_group(run):
            return await self._row_groups.read_run(run)
        if is_inline(run.object_key):
            inline = self.in_memory(run)
            if inline is None:
                raise DamagedPage(f"the key {run.object_key} does not hold its run")
            return inline
        ranges = self.ranges_of(run)
        found = self._indexes.run_bytes(run, await side_by_side(map(self.read, ranges)))
        if found is not None:
            return found
        log.warning(
            "read path: bytes of a run were damaged, reading them from the store",
            extra={"object_key": run.object_key, "base_offset": run.base_offset},
        )
        self._forget(ranges)
        found = self._indexes.run_bytes(run, await side_by_side(map(self._pages.read, ranges)))
        if found is None:
            self._forget(ranges)
            raise DamagedPage(f"{run.object_key} does not hold the run named at {run.position}")
        return found

    async def read(self, wanted: PageRange) -> memoryview:
        """Returns the bytes from the nearest place. Raises ObjectNotFound, StoreUnavailable or
        DamagedPage."""
        kept = self._kept(wanted)
        if kept is not None:
            return kept
        owner = self._owner(wanted.page)
        if owner is None:
            return await self._pages.read(wanted)
        try:
            return memoryview(
                await self._ranges.get_or_load(_range_key(wanted), lambda: self._from_peer(owner, wanted))
            )
        except PeerUnavailable:
            return await self._pages.read(wanted)

    def drop_made_before(self, time_ms: int) -> None:
        """Drops what memory has of objects made before a time: records of theirs were erased."""
        self._pages.drop_made_before(time_ms)
        self._ranges.drop_all(lambda key: was_made_before(key[0], time_ms))
        self._row_groups.drop()

    async def close(self) -> None:
        self._peers.close()
        await self._row_groups.close()
        await self._ranges.close()
        await self._pages.close()

    def _kept(self, wanted: PageRange) -> memoryview | None:
        piece = self._pages.kept(wanted)
        if piece is None and (received := self._ranges.get(_range_key(wanted))) is not None:
            piece = memoryview(received)
        return piece

    def _forget(self, ranges: Sequence[PageRange]) -> None:
        for wanted in ranges:
            self._pages.forget(wanted.page)
            self._ranges.drop(_range_key(wanted))

    def _owner(self, page: PageKey) -> LiveAgent | None:
        """Returns the peer to ask. None: this agent is the owner, or there is none."""
        ring = self._membership.ring
        if ring is not self._ring_seen:
            self._ring_seen = ring
            self._peers.retain(ring.agents)
        owner = ring.owner(self._membership.zone, page.ring_key)
        self_ = self._membership.self_
        return None if owner is None or self_ is None or owner.node_id == self_.node_id else owner

    async def _from_peer(self, owner: LiveAgent, wanted: PageRange) -> memoryview:
        request = ReadRange(
            object_key=wanted.page.object_key,
            object_size_bytes=wanted.object_size_bytes,
            start=wanted.start,
            end=wanted.end,
        )
        is_history = self._pages.is_history(request.object_key)
        return await self._peers.read_range(owner, request, self._answer_timeout_s(), is_history=is_history)

    def _answer_timeout_s(self) -> float:
        """About the store's median GET. A peer must show a sign of life within that time."""
        usual_s = self._pages.get_latency.median_s() or self._settings.peer_answer_floor_s
        return min(max(usual_s, self._settings.peer_answer_floor_s), self._settings.peer_answer_ceiling_s)


async def _no_key(_: TopicId, key_id: KeyId) -> TopicKey:
    raise KeyUnavailable(f"this process has no keys of topics, and history needs {key_id:016x}")


def _range_key(wanted: PageRange) -> _RangeKey:
    return wanted.page.object_key, wanted.start, wanted.end
