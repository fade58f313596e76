"""Reads byte ranges of pages from other agents, and skips agents that do not answer
(docs/design/read-path.md#peer-reads).

Promises:
- A peer costs about as much time as the store at most: its first sign of life is due within the given time,
  its bytes within `peer_load_timeout_s`.
- A peer that is silent, gone or answers with nonsense is skipped for `peer_skip_s`.
- Connections per peer are bounded.
- Reads of history have their own connections and skips: at the page's owner they wait for a budget that
  leaves room for the tail. The tail never waits for them.
- No frame larger than allowed is ever allocated. At most `_MOST_UNREAD` frames wait to be taken.
- A task that waits for a frame learns when the connection ends.

`FrameStream` is the requesting side of a connection. The kernel reads frames straight into buffers of their
size: an asyncio stream copies a large frame three times, and a page from a peer then cost twice the CPU of
one from the store.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from cache_ring.peers.page_protocol import (
    FOUND_OVERHEAD_BYTES,
    LENGTH_BYTES,
    MAX_SMALL_FRAME_BYTES,
    PREFACE,
    ProtocolViolation,
    RangeFound,
    RangeLoading,
    RangeRefused,
    ReadRange,
    decode,
    encode_read,
    frame_length,
    range_checksum,
)
from cache_ring.peers.peer_connection import Secrets, connect_to_peer
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import LiveAgent
from storage.identifiers import NodeId

_MOST_UNREAD = 2


class FrameStream(asyncio.BufferedProtocol):
    """One connection. One task at a time awaits `frame`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._target = bytearray(LENGTH_BYTES)
        self._filled = 0
        self._in_prefix = True
        self._most_bytes = MAX_SMALL_FRAME_BYTES
        self._frames: deque[bytearray] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended: Exception | None = None
        self.is_fresh = True
        """True if no frame has been taken from it yet."""

    @classmethod
    async def connect(
        cls, host: str, port: int, secrets: Secrets, tls: PeerTls | None = None
    ) -> "FrameStream":
        """Raises OSError or NotAPeer."""
        stream = cls()
        await connect_to_peer(host, port, secrets, stream, tls)
        return stream

    @property
    def is_open(self) -> bool:
        return self._ended is None and self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def begun(self, most_bytes: int) -> None:
        """Returns once the next frame has begun to arrive. Raises as `frame`."""
        self._most_bytes = most_bytes
        while not self._frames and self._in_prefix:
            await self._next_event()

    async def frame(self, most_bytes: int) -> bytearray:
        """Returns the next frame without its length. Raises ProtocolViolation, ConnectionError or
        EOFError."""
        self._most_bytes = most_bytes
        while not self._frames:
            await self._next_event()
        self.is_fresh = False
        frame = self._frames.popleft()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return frame

    async def _next_event(self) -> None:
        if self._ended is not None:
            raise self._ended
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # the frame's length is known: read no more than the rest of it
        return memoryview(self._target)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        if self._in_prefix:
            self._begin_frame()
        else:
            self._frames.append(self._target)
            self._target, self._filled, self._in_prefix = bytearray(LENGTH_BYTES), 0, True
            if len(self._frames) >= _MOST_UNREAD and self._transport is not None:
                self._transport.pause_reading()
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or EOFError("the peer closed the connection"))

    def _begin_frame(self) -> None:
        try:
            length = frame_length(bytes(self._target), self._most_bytes)
        except ProtocolViolation as violation:
            self._end(violation)
            self.close()
            return
        self._target, self._filled, self._in_prefix = bytearray(length), 0, False
        self._wake()

    def _end(self, reason: Exception) -> None:
        if self._ended is None:
            self._ended = reason
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


PeerKey: TypeAlias = tuple[NodeId, int, bool]
"""Node, incarnation, and whether the request is for history."""


class PeerUnavailable(Exception):
    """The peer was skipped or did not send the bytes: ask the store."""


@dataclass(slots=True)
class PeerClientCounts:
    """Counters for metrics: requests to peers."""

    ranges: int = 0
    bytes_received: int = 0
    passed_by: int = 0
    refused: int = 0
    timeouts: int = 0
    violations: int = 0


@dataclass(slots=True)
class _Peer:
    slots: asyncio.Semaphore
    idle: list[FrameStream] = field(default_factory=list)
    skip_until_s: float = float("-inf")
    is_forgotten: bool = False
    """True if the peer is dead: its connections are not kept any more."""


class PeerClient:
    def __init__(
        self,
        settings: CacheRingSettings,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
        tls: PeerTls | None = None,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._secrets = secrets
        self._clock = clock
        self._peers: dict[PeerKey, _Peer] = {}
        self.counts = PeerClientCounts()

    async def read_range(
        self, agent: LiveAgent, request: ReadRange, answer_timeout_s: float, *, is_history: bool = False
    ) -> memoryview:
        """Returns the bytes, checked against the requested range. Raises PeerUnavailable."""
        peer = self._peer(agent, is_history)
        self._raise_if_skipped(peer)
        try:
            async with asyncio.timeout(self._settings.peer_load_timeout_s):
                await peer.slots.acquire()
        except TimeoutError as error:
            self.counts.passed_by += 1
            raise PeerUnavailable("all its connections are in use") from error
        try:
            self._raise_if_skipped(peer)  # the connection's last user may have found the peer silent
            return await self._ask(peer, agent, request, answer_timeout_s)
        except TimeoutError as error:
            self.counts.timeouts += 1
            self._skip(peer)
            raise PeerUnavailable("no answer in time") from error
        except (OSError, EOFError) as error:
            self._skip(peer)
            raise PeerUnavailable(f"connection lost: {error}") from error
        except ProtocolViolation as error:
            self.counts.violations += 1
            self._skip(peer)
            raise PeerUnavailable(str(error)) from error
        finally:
            peer.slots.release()

    def retain(self, agents: Iterable[LiveAgent]) -> None:
        """Forgets peers that are no longer alive."""
        alive = {(agent.node_id, agent.incarnation) for agent in agents}
        for key in [key for key in self._peers if key[:2] not in alive]:
            self._forget(self._peers.pop(key))

    def close(self) -> None:
        for peer in self._peers.values():
            self._forget(peer)
        self._peers.clear()

    async def _ask(
        self, peer: _Peer, agent: LiveAgent, request: ReadRange, answer_timeout_s: float
    ) -> memoryview:
        while True:
            stream = await self._stream(peer, agent, answer_timeout_s)
            is_fresh, keep = stream.is_fresh, False
            try:
                answer = await self._exchange(stream, request, answer_timeout_s)
                keep = True
            except (ConnectionError, EOFError):
                if is_fresh:
                    raise
                continue  # the peer closed it while it was idle
            finally:
                if keep and not peer.is_forgotten:
                    peer.idle.append(stream)
                else:
                    stream.close()
            if isinstance(answer, RangeRefused):
                self.counts.refused += 1
                raise PeerUnavailable(answer.reason.name)
            self.counts.ranges += 1
            self.counts.bytes_received += len(answer.data)
            return answer.data

    async def _stream(self, peer: _Peer, agent: LiveAgent, timeout_s: float) -> FrameStream:
        while peer.idle:
            stream = peer.idle.pop()
            if stream.is_open:
                return stream
            stream.close()
        async with asyncio.timeout(timeout_s):
            stream = await FrameStream.connect(
                agent.address.peer_host, agent.address.peer_port, self._secrets, self._tls
            )
        stream.write(PREFACE)
        return stream

    async def _exchange(
        self, stream: FrameStream, request: ReadRange, answer_timeout_s: float
    ) -> RangeFound | RangeRefused:
        """Sends the request and reads the answer. A sign of life must come in time. The bytes may take
        longer, because they are on their way then.
        """
        stream.write(encode_read(request))
        most_bytes = FOUND_OVERHEAD_BYTES + request.end - request.start
        async with asyncio.timeout(self._settings.peer_load_timeout_s):
            async with asyncio.timeout(answer_timeout_s):
                await stream.begun(most_bytes)
            message = decode(await stream.frame(most_bytes))
            if isinstance(message, RangeLoading):
                message = decode(await stream.frame(most_bytes))
        if isinstance(message, RangeFound):
            if len(message.data) != request.end - request.start:
                raise ProtocolViolation(
                    f"{len(message.data)} bytes for the range [{request.start}, {request.end})"
                )
            if message.checksum != range_checksum(request, message.data):
                raise ProtocolViolation("bytes that do not have their checksum, or of another range")
            return message
        if isinstance(message, RangeRefused):
            return message
        raise ProtocolViolation(f"a {type(message).__name__} where a range belongs")

    def _peer(self, agent: LiveAgent, is_history: bool) -> _Peer:
        key = agent.node_id, agent.incarnation, is_history
        if key not in self._peers:
            settings = self._settings
            connections = settings.peer_history_connections if is_history else settings.peer_connections
            self._peers[key] = _Peer(slots=asyncio.Semaphore(connections))
        return self._peers[key]

    def _raise_if_skipped(self, peer: _Peer) -> None:
        if self._clock() < peer.skip_until_s:
            self.counts.passed_by += 1
            raise PeerUnavailable("skipped for a while")

    def _skip(self, peer: _Peer) -> None:
        peer.skip_until_s = self._clock() + self._settings.peer_skip_s
        self._close(peer)

    def _forget(self, peer: _Peer) -> None:
        peer.is_forgotten = True
        self._close(peer)

    @staticmethod
    def _close(peer: _Peer) -> None:
        for stream in peer.idle:
            stream.close()
        peer.idle.clear()
