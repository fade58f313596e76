"""Types for values that must not be mixed: identifiers, offsets (in a partition) and positions (in bytes).

Promise: segment ids sort by the millisecond in which they were made, so they also show a segment's rough age.
"""

import os
import secrets
import time
from typing import NewType
from uuid import UUID

TopicId = NewType("TopicId", UUID)
Partition = NewType("Partition", int)
Offset = NewType("Offset", int)
BytePosition = NewType("BytePosition", int)
ProducerId = NewType("ProducerId", int)
SegmentId = NewType("SegmentId", UUID)
NodeId = NewType("NodeId", int)
ObjectKey = NewType("ObjectKey", str)
KeyId = NewType("KeyId", int)

NO_OFFSET = Offset(-1)
"""Where there is no offset, or none is known: Kafka's own number for it in requests and answers."""
NO_KEY_ID = KeyId(0)
"""No key of a topic has it."""
NO_PRODUCER_ID = ProducerId(-1)
"""The producer id of a batch whose producer is not idempotent."""

_RANDOM_BYTES = 10


def new_segment_id(now_ms: int | None = None, randomness: bytes | None = None) -> SegmentId:
    """Returns a UUIDv7 (RFC 9562 §5.7): 48 bits of Unix milliseconds, then 74 random bits from 10 bytes of
    `randomness`.
    """
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    random_bytes = os.urandom(_RANDOM_BYTES) if randomness is None else randomness
    if len(random_bytes) != _RANDOM_BYTES:
        raise ValueError(f"a segment id takes {_RANDOM_BYTES} random bytes, got {len(random_bytes)}")
    raw = bytearray((milliseconds & (1 << 48) - 1).to_bytes(6, "big") + random_bytes)
    raw[6] = 0x70 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return SegmentId(UUID(bytes=bytes(raw)))


def new_key_id() -> KeyId:
    """Returns a random id of 63 bits for a key of a topic. No other key of it has this id, not even a lost
    one."""
    return KeyId(1 + secrets.randbelow((1 << 63) - 1))
