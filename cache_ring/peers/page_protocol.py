"""The page protocol, which agents speak on their peer port. Pure: bytes in, messages out.

A connection opens with `PREFACE`. Then come frames, each a length (u32, big-endian, of what follows), a kind
(u8) and a body.

| kind | name | direction | body |
|---|---|---|---|
| 1 | ReadRange | to the owner | object size u64, start u64, end u64, object key |
| 2 | RangeFound | from the owner | CRC32C u32, the bytes |
| 3 | RangeLoading | from the owner | empty: the page is not in memory, it is being loaded from the store |
| 4 | RangeRefused | from the owner | reason u8 |
| 5 | Subscribe | to the writer | lease in ms u32, count u32, then (topic id 16 bytes, partition u32) each |
| 6 | RunsCommitted | from the writer | count u32, then coordinates |

Requests of one connection are answered in order, one at a time. RangeFound's checksum covers the object's
key, the range and the bytes, so it detects the bytes of another range as well as damaged bytes.

Promises:
- Any bytes yield a message or ProtocolViolation.
- Nothing is allocated by an unchecked length.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias
from uuid import UUID

from crc32c import crc32c

from sequencer.commits.coordinates import RunCoordinate
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import (
    NO_OFFSET,
    NO_PRODUCER_ID,
    BytePosition,
    ObjectKey,
    Offset,
    Partition,
    ProducerId,
    TopicId,
)

PREFACE = b"TIDELOG PAGES 1\n"
LENGTH_BYTES = 4
MAX_SMALL_FRAME_BYTES = 1_048_576
"""The largest frame of any kind but RangeFound, whose length the requester knows."""

_HEAD = struct.Struct(">IB")
_READ = struct.Struct(">QQQ")
_FOUND = struct.Struct(">IBI")
_SUBSCRIBE = struct.Struct(">II")
_PARTITION = struct.Struct(">16sI")
_COUNT = struct.Struct(">I")
_RUN = struct.Struct(">16sIqqqqqqqqqqH")
FOUND_OVERHEAD_BYTES = _FOUND.size - LENGTH_BYTES


class ProtocolViolation(Exception):
    """The other side does not speak this protocol, or its bytes were damaged. Close the connection."""


class Refusal(IntEnum):
    NOT_FOUND = 1
    """The store has no such object."""
    BUSY = 2
    """The peer already serves as many bytes as it may."""
    STORE_UNAVAILABLE = 3
    """The peer could not reach the store either."""
    INVALID = 4
    """The range or the key is not allowed."""


class _Kind(IntEnum):
    READ = 1
    FOUND = 2
    LOADING = 3
    REFUSED = 4
    SUBSCRIBE = 5
    COMMITTED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Asks for the bytes `[start, end)` of an object."""

    object_key: ObjectKey
    object_size_bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFound:
    data: memoryview
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLoading:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRefused:
    reason: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Asks for the coordinates of these partitions as they are committed, for the lease's time."""

    lease_ms: int
    partitions: tuple[tuple[TopicId, Partition], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsCommitted:
    runs: tuple[RunCoordinate, ...]


Message: TypeAlias = ReadRange | RangeFound | RangeLoading | RangeRefused | Subscribe | RunsCommitted


def frame_length(prefix: bytes, most_bytes: int) -> int:
    """Returns how many bytes follow a frame's length prefix. Raises ProtocolViolation if it is out of
    bounds."""
    length = int.from_bytes(prefix, "big")
    if not 1 <= length <= most_bytes:
        raise ProtocolViolation(f"a frame of {length} bytes, where 1 to {most_bytes} may come")
    return length


def range_checksum(request: ReadRange, data: bytes | memoryview) -> int:
    """CRC32C over the object's key, the range and the bytes."""
    identity = struct.pack(">QQ", request.start, request.end) + request.object_key.encode()
    return int(crc32c(data, crc32c(identity)))


def encode_read(request: ReadRange) -> bytes:
    body = _READ.pack(request.object_size_bytes, request.start, request.end) + request.object_key.encode()
    return _HEAD.pack(1 + len(body), _Kind.READ) + body


def encode_found(request: ReadRange, data: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """Returns the frame as two buffers, so that the bytes are not copied."""
    checksum = range_checksum(request, data)
    return _FOUND.pack(FOUND_OVERHEAD_BYTES + len(data), _Kind.FOUND, checksum), data


def encode_loading() -> bytes:
    return _HEAD.pack(1, _Kind.LOADING)


def encode_refused(reason: Refusal) -> bytes:
    return _HEAD.pack(2, _Kind.REFUSED) + bytes([reason])


def encode_subscribe(lease_ms: int, partitions: Sequence[tuple[TopicId, Partition]]) -> list[bytes]:
    """Returns as many frames as the partitions need."""
    per_frame = (MAX_SMALL_FRAME_BYTES - 1 - _SUBSCRIBE.size) // _PARTITION.size
    frames = []
    for first in range(0, len(partitions), per_frame):
        part = partitions[first : first + per_frame]
        body = _SUBSCRIBE.pack(lease_ms, len(part)) + b"".join(
            _PARTITION.pack(topic_id.bytes, partition) for topic_id, partition in part
        )
        frames.append(_HEAD.pack(1 + len(body), _Kind.SUBSCRIBE) + body)
    return frames


def encode_committed(runs: Iterable[RunCoordinate]) -> list[bytes]:
    """Returns as many frames as the runs need."""
    frames: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for run in runs:
        encoded = _encode_run(run)
        if part and size + len(encoded) > MAX_SMALL_FRAME_BYTES - 1 - _COUNT.size:
            frames.append(_committed_frame(part))
            part, size = [], 0
        part.append(encoded)
        size += len(encoded)
    if part:
        frames.append(_committed_frame(part))
    return frames


def decode(frame: bytes | bytearray | memoryview) -> Message:
    """Returns the message of a frame without its length prefix. Raises ProtocolViolation."""
    view = memoryview(frame)
    try:
        kind = _Kind(view[0])
        return _DECODERS[kind](view[1:])
    except (IndexError, struct.error, ValueError) as error:
        raise ProtocolViolation(f"a frame that cannot be read: {error}") from error


def _committed_frame(encoded_runs: list[bytes]) -> bytes:
    body = _COUNT.pack(len(encoded_runs)) + b"".join(encoded_runs)
    return _HEAD.pack(1 + len(body), _Kind.COMMITTED) + body


def _encode_run(run: RunCoordinate) -> bytes:
    key = run.object_key.encode()
    fixed = _RUN.pack(
        run.topic_id.bytes,
        run.partition,
        run.base_offset,
        run.last_offset,
        run.object_size_bytes,
        run.position,
        run.length,
        run.min_timestamp_ms,
        run.max_timestamp_ms,
        run.first_unstable,
        NO_OFFSET if run.aborted is None else run.aborted.first_offset,
        NO_PRODUCER_ID if run.aborted is None else run.aborted.producer_id,
        len(key),
    )
    return fixed + key


def _decode_read(body: memoryview) -> ReadRange:
    object_size_bytes, start, end = _READ.unpack_from(body)
    key = str(body[_READ.size :], "utf-8")
    return ReadRange(object_key=ObjectKey(key), object_size_bytes=object_size_bytes, start=start, end=end)


def _decode_found(body: memoryview) -> RangeFound:
    return RangeFound(checksum=int.from_bytes(body[:4], "big"), data=body[4:])


def _decode_loading(body: memoryview) -> RangeLoading:
    _nothing_left(body, 0)
    return RangeLoading()


def _decode_refused(body: memoryview) -> RangeRefused:
    _nothing_left(body, 1)
    return RangeRefused(reason=Refusal(body[0]))


def _decode_subscribe(body: memoryview) -> Subscribe:
    lease_ms, count = _SUBSCRIBE.unpack_from(body)
    _nothing_left(body, _SUBSCRIBE.size + count * _PARTITION.size)
    partitions = tuple(
        (TopicId(UUID(bytes=topic_id)), Partition(partition))
        for topic_id, partition in _PARTITION.iter_unpack(body[_SUBSCRIBE.size :])
    )
    return Subscribe(lease_ms=lease_ms, partitions=partitions)


def _decode_committed(body: memoryview) -> RunsCommitted:
    (count,) = _COUNT.unpack_from(body)
    if count * _RUN.size > len(body):
        raise ValueError(f"{count} runs in {len(body)} bytes")
    position = _COUNT.size
    runs = []
    for _ in range(count):
        (
            topic_id,
            partition,
            base,
            last,
            object_size,
            at,
            length,
            oldest,
            newest,
            first_unstable,
            first_aborted,
            aborted_producer,
            key_length,
        ) = _RUN.unpack_from(body, position)
        key_at = position + _RUN.size
        position = key_at + key_length
        if position > len(body):
            raise ValueError("a run's object key is cut off")
        if base < 0 or last < base or at < 0 or length <= 0 or at + length > object_size:
            raise ValueError("a run that lies nowhere")
        runs.append(
            RunCoordinate(
                topic_id=TopicId(UUID(bytes=topic_id)),
                partition=Partition(partition),
                base_offset=Offset(base),
                last_offset=Offset(last),
                object_key=ObjectKey(str(body[key_at:position], "utf-8")),
                object_size_bytes=object_size,
                position=BytePosition(at),
                length=length,
                min_timestamp_ms=oldest,
                max_timestamp_ms=newest,
                first_unstable=first_unstable,
                aborted=None
                if first_aborted < 0
                else AbortedTransaction(Offset(last), Offset(first_aborted), ProducerId(aborted_producer)),
            )
        )
    _nothing_left(body, position)
    return RunsCommitted(runs=tuple(runs))


def _nothing_left(body: memoryview, expected: int) -> None:
    if len(body) != expected:
        raise ValueError(f"{len(body)} bytes where {expected} belong")


_DECODERS: dict[_Kind, Callable[[memoryview], Message]] = {
    _Kind.READ: _decode_read,
    _Kind.FOUND: _decode_found,
    _Kind.LOADING: _decode_loading,
    _Kind.REFUSED: _decode_refused,
    _Kind.SUBSCRIBE: _decode_subscribe,
    _Kind.COMMITTED: _decode_committed,
}
