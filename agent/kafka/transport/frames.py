"""Kafka's framing as a pure object, in the way of h11: bytes in, frames out.

A frame is a big-endian int32 length followed by that many bytes. Promises:
- Frames come out whole, in order and only once, whatever the chunks were.
- A length that is negative, below a request header's minimum or above the limit is an error at its fourth
  byte, before any byte of the body is kept.
- At most one frame's bytes are held, plus those in the same chunk. A frame that was handed out keeps no other
  bytes alive.
- Taking frames from a stream costs O(bytes).
- Once there is memory for a frame (`allot`), the rest of it is received straight into its own buffer
  (`room`), without a copy.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

LENGTH_BYTES: Final = 4
# api_key int16, api_version int16, correlation_id int32, and the length of a client id.
SMALLEST_FRAME_BYTES: Final = 8
_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC")
_TLS: Final = b"\x16\x03"
"""A handshake's first record."""


def _guess(length: int) -> str:
    """Returns a guess at what the four bytes are if they are not a length."""
    first = length.to_bytes(LENGTH_BYTES, "big", signed=True)
    if first in _HTTP:
        return f": '{first.decode()}' looks like HTTP, which has a port of its own"
    return ": this looks like TLS, which is not spoken here" if first.startswith(_TLS) else ""


class BadFrame(Exception):
    """The stream cannot be a Kafka client's, or asks for more than is allowed. The connection is unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedData:
    """There is no whole frame. `missing_bytes` of the partial frame are still to come; None until its length
    is known.
    """

    missing_bytes: int | None


class FrameReader:
    """Collects chunks. `next_frame_bytes` returns the size of the next frame, `next_frame` takes it once it
    is whole.
    """

    def __init__(self, max_frame_bytes: int, min_frame_bytes: int = SMALLEST_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = min_frame_bytes
        self._chunks: deque[bytes | memoryview] = deque()
        self._held_bytes = 0
        self._frame_bytes: int | None = None
        self._frame: memoryview | None = None
        """The buffer of the partial frame, once it is allotted. `_held_bytes` of it are filled."""

    def limit(self, max_frame_bytes: int, min_frame_bytes: int = SMALLEST_FRAME_BYTES) -> None:
        """Changes the bounds of the frames whose length is not known yet."""
        self._max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = min_frame_bytes

    @property
    def held_bytes(self) -> int:
        """The received bytes that belong to no frame handed out."""
        return self._held_bytes

    @property
    def in_frame(self) -> bool:
        """True if a frame has begun and is not whole."""
        return self._held_bytes > 0 or self._frame_bytes is not None

    @property
    def first_bytes(self) -> bytes | memoryview:
        """Bytes that are held and begin with the partial frame, without its length. All of them, or a first
        part.
        """
        return self._chunks[0] if self._chunks and self._frame_bytes is not None else b""

    def feed(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._held_bytes += len(chunk)

    def allot(self) -> None:
        """There is memory for the partial frame, whose length is known: gives it a buffer unless it is whole
        already.
        """
        size_bytes = self._frame_bytes
        assert size_bytes is not None, "the frame's length is known"
        if self._frame is None and self._held_bytes < size_bytes:
            self._frame = np.empty(size_bytes, np.uint8).data  # filling it with zeros would double its cost
            position = 0
            for chunk in self._chunks:
                self._frame[position : position + len(chunk)] = chunk
                position += len(chunk)
            self._chunks.clear()

    @property
    def room(self) -> memoryview | None:
        """Returns where to receive the next bytes, if the partial frame has a buffer. Call `filled`
        afterwards.
        """
        return None if self._frame is None else self._frame[self._held_bytes :]

    def filled(self, count: int) -> None:
        """Notes bytes that were received into `room`."""
        self._held_bytes += count

    def next_frame_bytes(self) -> int | None:
        """Returns the length of the next frame, or None until it is known. Raises BadFrame."""
        if self._frame_bytes is None and self._held_bytes >= LENGTH_BYTES:
            self._frame_bytes = self._checked(int.from_bytes(self._take(LENGTH_BYTES), "big", signed=True))
        return self._frame_bytes

    def next_frame(self) -> bytes | memoryview | NeedData:
        """Returns the next whole frame, without its length. Raises BadFrame."""
        frame_bytes = self.next_frame_bytes()
        if frame_bytes is None:
            return NeedData(missing_bytes=None)
        if self._held_bytes < frame_bytes:
            return NeedData(missing_bytes=frame_bytes - self._held_bytes)
        self._frame_bytes = None
        if self._frame is not None:
            frame, self._frame, self._held_bytes = self._frame, None, 0
            return frame.toreadonly()
        return self._take(frame_bytes)

    def _checked(self, length: int) -> int:
        if length < self._min_frame_bytes:
            raise BadFrame(f"frame length {length} is less than a header takes")
        if length > self._max_frame_bytes:
            raise BadFrame(
                f"frame length {length} exceeds the largest allowed, {self._max_frame_bytes}{_guess(length)}"
            )
        return length

    def _take(self, count: int) -> bytes | memoryview:
        """Returns the first `count` bytes. They are copied unless they are a whole chunk, as a single request
        is.
        """
        self._held_bytes -= count
        first = self._chunks[0]
        if len(first) == count and (
            isinstance(first, bytes) or memoryview(first.obj).nbytes <= count + LENGTH_BYTES
        ):
            self._chunks.popleft()
            return first
        parts = []
        while count:
            chunk = self._chunks.popleft()
            if len(chunk) > count:
                view = memoryview(chunk)
                self._chunks.appendleft(view[count:])
                chunk = view[:count]
            parts.append(chunk)
            count -= len(chunk)
        return b"".join(parts)
