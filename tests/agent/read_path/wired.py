"""The read side of an agent, wired as in agent/assembly.py, without the rest of an agent.

Promises: `run` owns every task of the read side, and `close` ends what is left.
"""

import asyncio
import time
from dataclasses import dataclass

from agent.read_path.known_coordinates import KnownCoordinates
from agent.read_path.reads import ReadPath
from agent.read_path.settings import ReadPathSettings
from agent.topic_traffic import TopicTraffic
from cache_ring.coordinates.coordinate_push import CoordinatePush, PartitionsRead
from cache_ring.pages.page_reader import PageReader
from cache_ring.pages.store_pages import StorePages
from cache_ring.peers.peer_client import PeerClient
from cache_ring.peers.peer_server import PeerServer
from cache_ring.ring.membership import Membership
from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress
from storage.segments.keys import merged_prefix, segments_prefix
from storage.stores.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSide:
    peer_server: PeerServer
    membership: Membership
    pages: PageReader
    reads: ReadPath
    push: CoordinatePush
    partitions_read: PartitionsRead

    async def run(self) -> None:
        """Holds the lease, polls and subscribes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run())
            tasks.create_task(self.reads.coordinates.run())
            tasks.create_task(self.push.run())

    async def close(self) -> None:
        """After `run` has ended: stops serving peers and drops what is in memory."""
        await self.reads.close()
        await self.peer_server.close()
        await self.pages.close()


def new_peer_server(
    sequencer: Sequencer,
    store: ObjectStore,
    catch_up_store: ObjectStore,
    cluster: str,
    settings: CacheRingSettings,
) -> tuple[PeerServer, StorePages]:
    """Makes what must listen before the agent's address is known. `catch_up_store` is a second client of the
    same bucket.
    """
    pages = StorePages(store, catch_up_store, settings)
    prefixes = (segments_prefix(cluster), merged_prefix(cluster))
    return PeerServer(pages, settings, sequencer.agents.peer_secrets, prefixes), pages


def wire_read_side(
    *,
    sequencer: Sequencer,
    peer_server: PeerServer,
    store_pages: StorePages,
    address: AgentAddress,
    ring_settings: CacheRingSettings,
    read_settings: ReadPathSettings,
) -> ReadSide:
    """Makes the read side of an agent at `address`, whose peer port `peer_server` listens on."""
    membership = Membership(sequencer.agents, address, ring_settings)
    pages = PageReader(
        membership, store_pages, PeerClient(ring_settings, membership.peer_secrets), ring_settings
    )
    partitions_read = PartitionsRead(read_settings.recent_reader_s, read_settings.read_partitions)
    known = KnownCoordinates(sequencer, partitions_read, read_settings, push=peer_server.push)
    return ReadSide(
        peer_server=peer_server,
        membership=membership,
        pages=pages,
        reads=ReadPath(known, pages, read_settings, TopicTraffic(0, time.monotonic)),
        partitions_read=partitions_read,
        push=CoordinatePush(membership, ring_settings, partitions_read, known.heard),
    )
