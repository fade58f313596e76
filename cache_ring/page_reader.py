"""The bytes of a run, from the nearest place that has them: this agent's memory, the page's owner in its zone, the
store (DESIGN §6).

From a peer only the run's own range is asked and kept, since the rest of the page belongs to partitions that others
read. Promises: bytes that do not tile into the batches and offsets the coordinate names are never returned; a peer
that is slow, gone or wrong costs a wait of about one GET of the store and then a GET, never an error."""

import logging
from collections.abc import Sequence

from cache_ring.membership import Membership
from cache_ring.page_cache import PageCache
from cache_ring.page_protocol import ReadRange
from cache_ring.peer_client import PassedBy, PeerClient
from cache_ring.ring import Ring
from cache_ring.run_bytes import RunBytes, RunIndexes
from cache_ring.settings import CacheRingSettings
from cache_ring.store_pages import DamagedPage, StorePages
from sequencer.agents import LiveAgent
from sequencer.coordinates import RunCoordinate
from storage.identifiers import ObjectKey

_log = logging.getLogger(__name__)

_RangeKey = tuple[ObjectKey, int, int]


class PageReader:
    def __init__(
        self, membership: Membership, pages: StorePages, peers: PeerClient, settings: CacheRingSettings
    ) -> None:
        self._membership = membership
        self._pages = pages
        self._peers = peers
        self._settings = settings
        self._ranges: PageCache[_RangeKey] = PageCache(settings.peer_range_cache_bytes)
        self._indexes = RunIndexes(settings.run_index_batches)
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
        """Keep an object that this agent has just uploaded, whole or in the pieces it was uploaded in."""
        self._pages.put_own(object_key, chunks if isinstance(chunks, bytes) else b"".join(chunks))

    def has(self, coordinate: RunCoordinate) -> bool:
        """Whether the run's bytes are in this agent's memory."""
        in_page = self._pages.has(coordinate.object_key)
        return in_page or _range_key(coordinate) in self._ranges

    def is_history(self, coordinate: RunCoordinate) -> bool:
        return self._pages.is_history(coordinate.object_key)

    async def read(self, coordinate: RunCoordinate) -> memoryview:
        """The run's bytes; raises as `read_run`."""
        return (await self.read_run(coordinate)).data

    async def read_run(self, coordinate: RunCoordinate) -> RunBytes:
        """The run's bytes and batches; raises ObjectNotFound, StoreUnavailable, or DamagedPage when the store's own
        bytes are wrong."""
        found = self._indexes.run_bytes(coordinate, await self._nearest(coordinate))
        if found is not None:
            return found
        _log.warning(
            "read path: bytes of a run were damaged, reading them from the store",
            extra={"object_key": coordinate.object_key, "base_offset": coordinate.base_offset},
        )
        self._pages.forget(coordinate.object_key)
        self._ranges.drop(_range_key(coordinate))
        found = self._indexes.run_bytes(coordinate, await self._from_store(coordinate))
        if found is None:
            self._pages.forget(coordinate.object_key)
            raise DamagedPage(f"{coordinate.object_key} does not hold the run named at {coordinate.position}")
        return found

    async def close(self) -> None:
        self._peers.close()
        await self._ranges.close()
        await self._pages.close()

    async def _nearest(self, coordinate: RunCoordinate) -> memoryview:
        page = self._pages.kept(coordinate.object_key, coordinate.object_size_bytes)
        if page is not None:
            return memoryview(page)[coordinate.position : coordinate.position + coordinate.length]
        owner = self._owner(coordinate.object_key)
        if owner is None or coordinate.object_size_bytes > self._settings.max_page_bytes:
            return await self._from_store(coordinate)
        try:
            return memoryview(
                await self._ranges.get_or_load(_range_key(coordinate), lambda: self._from_peer(owner, coordinate))
            )
        except PassedBy:
            return await self._from_store(coordinate)

    def _owner(self, key: ObjectKey) -> LiveAgent | None:
        """The peer to ask; None when this agent is the owner itself, or nobody is."""
        ring = self._membership.ring
        if ring is not self._ring_seen:
            self._ring_seen = ring
            self._peers.retain(ring.agents)
        owner = ring.owner(self._membership.zone, key)
        self_ = self._membership.self_
        return None if owner is None or self_ is None or owner.node_id == self_.node_id else owner

    async def _from_store(self, coordinate: RunCoordinate) -> memoryview:
        return await self._pages.read(
            coordinate.object_key,
            coordinate.object_size_bytes,
            coordinate.position,
            coordinate.position + coordinate.length,
        )

    async def _from_peer(self, owner: LiveAgent, coordinate: RunCoordinate) -> memoryview:
        request = ReadRange(
            object_key=coordinate.object_key,
            object_size_bytes=coordinate.object_size_bytes,
            start=coordinate.position,
            end=coordinate.position + coordinate.length,
        )
        return await self._peers.read_range(owner, request, self._answer_timeout_s())

    def _answer_timeout_s(self) -> float:
        """About the store's median GET: by then a peer must have given a sign of life."""
        usual_s = self._pages.get_latency.median_s() or self._settings.peer_answer_floor_s
        return min(max(usual_s, self._settings.peer_answer_floor_s), self._settings.peer_answer_ceiling_s)


def _range_key(coordinate: RunCoordinate) -> _RangeKey:
    return coordinate.object_key, coordinate.position, coordinate.length
