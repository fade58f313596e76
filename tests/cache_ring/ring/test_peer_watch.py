"""Agents that watch each other, on a real Postgres and real sockets. Dead and frozen agents leave the routing
long before their lease ends, and return when they answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from cache_ring.pages.store_pages import StorePages
from cache_ring.peers.peer_connection import open_peer_stream
from cache_ring.peers.peer_server import PeerServer
from cache_ring.ring.membership import Membership
from cache_ring.ring.peer_watch import PeerWatch
from cache_ring.ring.probe_protocol import PREFACE, Alive, encode
from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer
from storage.identifiers import NodeId
from storage.stores.memory_store import MemoryStore
from tests.cache_ring.builders import an_address
from tests.support.waiting import until

SETTINGS = CacheRingSettings(
    membership_lease_s=600.0,
    membership_renew_s=0.1,
    membership_margin_s=1.0,
    probe_every_s=0.05,
    probe_patience_s=2.0,
    probe_most_patience_s=4.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What agents know of each other. `die` ends one without a change in Postgres."""

    membership: Membership
    watch: PeerWatch
    server: PeerServer
    tasks: tuple[asyncio.Task[None], ...]

    @property
    def node_id(self) -> int:
        assert self.membership.self_ is not None
        return self.membership.self_.node_id

    @property
    def routes_to(self) -> set[int]:
        return {agent.node_id for agent in self.membership.ring.agents}

    @property
    def leased(self) -> set[int]:
        return {agent.node_id for agent in self.membership.leased.agents}

    @property
    def names(self) -> set[int]:
        return {agent.node_id for agent in self.membership.named.agents}

    @property
    def has_heard_all(self) -> bool:
        """True if each peer that it watches has answered. A peer that never did is not suspected for its
        silence.
        """
        suspects = self.watch._suspects
        heard = {name for name, peer in suspects._peers.items() if peer.has_answered}
        knows_all = {node_id for node_id, _ in suspects._others} == self.routes_to - {self.node_id}
        return knows_all and suspects.watched <= heard

    async def die(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.close()


@asynccontextmanager
async def an_agent_at_work(sequencer: Sequencer, kafka_port: int, peer_port: int = 0) -> AsyncIterator[Agent]:
    store = MemoryStore()
    pages = StorePages(store, store, SETTINGS)
    server = PeerServer(pages, SETTINGS, sequencer.agents.peer_secrets, key_prefixes=("tidelog/segments/",))
    port = await server.start("127.0.0.1", peer_port)
    membership = Membership(sequencer.agents, an_address(peer_port=port, kafka_port=kafka_port), SETTINGS)
    watch = PeerWatch(membership, SETTINGS)
    server.share(PREFACE, watch.take)
    agent = Agent(
        membership=membership,
        watch=watch,
        server=server,
        tasks=(asyncio.create_task(membership.run()), asyncio.create_task(watch.run())),
    )
    try:
        await membership.wait_joined(60.0)
        yield agent
    finally:
        await agent.die()
        await pages.close()
        await membership.leave()


@asynccontextmanager
async def agents_that_know_each_other(sequencer: Sequencer, count: int) -> AsyncIterator[list[Agent]]:
    async with AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(an_agent_at_work(sequencer, 9000 + n)) for n in range(count)
        ]
        everyone = {agent.node_id for agent in agents}
        await until(lambda: all(agent.routes_to == everyone for agent in agents))
        await until(lambda: all(agent.has_heard_all for agent in agents))
        yield agents


async def test_a_dead_agent_is_left_out_while_its_lease_still_holds(sequencer: Sequencer) -> None:
    async with agents_that_know_each_other(sequencer, 3) as [first, second, dead]:
        await dead.die()

        await until(lambda: first.routes_to == second.routes_to == {first.node_id, second.node_id})

        everyone = {first.node_id, second.node_id, dead.node_id}
        assert first.leased == second.leased == everyone
        assert first.names == everyone, "its address is named on, though it leads nothing"


async def test_an_agent_that_starts_again_at_its_address_is_taken_back(sequencer: Sequencer) -> None:
    async with agents_that_know_each_other(sequencer, 3) as [first, second, dead]:
        address = dead.membership.self_.address  # type: ignore[union-attr]
        await dead.die()
        await until(lambda: dead.node_id not in first.routes_to)

        async with an_agent_at_work(sequencer, address.kafka_port, address.peer_port) as back:
            assert back.node_id == dead.node_id
            await until(
                lambda: first.routes_to == second.routes_to == {first.node_id, second.node_id, back.node_id}
            )


async def test_an_agent_that_says_that_it_leaves_is_left_out_at_once(sequencer: Sequencer) -> None:
    async with agents_that_know_each_other(sequencer, 3) as [first, second, leaving]:
        leaving.watch.leave()

        await until(lambda: first.routes_to == second.routes_to == {first.node_id, second.node_id})


async def test_agents_that_do_not_watch_the_dead_one_hear_of_it(sequencer: Sequencer) -> None:
    async with agents_that_know_each_other(sequencer, 9) as agents:
        dead = agents.pop()

        await dead.die()

        await until(lambda: all(dead.node_id not in agent.routes_to for agent in agents))
        assert sum(agent.watch.counts.reports for agent in agents) >= 2


async def test_a_silent_agent_is_left_out_and_taken_back_when_it_answers(sequencer: Sequencer) -> None:
    """Its peer port accepts connections and reads nothing, as that of a frozen process does."""
    async with agents_that_know_each_other(sequencer, 3) as [first, second, frozen]:
        thaw = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await thaw.wait()
            await frozen.watch.take(reader, writer)

        frozen.server._guests[PREFACE] = silent
        for writer in list(frozen.watch._watchers):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        others = {first.node_id, second.node_id}

        await until(lambda: first.routes_to == second.routes_to == others)
        assert first.names == others, "clients let go of what a frozen agent does not answer"

        thaw.set()
        for writer in list(frozen.watch._watchers):
            with contextlib.suppress(RuntimeError):
                writer.transport.resume_reading()  # type: ignore[attr-defined]
        await until(lambda: first.routes_to == second.routes_to == others | {frozen.node_id})


async def test_bytes_of_another_protocol_end_that_connection_alone(sequencer: Sequencer) -> None:
    async with agents_that_know_each_other(sequencer, 2) as [first, second]:
        address = first.membership.self_.address  # type: ignore[union-attr]
        reader, writer = await open_peer_stream("127.0.0.1", address.peer_port, sequencer.agents.peer_secrets)
        writer.write(PREFACE + b"\x07nonsense")

        assert await reader.read() == b""
        await until(lambda: first.server.counts.violations == 1)
        assert second.routes_to == {first.node_id, second.node_id}
        writer.close()


async def test_a_flood_of_probes_is_read_in_small_pieces_each_answered_once(sequencer: Sequencer) -> None:
    """Each frame of one byte was answered once: one client blocked the agent for seconds."""
    async with agents_that_know_each_other(sequencer, 2) as [first, _]:
        address = first.membership.self_.address  # type: ignore[union-attr]
        reader, writer = await open_peer_stream("127.0.0.1", address.peer_port, sequencer.agents.peer_secrets)
        probes = 400_000
        writer.write(PREFACE + b"\x01" * probes)
        writer.write_eof()

        answers = len(await reader.read()) // len(encode(Alive(name=(NodeId(1), 1), is_leaving=False)))

        assert 0 < answers < probes / 1_000
        writer.close()
