"""Which records log compaction keeps: the decision that every cleaner of a log shares.

A record below the end of a cleaning stays if it has a key, no later record below that end has the same key,
and it is not a tombstone whose time is over (Kafka's log cleaner, KIP-534).

Promises:
- The memory is that of the table, whatever the keys are: 24 bytes per slot.
- A record goes for a later one of the same key only. Keys are compared by a hash of 128 bits, SipHash-2-4
  with a secret that each cleaning draws: nobody can choose keys that collide, and among a thousand million
  keys any two do with a chance of 2e-21.
"""

import secrets
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.arrow.arrow_encoding import binary_arrays
from storage.native.arguments import BYTES_IN, BYTES_OUT, INTS_IN, LONG, LONG_ROWS_OUT, LONGS_IN, LONGS_OUT
from storage.native.kernels import helper, kernel

SLOT_BYTES: Final = 24
_LOAD: Final = 0.7
"""The share of slots that may be taken: fuller tables are searched for long."""
_HIGH, _LOW, _NEXT_OFFSET = 0, 1, 2
"""Columns of the table: the hash, and the offset after the key's latest record. 0: the slot is free."""


@helper
def _rotated(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@helper
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@helper
def _hash(secret: NDArray[np.int64], data: NDArray[np.uint8], start: int, end: int) -> Any:
    """SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012)."""
    k0, k1 = np.uint64(secret[0]), np.uint64(secret[1])
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    length = end - start
    words = length >> 3
    for word in range(words + 1):
        value = np.uint64(0)
        if word == words:
            value = np.uint64(length & 0xFF) << np.uint64(56)
        first = start + word * 8
        for place in range(min(8, end - first)):
            value |= np.uint64(data[first + place]) << np.uint64(8 * place)
        v3 ^= value
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= value
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return np.uint64(v0 ^ v1 ^ v2 ^ v3).view(np.int64), np.uint64(low).view(np.int64)


@helper
def _slot(table: NDArray[np.int64], high: Any, low: Any) -> Any:
    """The slot of this hash, or the free one where it belongs. The slots are a power of two."""
    mask = len(table) - 1
    slot = low & mask
    while table[slot, _NEXT_OFFSET] != 0 and (table[slot, _HIGH] != high or table[slot, _LOW] != low):
        slot = (slot + 1) & mask
    return slot


@kernel(LONG_ROWS_OUT, LONGS_OUT, LONGS_IN, LONGS_IN, INTS_IN, BYTES_IN, BYTES_IN)
def _put(
    table: NDArray[np.int64],
    room: NDArray[np.int64],
    secret: NDArray[np.int64],
    offsets: NDArray[np.int64],
    key_offsets: NDArray[np.int32],
    key_valid: NDArray[np.uint8],
    keys: NDArray[np.uint8],
) -> Any:
    """Puts the rows into the table until a key finds no room (`room[0]` slots). Returns the rows put."""
    for row in range(len(offsets)):
        if not key_valid[row]:
            continue
        high, low = _hash(secret, keys, key_offsets[row], key_offsets[row + 1])
        slot = _slot(table, high, low)
        if table[slot, _NEXT_OFFSET] == 0:
            if room[0] == 0:
                return row
            room[0] -= 1
            table[slot, _HIGH] = high
            table[slot, _LOW] = low
        table[slot, _NEXT_OFFSET] = max(table[slot, _NEXT_OFFSET], offsets[row] + 1)
    return len(offsets)


@kernel(
    *(BYTES_OUT, LONGS_OUT, LONG_ROWS_OUT, LONGS_IN, LONGS_IN),
    *(INTS_IN, BYTES_IN, BYTES_IN, BYTES_IN, LONG, LONG),
)
def _keep(
    kept: NDArray[np.uint8],
    oldest_tombstone: NDArray[np.int64],
    table: NDArray[np.int64],
    secret: NDArray[np.int64],
    offsets: NDArray[np.int64],
    key_offsets: NDArray[np.int32],
    key_valid: NDArray[np.uint8],
    keys: NDArray[np.uint8],
    value_valid: NDArray[np.uint8],
    tombstones_to: int,
    end: int,
) -> Any:
    """Fills `kept`, and `oldest_tombstone[0]` with the offset of the first tombstone below `end` that is
    kept, or -1. Returns the rows kept."""
    count = 0
    oldest_tombstone[0] = -1
    for row in range(len(offsets)):
        offset = offsets[row]
        stays = offset >= end
        if not stays and key_valid[row]:
            high, low = _hash(secret, keys, key_offsets[row], key_offsets[row + 1])
            stays = table[_slot(table, high, low), _NEXT_OFFSET] <= offset + 1
            if stays and not value_valid[row]:
                stays = offset >= tombstones_to
                if stays and oldest_tombstone[0] < 0:
                    oldest_tombstone[0] = offset
        kept[row] = stays
        count += stays
    return count


class LatestKeys:
    """The latest offset of each key, of records that are put in any order of offsets."""

    def __init__(self, most_bytes: int, secret: bytes | None = None) -> None:
        """Takes at most `most_bytes` of memory, and 16 slots at least. `secret` has 16 bytes."""
        slots = 1 << max(4, (most_bytes // SLOT_BYTES).bit_length() - 1)
        self._table = np.zeros((slots, 3), np.int64)
        self._room = np.array([int(slots * _LOAD)], np.int64)
        self._secret = np.frombuffer(secret or secrets.token_bytes(16), "<i8").astype(np.int64)

    def put(self, rows: pa.RecordBatch) -> int:
        """Puts records of RECORD_SCHEMA. Returns how many; less than all of them if the table is full."""
        offsets = rows.column("offset").to_numpy()
        return _put(self._table, self._room, self._secret, offsets, *binary_arrays(rows.column("key")))

    def kept(self, rows: pa.RecordBatch, *, tombstones_to: int, end: int) -> tuple[NDArray[np.bool_], int]:
        """True for each record that stays, and the offset of the first tombstone that does, or -1.

        Records from `end` on stay. All records below `end` that may be the latest of their keys have been
        put. Tombstones below the offset `tombstones_to` go.
        """
        kept = np.empty(rows.num_rows, np.uint8)
        oldest_tombstone = np.empty(1, np.int64)
        _, value_valid, _ = binary_arrays(rows.column("value"))
        _keep(
            *(kept, oldest_tombstone, self._table, self._secret, rows.column("offset").to_numpy()),
            *(*binary_arrays(rows.column("key")), value_valid, tombstones_to, end),
        )
        return kept.view(np.bool_), int(oldest_tombstone[0])
