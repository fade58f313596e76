"""The requesting side of a peer connection. The kernel reads frames straight into buffers of their size: an
asyncio stream copies a large frame three times, and a page from a peer then cost twice the CPU of one from
the store.

Promises:
- No frame larger than allowed is ever allocated.
- At most `_MOST_UNREAD` frames wait to be taken.
- A task that waits for a frame learns when the connection ends.
"""

import asyncio
from collections import deque
from typing import cast

from cache_ring.peers.page_protocol import LENGTH_BYTES, MAX_SMALL_FRAME_BYTES, ProtocolViolation, frame_length
from cache_ring.peers.peer_connection import Secrets, connect_to_peer

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
    async def connect(cls, host: str, port: int, secrets: Secrets) -> "FrameStream":
        """Raises OSError or NotAPeer."""
        stream = cls()
        await connect_to_peer(host, port, secrets, stream)
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
