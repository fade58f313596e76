"""A response as a list of buffers: the pieces that kio writes are joined, record bytes are passed on without
a copy.

kio's writers only call `buffer.write(x)` and `len(x)`. So a `ResponseBuffer` replaces the stream, and a
handler may put a `RecordSlices` wherever the protocol has `records`.

Promises:
- The joined buffers are the bytes that kio would have written.
- A record slice is never copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Chunk: TypeAlias = bytes | bytearray | memoryview


class RecordSlices:
    """Record batches in several buffers, in the order in which they go out. `len()` is the number of
    bytes.
    """

    __slots__ = ("_size_bytes", "chunks")

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self._size_bytes = sum(memoryview(chunk).nbytes for chunk in chunks)

    def __len__(self) -> int:
        return self._size_bytes

    def __bool__(self) -> bool:
        return True  # empty records differ from null records


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A response's body in the bytes of the request's version, written by the API and not by kio."""

    buffers: Sequence[Chunk]
    size_bytes: int


class ResponseBuffer:
    """Takes what kio's writers write, and returns it in as few buffers as possible."""

    __slots__ = ("_buffers", "_small", "size_bytes")

    def __init__(self) -> None:
        self._buffers: list[Chunk] = []
        self._small: list[bytes] = []
        self.size_bytes = 0

    def write(self, piece: bytes | RecordSlices) -> None:
        self.size_bytes += len(piece)
        if isinstance(piece, RecordSlices):
            self._join_small()
            self._buffers.extend(piece.chunks)
        else:
            self._small.append(piece)

    def write_encoded(self, body: Encoded) -> None:
        self._join_small()
        self._buffers += body.buffers
        self.size_bytes += body.size_bytes

    def buffers(self) -> list[Chunk]:
        """Returns all that was written, in order, with the frame's length in front."""
        self._join_small()
        return [self.size_bytes.to_bytes(4, "big"), *self._buffers]

    def _join_small(self) -> None:
        if self._small:
            self._buffers.append(b"".join(self._small))
            self._small.clear()
