"""The probe protocol: agents ask each other for signs of life on their peer port. Pure: bytes in, messages
out.

A connection opens with `PREFACE`. Then come frames of one size per kind, big-endian, each a kind (u8) and a
body.

| kind | name | direction | body |
|---|---|---|---|
| 1 | Probe | to the watched | nothing |
| 2 | Alive | from the watched | node id i32 (0: it has not joined), incarnation i64, whether it leaves u8 |
| 3 | Suspected | both | reporter's node id i32, suspect's node id i32, suspect's incarnation i64 |

Promises: any bytes yield either messages or ProtocolViolation. At most one incomplete frame is kept.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from cache_ring.peers.page_protocol import ProtocolViolation
from cache_ring.ring.suspects import PeerName
from storage.identifiers import NodeId

PREFACE = b"TIDELOG PROBE 1\n"
NOT_JOINED = NodeId(0)

_ALIVE = struct.Struct(">BiqB")
_SUSPECTED = struct.Struct(">Biiq")
_SIZES = {1: 1, 2: _ALIVE.size, 3: _SUSPECTED.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    name: PeerName
    is_leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    by: NodeId
    name: PeerName


Message: TypeAlias = Probe | Alive | Suspected


def encode(message: Message) -> bytes:
    match message:
        case Probe():
            return b"\x01"
        case Alive(name=(node_id, incarnation), is_leaving=is_leaving):
            return _ALIVE.pack(2, node_id, incarnation, is_leaving)
        case Suspected(by=by, name=(node_id, incarnation)):
            return _SUSPECTED.pack(3, by, node_id, incarnation)


class FrameReader:
    """Cuts a connection's bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def messages(self, data: bytes) -> Iterator[Message]:
        """Yields the complete messages. Raises ProtocolViolation."""
        data, position = self._rest + data, 0
        while position < len(data):
            size = _SIZES.get(data[position])
            if size is None:
                raise ProtocolViolation(f"no kind of frame of the probe protocol: {data[position]}")
            if position + size > len(data):
                break
            yield _decoded(data, position)
            position += size
        self._rest = data[position:]


def _decoded(data: bytes, position: int) -> Message:
    if data[position] == 1:
        return Probe()
    if data[position] == 2:
        _, node_id, incarnation, is_leaving = _ALIVE.unpack_from(data, position)
        return Alive(name=(NodeId(node_id), incarnation), is_leaving=bool(is_leaving))
    _, by, node_id, incarnation = _SUSPECTED.unpack_from(data, position)
    return Suspected(by=NodeId(by), name=(NodeId(node_id), incarnation))
