"""Two agents' peer ports in one process: pages served, pushes delivered, hostile bytes refused, slow peers
skipped.
"""

import asyncio
import math
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest

from cache_ring.pages.store_pages import StorePages
from cache_ring.peers.page_protocol import (
    FOUND_OVERHEAD_BYTES,
    PREFACE,
    ReadRange,
    RunsCommitted,
    decode,
    encode_found,
    encode_read,
    encode_subscribe,
)
from cache_ring.peers.peer_client import PeerClient, PeerUnavailable
from cache_ring.peers.peer_connection import Secrets, open_peer_stream
from cache_ring.peers.peer_server import PeerServer
from cache_ring.settings import CacheRingSettings
from storage.identifiers import ObjectKey, Partition, SegmentId, new_segment_id
from storage.segments.keys import segment_key
from storage.stores.memory_store import MemoryStore
from tests.cache_ring.builders import ORDERS, a_peer_port, a_run, an_agent, secrets
from tests.support.waiting import until

SETTINGS = CacheRingSettings(peer_answer_floor_s=5.0, peer_answer_ceiling_s=5.0, peer_skip_s=60.0)
IMPATIENT = SETTINGS.model_copy(update={"peer_answer_floor_s": 0.05, "peer_load_timeout_s": 0.2})
DATA = os.urandom(300_000)


def a_key() -> ObjectKey:
    return segment_key("tidelog", new_segment_id())


def a_request(key: ObjectKey, start: int = 100, end: int = 200_100, size: int = len(DATA)) -> ReadRange:
    return ReadRange(object_key=key, object_size_bytes=size, start=start, end=end)


class Peer:
    """An agent's peer port over a store."""

    def __init__(self, settings: CacheRingSettings = SETTINGS, secrets: Secrets = secrets) -> None:
        self.secrets = secrets
        self.store = MemoryStore()
        self.pages = StorePages(self.store, self.store, settings)
        self.server = PeerServer(
            self.pages, settings, lambda: self.secrets(), key_prefixes=("tidelog/segments/",)
        )

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        port = await self.server.start("127.0.0.1", 0)
        try:
            yield port
        finally:
            await self.server.close()
            await self.pages.close()


def held_back(peer: Peer) -> asyncio.Event:
    """The peer's store answers once this is set."""
    release = asyncio.Event()
    get = peer.store.get

    async def slow_get(key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        await release.wait()
        return await get(key, start, end)

    peer.store.get = slow_get  # type: ignore[method-assign]
    return release


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[int]:
    """A peer that answers everything with the same bytes, or never."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(65_536):
                if answer is not None:
                    writer.write(answer)
        writer.close()

    async with a_peer_port(converse) as port:
        yield port


async def test_a_range_comes_from_the_peer_and_its_page_from_the_store_once() -> None:
    peer, client, key = Peer(), PeerClient(SETTINGS, secrets), a_key()
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        agent = an_agent(1, peer_port=port)
        ranges = [(start, start + 1000) for start in range(0, 50_000, 1000)]

        found = await asyncio.gather(
            *(client.read_range(agent, a_request(key, start, end), 5.0) for start, end in ranges)
        )

        assert [bytes(data) for data in found] == [DATA[start:end] for start, end in ranges]
        assert peer.pages.counts.gets == 1
    client.close()


async def test_a_connection_is_used_again() -> None:
    peer, client, key = Peer(), PeerClient(SETTINGS, secrets), a_key()
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        for _ in range(5):
            await client.read_range(an_agent(1, peer_port=port), a_request(key), 5.0)

        assert peer.server.connections == 1
    client.close()


async def test_a_connection_that_the_peer_closed_while_idle_is_opened_again() -> None:
    client, key = PeerClient(SETTINGS, secrets), a_key()
    first, second = Peer(), Peer()
    for peer in (first, second):
        await peer.store.put(key, [DATA])
    async with first.listening() as port:
        await client.read_range(an_agent(1, peer_port=port), a_request(key), 5.0)
    await second.server.start("127.0.0.1", port)

    assert await client.read_range(an_agent(1, peer_port=port), a_request(key), 5.0) == DATA[100:200_100]
    client.close()
    await second.server.close()


class SilentStore(MemoryStore):
    """Signals that it began to answer, and never does."""

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        await asyncio.Event().wait()
        return await super().get(key, start, end)


async def test_history_that_waits_at_a_peer_does_not_delay_the_tail() -> None:
    """History that was given up does not make the tail skip the peer either."""
    store, settings = (
        SilentStore(),
        IMPATIENT.model_copy(update={"peer_answer_floor_s": 5.0, "peer_load_timeout_s": 1.0}),
    )
    pages = StorePages(store, store, settings)
    server = PeerServer(pages, settings, secrets, key_prefixes=("tidelog/segments/",))
    client, key = PeerClient(settings, secrets), a_key()
    pages.put_own(key, DATA)
    agent = an_agent(1, peer_port=await server.start("127.0.0.1", 0))
    old = [segment_key("tidelog", SegmentId(UUID(int=number))) for number in range(20)]

    history = [
        asyncio.create_task(client.read_range(agent, a_request(of_old), 5.0, is_history=True))
        for of_old in old
    ]
    await until(lambda: server.connections == settings.peer_history_connections)
    beside = await client.read_range(agent, a_request(key), 5.0)
    given_up = await asyncio.gather(*history, return_exceptions=True)
    afterwards = await client.read_range(agent, a_request(key), 5.0)

    assert beside == afterwards == DATA[100:200_100]
    assert {type(end) for end in given_up} == {PeerUnavailable}
    with pytest.raises(PeerUnavailable, match="skipped"):
        await client.read_range(agent, a_request(key), 5.0, is_history=True)
    client.close()
    await server.close()
    await pages.close()


async def test_an_object_that_is_missing_at_the_peer_is_left_to_the_store() -> None:
    peer, client = Peer(), PeerClient(SETTINGS, secrets)
    async with peer.listening() as port:
        with pytest.raises(PeerUnavailable, match="NOT_FOUND"):
            await client.read_range(an_agent(1, peer_port=port), a_request(a_key()), 5.0)
    client.close()


@pytest.mark.parametrize(
    "request_",
    [
        a_request(ObjectKey("secrets/of/others")),
        a_request(ObjectKey("tidelog/segments/x"), start=5, end=5),
        a_request(ObjectKey("tidelog/segments/x"), start=5, end=4),
        a_request(ObjectKey("tidelog/segments/x"), end=2**40, size=2**41),
    ],
)
async def test_a_range_that_is_not_allowed_is_refused(request_: ReadRange) -> None:
    peer, client = Peer(), PeerClient(SETTINGS, secrets)
    async with peer.listening() as port:
        with pytest.raises((PeerUnavailable, OverflowError)):
            await client.read_range(an_agent(1, peer_port=port), request_, 5.0)
        assert (peer.server.counts.refused, peer.pages.counts.gets) == (1, 0)
    client.close()


async def test_a_peer_that_serves_as_much_as_it_may_says_so() -> None:
    peer, client, key = (
        Peer(SETTINGS.model_copy(update={"peer_response_bytes": 1000})),
        PeerClient(SETTINGS, secrets),
        a_key(),
    )
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        peer.server._serving.try_take(1000)
        with pytest.raises(PeerUnavailable, match="BUSY"):
            await client.read_range(an_agent(1, peer_port=port), a_request(key), 5.0)
    client.close()


async def test_a_silent_peer_times_out_once_and_is_then_skipped() -> None:
    client = PeerClient(IMPATIENT, secrets)
    async with answering(None) as port:
        agent = an_agent(1, peer_port=port)
        with pytest.raises(PeerUnavailable, match="in time"):
            await client.read_range(agent, a_request(a_key()), 0.05)
        with pytest.raises(PeerUnavailable, match="skipped"):
            await client.read_range(agent, a_request(a_key()), 0.05)

    assert (client.counts.timeouts, client.counts.passed_by) == (1, 1)
    client.close()


async def test_reads_that_wait_for_a_connection_skip_a_peer_found_silent() -> None:
    """A paused peer costs a hundred readers one wait, not one after the other."""
    client = PeerClient(SETTINGS, secrets)
    async with answering(None) as port:
        agent = an_agent(1, peer_port=port)
        answers = await asyncio.gather(
            *(client.read_range(agent, a_request(a_key()), 0.05) for _ in range(100)), return_exceptions=True
        )

    assert {type(answer) for answer in answers} == {PeerUnavailable}
    assert client.counts.timeouts == SETTINGS.peer_connections
    client.close()


async def test_a_peer_that_is_gone_fails_once_and_is_then_skipped() -> None:
    client = PeerClient(SETTINGS, secrets)
    async with answering(None) as port:
        pass
    with pytest.raises(PeerUnavailable, match="connection lost"):
        await client.read_range(an_agent(1, peer_port=port), a_request(a_key()), 5.0)
    with pytest.raises(PeerUnavailable, match="skipped"):
        await client.read_range(an_agent(1, peer_port=port), a_request(a_key()), 5.0)


async def test_wrong_bytes_are_noticed_and_the_peer_is_skipped() -> None:
    key = a_key()
    asked = a_request(key, 0, 1000)
    others = [
        b"".join(encode_found(a_request(key, 1000, 2000), DATA[1000:2000])),  # a range that was not asked for
        b"".join(encode_found(asked, DATA[:1000]))[:-1] + b"?",  # a damaged byte
        b"".join(encode_found(asked, DATA[:999])),  # too short
        b"".join(encode_found(asked, DATA[: 1000 + FOUND_OVERHEAD_BYTES])),  # too long
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x01\x63",  # a kind that does not exist
    ]
    for answer in others:
        client = PeerClient(SETTINGS, secrets)
        async with answering(answer) as port:
            with pytest.raises(PeerUnavailable):
                await client.read_range(an_agent(1, peer_port=port), asked, 5.0)
            with pytest.raises(PeerUnavailable, match="skipped"):
                await client.read_range(an_agent(1, peer_port=port), asked, 5.0)
        assert client.counts.violations == 1
        client.close()


async def test_a_peer_that_leaves_while_it_answers_leaves_no_connection_behind() -> None:
    peer, client, key = Peer(), PeerClient(SETTINGS, secrets), a_key()
    release = held_back(peer)
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        reading = asyncio.create_task(client.read_range(an_agent(1, peer_port=port), a_request(key), 5.0))
        await until(lambda: peer.pages.counts.gets == 1)
        client.retain([])
        release.set()

        assert await reading == DATA[100:200_100]
        await until(lambda: peer.server.connections == 0)
    client.close()


async def test_the_client_waits_for_a_peer_that_says_it_is_loading() -> None:
    peer, key = Peer(), a_key()
    client = PeerClient(SETTINGS, secrets)
    release = held_back(peer)
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        reading = asyncio.create_task(client.read_range(an_agent(1, peer_port=port), a_request(key), 1.5))
        await asyncio.sleep(1.8)
        release.set()

        assert await reading == DATA[100:200_100]
    client.close()


@pytest.mark.parametrize(
    "garbage",
    [
        random.Random(1).randbytes(64),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + b"\xff\xff\xff\xff\x01",
        PREFACE + b"\0\0\0\0",
        PREFACE + b"\0\0\0\x02\x01\x00",
        PREFACE + b"\0\0\0\x01\x03",
        PREFACE + b"\0\0\0\x09\x05" + b"\0\0\0\x01" + b"\xff\xff\xff\xff",
    ],
)
async def test_garbage_closes_its_connection_and_no_other(garbage: bytes) -> None:
    peer, client, key = Peer(), PeerClient(SETTINGS, secrets), a_key()
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        agent = an_agent(1, peer_port=port)
        await client.read_range(agent, a_request(key), 5.0)

        reader, writer = await open_peer_stream("127.0.0.1", port, secrets)
        writer.write(garbage)
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()

        assert await client.read_range(agent, a_request(key), 5.0) == DATA[100:200_100]
        assert (peer.server.counts.violations, client.counts.ranges) == (1, 2)
    client.close()


async def test_a_connection_that_says_nothing_is_closed() -> None:
    peer = Peer(SETTINGS.model_copy(update={"peer_idle_s": 0.05}))
    async with peer.listening() as port:
        reader, writer = await open_peer_stream("127.0.0.1", port, secrets)
        writer.write(PREFACE + encode_read(a_request(a_key()))[:10])

        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_no_more_connections_are_taken_than_the_setting_says() -> None:
    peer = Peer(SETTINGS.model_copy(update={"peer_accepted_connections": 2}))
    async with peer.listening() as port:
        taken = [await open_peer_stream("127.0.0.1", port, secrets) for _ in range(2)]
        await until(lambda: peer.server.connections == 2)
        reader, writer = await open_peer_stream("127.0.0.1", port, secrets)

        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert peer.server.connections == 2
        for _, open_writer in [*taken, (reader, writer)]:
            open_writer.close()


async def test_a_subscriber_gets_pushes_of_its_partitions_only() -> None:
    peer = Peer()
    async with peer.listening() as port:
        reader, writer = await open_peer_stream("127.0.0.1", port, secrets)
        writer.write(PREFACE)
        writer.writelines(encode_subscribe(60_000, [(ORDERS, Partition(1)), (ORDERS, Partition(2))]))
        await until(lambda: peer.server.subscriptions > 0)

        wanted = (a_run(partition=1), a_run(10, 19, partition=2))
        peer.server.push([a_run(partition=0), *wanted])

        async with asyncio.timeout(60):
            length = int.from_bytes(await reader.readexactly(4), "big")
            assert decode(await reader.readexactly(length)) == RunsCommitted(runs=wanted)
        writer.close()
        await until(lambda: peer.server.subscriptions == 0)


async def test_a_subscriber_that_does_not_read_is_left_out_and_costs_a_bounded_buffer() -> None:
    peer = Peer(SETTINGS.model_copy(update={"push_buffer_bytes": 100_000}))
    async with peer.listening() as port:
        _, writer = await open_peer_stream("127.0.0.1", port, secrets)
        writer.write(PREFACE)
        writer.writelines(encode_subscribe(60_000, [(ORDERS, Partition(0))]))
        await until(lambda: peer.server.subscriptions > 0)

        many = [a_run(number, number) for number in range(1000)]
        for _ in range(200):
            peer.server.push(many)
            await asyncio.sleep(0)

        assert peer.server.counts.pushes_dropped > 0
        writer.close()


async def test_all_slow_subscribers_together_cost_a_bounded_buffer() -> None:
    each, together = 1_000_000, 1_500_000
    peer = Peer(SETTINGS.model_copy(update={"push_buffer_bytes": each, "push_buffers_bytes": together}))
    writers: list[asyncio.StreamWriter] = []

    async def subscribe(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.server._subscriptions.subscribe(writer, [(ORDERS, Partition(0))], until_s=math.inf)
        writers.append(writer)

    async with await asyncio.start_server(subscribe, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        deaf = [(await asyncio.open_connection("127.0.0.1", port, limit=1024))[1] for _ in range(5)]
        await until(lambda: len(writers) == len(deaf))

        many = [a_run(number, number) for number in range(1000)]
        for _ in range(200):
            peer.server.push(many)
            await asyncio.sleep(0)

        assert together / 2 < peer.server.push_bytes_waiting < together + each
        for writer in [*writers, *deaf]:
            writer.transport.abort()
