"""One connection to another agent, over which one client's requests are forwarded and answered, in order.

Promises: requests go out in the order in which `ask` was called; whoever waits is told when the connection ends; an
answer that is too large, or of another request, ends it; one that nobody waits for any more is dropped.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, cast

from agent.kafka.forwarding.forward_protocol import ACCEPTED, PREFACE, Hello, encode_hello
from agent.kafka.transport.frames import LENGTH_BYTES, BadFrame, FrameReader, NeedData
from cache_ring.peers.peer_connection import Secrets, connect_to_peer
from cache_ring.peers.peer_proof import NotAPeer
from sequencer.cluster.agents import AgentAddress

SMALLEST_RESPONSE_BYTES: Final = 4
"""A correlation id."""
_CORRELATION_ID_AT: Final = slice(4, 8)
"""In a request, behind its api key and version."""


class LinkLost(Exception):
    """The other agent did not accept, or the connection ended: what was asked and not answered may have been done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    correlation_id: bytes
    takes_long: bool
    response: asyncio.Future[bytes]


class ForwardLink(asyncio.Protocol):
    def __init__(self, address: AgentAddress, secrets: Secrets, max_response_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._secrets = secrets
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(max_response_bytes, min_frame_bytes=SMALLEST_RESPONSE_BYTES)
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[_Waiting] = deque()
        self._head_since_s = 0.0
        self._one_opens = asyncio.Lock()
        self._lost: str | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def ask(self, hello: Hello, frame: bytes, *, takes_long: bool, connect_timeout_s: float) -> bytes:
        """The answer to a request's frame, both without their lengths. The first to ask connects. Raises LinkLost."""
        async with self._one_opens:  # which is fair: requests leave in the order in which they came here
            if self._transport is None and self._lost is None:
                await self._open(hello, connect_timeout_s)
            if self._transport is None or self._lost is not None:
                raise LinkLost(self._lost)
            waiting = _Waiting(
                correlation_id=frame[_CORRELATION_ID_AT], takes_long=takes_long, response=self._loop.create_future()
            )
            if not self._waiting:
                self._head_since_s = self._loop.time()
            self._waiting.append(waiting)
            self._transport.writelines([len(frame).to_bytes(LENGTH_BYTES, "big"), frame])
        return await waiting.response

    def is_overdue(self, now_s: float, timeout_s: float) -> bool:
        """Whether the answer that is next has been waited for too long; those behind it have waited for it."""
        return bool(self._waiting) and not self._waiting[0].takes_long and now_s - self._head_since_s > timeout_s

    def lose(self, reason: str) -> None:
        """Hang up; whoever waits gets LinkLost."""
        if self._lost is None:
            self._lost = reason
            if not self._accepted.done():
                self._accepted.cancel()
            for waiting in self._waiting:
                if not waiting.response.done():
                    waiting.response.set_exception(LinkLost(reason))
            self._waiting.clear()
            if self._transport is not None:
                self._transport.abort()

    async def _open(self, hello: Hello, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await connect_to_peer(self._address.peer_host, self._address.peer_port, self._secrets, self)
                assert self._transport is not None, "a connection that was made has a transport"
                self._transport.write(PREFACE + encode_hello(hello))
                await asyncio.wait({self._accepted})
        except TimeoutError:
            self.lose("it did not answer in time")
        except (OSError, NotAPeer) as error:
            self.lose(str(error))

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._lost is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._accepted.done():
            if not data.startswith(ACCEPTED):
                self.lose("it does not take forwarded requests")
                return
            self._accepted.set_result(None)
            data = data[len(ACCEPTED) :]
        self._frames.feed(data)
        try:
            while not isinstance(frame := self._frames.next_frame(), NeedData):
                self._answered(frame)
        except BadFrame as error:
            self.lose(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(str(exc or "it hung up"))

    def _answered(self, frame: bytes | memoryview) -> None:
        waiting = self._waiting.popleft() if self._waiting else None
        if waiting is None or frame[: len(waiting.correlation_id)] != waiting.correlation_id:
            if waiting is not None:
                self._waiting.appendleft(waiting)
            raise BadFrame("an answer to no request")
        self._head_since_s = self._loop.time()
        if not waiting.response.done():
            waiting.response.set_result(bytes(frame))
