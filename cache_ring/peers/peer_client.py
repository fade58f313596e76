"""Reads byte ranges of pages from other agents, and skips agents that do not answer
(docs/design/read-path.md#peer-reads).

Promises:
- A peer costs about as much time as the store at most: its first sign of life is due within the given time,
  its bytes within `peer_load_timeout_s`.
- A peer that is silent, gone or answers with nonsense is skipped for `peer_skip_s`.
- Connections per peer are bounded.
- Reads of history have their own connections and skips: at the page's owner they wait for a budget that
  leaves room for the tail. The tail never waits for them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from cache_ring.peers.frame_stream import FrameStream
from cache_ring.peers.page_protocol import (
    FOUND_OVERHEAD_BYTES,
    PREFACE,
    ProtocolViolation,
    RangeFound,
    RangeLoading,
    RangeRefused,
    ReadRange,
    decode,
    encode_read,
    range_checksum,
)
from cache_ring.peers.peer_connection import Secrets
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import LiveAgent
from storage.identifiers import NodeId

PeerKey: TypeAlias = tuple[NodeId, int, bool]
"""Node, incarnation, and whether the request is for history."""


class PassedBy(Exception):
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
    """The peer is dead: its connections are not kept any more."""


class PeerClient:
    def __init__(
        self, settings: CacheRingSettings, secrets: Secrets, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._clock = clock
        self._peers: dict[PeerKey, _Peer] = {}
        self.counts = PeerClientCounts()

    async def read_range(
        self, agent: LiveAgent, request: ReadRange, answer_timeout_s: float, *, is_history: bool = False
    ) -> memoryview:
        """Returns the bytes, checked against the requested range. Raises PassedBy."""
        peer = self._peer(agent, is_history)
        self._pass_by_if_skipped(peer)
        try:
            async with asyncio.timeout(self._settings.peer_load_timeout_s):
                await peer.slots.acquire()
        except TimeoutError as error:
            self.counts.passed_by += 1
            raise PassedBy("all its connections are in use") from error
        try:
            self._pass_by_if_skipped(peer)  # the connection's last user may have found the peer silent
            return await self._ask(peer, agent, request, answer_timeout_s)
        except TimeoutError as error:
            self.counts.timeouts += 1
            self._skip(peer)
            raise PassedBy("no answer in time") from error
        except (OSError, EOFError) as error:
            self._skip(peer)
            raise PassedBy(f"connection lost: {error}") from error
        except ProtocolViolation as error:
            self.counts.violations += 1
            self._skip(peer)
            raise PassedBy(str(error)) from error
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

    async def _ask(self, peer: _Peer, agent: LiveAgent, request: ReadRange, answer_timeout_s: float) -> memoryview:
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
                raise PassedBy(answer.reason.name)
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
            stream = await FrameStream.connect(agent.address.peer_host, agent.address.peer_port, self._secrets)
        stream.write(PREFACE)
        return stream

    async def _exchange(
        self, stream: FrameStream, request: ReadRange, answer_timeout_s: float
    ) -> RangeFound | RangeRefused:
        """A sign of life must come in time. The bytes may take longer: they are on their way then."""
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
                raise ProtocolViolation(f"{len(message.data)} bytes for the range [{request.start}, {request.end})")
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

    def _pass_by_if_skipped(self, peer: _Peer) -> None:
        if self._clock() < peer.skip_until_s:
            self.counts.passed_by += 1
            raise PassedBy("skipped for a while")

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
