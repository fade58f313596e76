"""Opens and accepts connections between agents. Both sides give a proof (`peer_proof.py`).

Promises:
- Before a connection is proven, this agent reads at most `HELLO_BYTES + PROOF_BYTES` from it, and holds only
  its transport and a buffer of that size. The kernel keeps the rest.
- At most `peer_unproven_connections` connections wait for their proof, each for at most
  `peer_proof_timeout_s`. One more closes the oldest, so waiting strangers keep no peer out.
- A protocol gets its connection once both sides are proven, with every byte that follows the proof.
- With TLS (`peer_tls.py`), the proof and all that follows are encrypted, and both sides have shown a
  certificate before.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from cache_ring.peers.peer_proof import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Initiator,
    NotAPeer,
    Responder,
    may_be_hello,
)
from cache_ring.peers.peer_tls import TLS_RECORD, PeerTls
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import PeerSecret

Secrets: TypeAlias = Callable[[], Sequence[PeerSecret]]
"""The cluster's secrets that this agent knows now, newest first."""
Conversation: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_READ_BYTES = 65_536
"""How much a stream reads ahead: up to twice this."""


class PeerHungUp(ConnectionError):
    """The other side closed the connection before it was proven."""


async def connect_to_peer(
    host: str, port: int, secrets: Secrets, protocol: asyncio.BaseProtocol, tls: PeerTls | None = None
) -> asyncio.Transport:
    """Connects `protocol` to an agent. The caller sets the timeout. Raises OSError, PeerHungUp or
    NotAPeer."""
    loop = asyncio.get_running_loop()
    introduction = _Introduction(secrets(), protocol)
    transport: asyncio.Transport
    if tls is None:
        transport, _ = await loop.create_connection(lambda: introduction, host, port)
    else:
        transport = await tls.connect(host, port, introduction)
    try:
        await introduction.proven
    except BaseException:
        transport.abort()
        raise
    return transport


async def open_peer_stream(
    host: str, port: int, secrets: Secrets, tls: PeerTls | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`, to an agent. Raises as `connect_to_peer`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = await connect_to_peer(host, port, secrets, protocol, tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Arrivals:
    """Accepts connections for a server: `protocol` is its factory. `converse` gets each proven connection.
    `turned_away` gets the reason for each rejected one."""

    def __init__(
        self,
        secrets: Secrets,
        settings: CacheRingSettings,
        converse: Conversation,
        turned_away: Callable[[str], None],
        tls: PeerTls | None = None,
    ) -> None:
        self._secrets = secrets
        self._settings = settings
        self._converse = converse
        self._turned_away = turned_away
        self._tls = tls
        self._waiting: dict[_Arrival, asyncio.TimerHandle] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Makes a server of these arrivals. It accepts at once at most as many connections as may wait."""
        loop = asyncio.get_running_loop()
        most = self._settings.peer_unproven_connections
        return await loop.create_server(self._arrival, host, port, backlog=most)

    def close(self) -> None:
        """Ends the connections that wait for their proof."""
        if self._tls is not None:
            self._tls.close()
        for arrival in list(self._waiting):
            arrival.turn_away("this agent stops")

    def _arrival(self) -> asyncio.BufferedProtocol:
        if self._tls is None:
            return _Arrival(self)
        if self._tls.is_required:
            return self._tls.accept(lambda: _Arrival(self))
        return _Arrival(self, may_encrypt=True)

    # --- events of arrivals

    def came(self, arrival: "_Arrival") -> Responder:
        if len(self._waiting) >= self._settings.peer_unproven_connections:
            next(iter(self._waiting)).turn_away("others came while it waited")
        self._waiting[arrival] = asyncio.get_running_loop().call_later(
            self._settings.peer_proof_timeout_s, arrival.turn_away, "it did not prove itself in time"
        )
        return Responder(self._secrets(), os.urandom(NONCE_BYTES))

    def proved(self, arrival: "_Arrival", transport: asyncio.Transport) -> None:
        self._waiting.pop(arrival).cancel()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ_BYTES, loop=loop)
        streams = asyncio.StreamReaderProtocol(reader, self._converse, loop=loop)
        transport.set_protocol(streams)
        streams.connection_made(transport)

    def encrypts(self, arrival: "_Arrival", transport: asyncio.Transport, received: memoryview) -> None:
        """The other side began with TLS. Once the connection is secured, it is a new arrival."""
        assert self._tls is not None, "an arrival may encrypt if there is TLS"
        self._waiting.pop(arrival).cancel()
        secured = self._tls.accept(lambda: _Arrival(self))
        transport.set_protocol(secured)
        secured.connection_made(transport)
        memoryview(secured.get_buffer(len(received)))[: len(received)] = received
        secured.buffer_updated(len(received))

    def gone(self, arrival: "_Arrival", reason: str) -> None:
        timer = self._waiting.pop(arrival, None)
        if timer is not None:
            timer.cancel()
            if self._secrets():  # before it has joined, this agent cannot tell peers from strangers
                self._turned_away(reason)


class _Arrival(asyncio.BufferedProtocol):
    """One connection that is not proven yet."""

    def __init__(self, arrivals: Arrivals, *, may_encrypt: bool = False) -> None:
        self._arrivals = arrivals
        self._may_encrypt = may_encrypt
        self._transport: asyncio.Transport | None = None
        self._responder: Responder | None = None
        self._message = bytearray(HELLO_BYTES)
        self._filled = 0
        self._is_challenged = False

    def turn_away(self, reason: str) -> None:
        self._arrivals.gone(self, reason)
        if self._transport is not None:
            self._transport.abort()

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._responder = self._arrivals.came(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # read nothing beyond the message
        return memoryview(self._message)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._may_encrypt and not self._is_challenged and self._message[0] == TLS_RECORD:
            assert self._transport is not None, "bytes come from a transport"
            self._arrivals.encrypts(self, self._transport, memoryview(self._message)[: self._filled])
            return
        if self._filled < len(self._message) and (
            self._is_challenged or may_be_hello(self._message[: self._filled])
        ):
            return
        try:
            self._step()
        except NotAPeer as stranger:
            self.turn_away(str(stranger))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._arrivals.gone(self, "it hung up")

    def _step(self) -> None:
        assert self._transport is not None, "bytes come from a transport"
        assert self._responder is not None, "an arrival gets its responder when it comes"
        if not self._is_challenged:
            self._transport.write(self._responder.challenge(self._message))
            self._message, self._filled, self._is_challenged = bytearray(PROOF_BYTES), 0, True
        else:
            self._responder.check(self._message)
            self._arrivals.proved(self, self._transport)


class _Introduction(asyncio.BufferedProtocol):
    """The connecting side until both sides are proven. Then `protocol` takes its place."""

    def __init__(self, secrets: Sequence[PeerSecret], protocol: asyncio.BaseProtocol) -> None:
        self.proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.proven.add_done_callback(_heard)
        self._protocol = protocol
        self._initiator = Initiator(secrets, os.urandom(NONCE_BYTES))
        self._transport: asyncio.Transport | None = None
        self._challenge = bytearray(CHALLENGE_BYTES)
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._initiator.hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # what follows belongs to `protocol`
        return memoryview(self._challenge)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._challenge):
            return
        assert self._transport is not None, "bytes come from a transport"
        if self.proven.done():
            self._transport.abort()  # the caller has given up
            return
        try:
            proof = self._initiator.proof(self._challenge)
        except NotAPeer as stranger:
            self.proven.set_exception(stranger)
            self._transport.abort()
            return
        self._transport.write(proof)
        self._transport.set_protocol(self._protocol)
        self._protocol.connection_made(self._transport)
        self.proven.set_result(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.proven.done():
            self.proven.set_exception(
                PeerHungUp(str(exc or "the peer closed the connection before it was proven"))
            )


def _heard(proven: asyncio.Future[None]) -> None:
    """Marks the outcome as seen: a caller that was cancelled while it connected does not read it."""
    if not proven.cancelled():
        proven.exception()
