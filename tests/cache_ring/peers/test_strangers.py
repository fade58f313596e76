"""Strangers on the peer port: no request of theirs is read, they hold little, and they keep no peer out. Real
sockets.
"""

import asyncio
import os
from contextlib import suppress

import pytest

from cache_ring.peers.page_protocol import PREFACE, encode_read
from cache_ring.peers.peer_client import PeerClient, PeerUnavailable
from cache_ring.peers.peer_connection import PeerHungUp, open_peer_stream
from cache_ring.peers.peer_proof import PREFACE as HELLO
from cache_ring.peers.peer_proof import NotAPeer
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import PeerSecret
from tests.cache_ring.builders import SECRET, a_peer_port, an_agent, secrets
from tests.cache_ring.peers.test_peers import DATA, SETTINGS, Peer, a_key, a_request
from tests.support.waiting import until

OLD, NEWER = PeerSecret(value=b"o" * 32), PeerSecret(value=b"n" * 32)
FEW_PLACES = SETTINGS.model_copy(update={"peer_unproven_connections": 4, "peer_proof_timeout_s": 600.0})


def with_patience(patience_s: float) -> CacheRingSettings:
    return SETTINGS.model_copy(update={"peer_proof_timeout_s": patience_s})


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Waits until the other side has closed without sending anything."""
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            return await reader.read() == b""
    return True


@pytest.mark.parametrize(
    "words",
    [
        PREFACE + encode_read(a_request(a_key())),
        HELLO + os.urandom(1_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4,
    ],
)
async def test_a_stranger_is_closed_and_no_frame_of_it_is_read(words: bytes) -> None:
    peer = Peer()
    async with peer.listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)

        assert await is_closed(reader)
        await until(lambda: peer.server.counts.strangers == 1)
        assert (peer.server.connections, peer.server.counts.refused, peer.server.counts.violations) == (
            0,
            0,
            0,
        )
        writer.close()


@pytest.mark.parametrize("words", [b"", HELLO[:7]])
async def test_a_stranger_that_stops_halfway_is_closed_in_time(words: bytes) -> None:
    peer = Peer(with_patience(0.05))
    async with peer.listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)

        assert await is_closed(reader)
        assert peer.server.unproven == 0
        writer.close()


async def test_strangers_that_wait_keep_no_peer_out() -> None:
    peer, client, key = Peer(FEW_PLACES), PeerClient(SETTINGS, secrets), a_key()
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        await until(lambda: peer.server.counts.strangers == 40 - FEW_PLACES.peer_unproven_connections)

        assert await client.read_range(an_agent(1, peer_port=port), a_request(key), 5.0) == DATA[100:200_100]
        assert peer.server.unproven < FEW_PLACES.peer_unproven_connections
        for _, writer in strangers:
            writer.close()
    client.close()


async def test_an_agent_with_the_previous_secret_is_accepted_until_the_next_renewal() -> None:
    peer, client, key = Peer(secrets=lambda: (SECRET, OLD)), PeerClient(SETTINGS, lambda: (OLD,)), a_key()
    await peer.store.put(key, [DATA])
    async with peer.listening() as port:
        agent = an_agent(1, peer_port=port)
        assert await client.read_range(agent, a_request(key), 5.0) == DATA[100:200_100]
        client.close()

        peer.secrets = lambda: (NEWER, SECRET)
        with pytest.raises(PeerUnavailable, match="connection lost"):
            await client.read_range(agent, a_request(key), 5.0)
        known = await open_peer_stream("127.0.0.1", port, secrets)
        known[1].close()


async def test_no_request_goes_to_a_listener_without_the_secret() -> None:
    heard = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.readexactly(64))
        writer.write(os.urandom(1_000))
        with suppress(ConnectionError):
            heard.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = PeerClient(SETTINGS, secrets)

    with pytest.raises(PeerUnavailable):
        await client.read_range(an_agent(1, peer_port=port), a_request(a_key()), 5.0)

    assert client.counts.violations == 1
    assert len(heard) == 64, "a hello, and nothing of the request"
    server.close()


async def test_an_agent_without_a_secret_neither_accepts_nor_is_accepted() -> None:
    async with a_peer_port(lambda _reader, _writer: asyncio.sleep(0), lambda: ()) as port:
        with pytest.raises(PeerHungUp):
            await open_peer_stream("127.0.0.1", port, secrets)
    async with a_peer_port(lambda _reader, _writer: asyncio.sleep(0)) as port:
        with pytest.raises((PeerHungUp, NotAPeer)):
            await open_peer_stream("127.0.0.1", port, lambda: ())


async def test_a_connection_that_is_given_up_while_it_is_proven_is_closed() -> None:
    gone: list[object] = []

    class Silent(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            gone.append(exc)

    silent = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await open_peer_stream("127.0.0.1", port, secrets)

    await until(lambda: gone)
    silent.close()
