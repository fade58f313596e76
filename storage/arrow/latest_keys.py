"""Which records log compaction keeps: the decision that every cleaner of a log shares.

A record below the end of a cleaning stays if it has a key, no later record below that end has the same key,
and it is not a tombstone whose time is over (Kafka's log cleaner, KIP-534).

If there are more keys than fit, the decision takes several passes, each for a range of the keys' hashes.

Promises:
- The memory is that of the table, whatever the keys are: 24 bytes per slot.
- Each key is in the range of exactly one pass.
- A record goes for a later one of the same key only. Keys are compared by a hash of 128 bits, SipHash-2-4
  with a secret that each cleaning draws: nobody can choose keys that collide, and among a thousand million
  keys any two do with a chance of 1.5e-21.
"""

import secrets
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.arrow.arrow_encoding import binary_arrays
from storage.native.arguments import (
    BYTES_IN,
    BYTES_OUT,
    INTS_IN,
    LONG,
    LONG_ROWS_IN,
    LONG_ROWS_OUT,
    LONGS_IN,
    LONGS_OUT,
)
from storage.native.kernels import helper, kernel

SLOT_BYTES: Final = 24
_LOAD: Final = 0.7
"""The share of slots that may be taken: fuller tables are searched for long."""
_HIGH, _LOW, _NEXT_OFFSET = 0, 1, 2
"""Columns of the table: the hash, and the offset after the key's latest record. 0: the slot is free."""
_MOST_BITS: Final = 62
_ROOM, _BITS, _NUMBER = 0, 1, 2
"""What else the kernels keep: the slots that may still be taken; and the range, which has the hashes whose
first so many bits are this number."""


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


@helper
def _is_in_range(limits: NDArray[np.int64], high: Any) -> Any:
    bits = limits[_BITS]
    return bits == 0 or (np.uint64(high) >> np.uint64(64 - bits)) == np.uint64(limits[_NUMBER])


@kernel(LONG_ROWS_OUT, LONGS_OUT)
def _halve(table: NDArray[np.int64], limits: NDArray[np.int64]) -> Any:
    """Drops the keys of the range's upper half. Returns the slots that are free now.

    It goes round from a free slot on, and puts each key back where it belongs: at its slot or before it."""
    limits[_BITS] += 1
    limits[_NUMBER] *= 2
    mask = len(table) - 1
    start = 0
    while table[start, _NEXT_OFFSET] != 0:
        start += 1
    for step in range(1, len(table)):
        slot = (start + step) & mask
        next_offset = table[slot, _NEXT_OFFSET]
        if next_offset == 0:
            continue
        high, low = table[slot, _HIGH], table[slot, _LOW]
        table[slot, _NEXT_OFFSET] = 0
        if not _is_in_range(limits, high):
            limits[_ROOM] += 1
            continue
        to = _slot(table, high, low)
        table[to, _HIGH] = high
        table[to, _LOW] = low
        table[to, _NEXT_OFFSET] = next_offset
    return limits[_ROOM]


@helper
def _note(table: NDArray[np.int64], limits: NDArray[np.int64], high: Any, low: Any, next_offset: Any) -> Any:
    """Notes that a key has a record before `next_offset`. False: there is no room for it."""
    slot = _slot(table, high, low)
    if table[slot, _NEXT_OFFSET] == 0:
        if limits[_ROOM] == 0:
            return False
        limits[_ROOM] -= 1
        table[slot, _HIGH] = high
        table[slot, _LOW] = low
    table[slot, _NEXT_OFFSET] = max(table[slot, _NEXT_OFFSET], next_offset)
    return True


@kernel(LONG_ROWS_OUT, LONGS_OUT, LONGS_IN, LONGS_IN, INTS_IN, BYTES_IN, BYTES_IN)
def _put(
    table: NDArray[np.int64],
    limits: NDArray[np.int64],
    secret: NDArray[np.int64],
    offsets: NDArray[np.int64],
    key_offsets: NDArray[np.int32],
    key_valid: NDArray[np.uint8],
    keys: NDArray[np.uint8],
) -> Any:
    """Puts the rows of the range into the table until a key finds no room. Returns the rows put."""
    for row in range(len(offsets)):
        if not key_valid[row]:
            continue
        high, low = _hash(secret, keys, key_offsets[row], key_offsets[row + 1])
        if not _is_in_range(limits, high):
            continue
        if not _note(table, limits, high, low, offsets[row] + 1):
            return row
    return len(offsets)


@kernel(LONG_ROWS_OUT, LONGS_OUT, LONG_ROWS_IN)
def _put_hashed(table: NDArray[np.int64], limits: NDArray[np.int64], entries: NDArray[np.int64]) -> Any:
    """As `_put`, for rows of another table with the same secret. Returns the rows put."""
    for row in range(len(entries)):
        high, low = entries[row, _HIGH], entries[row, _LOW]
        if not _is_in_range(limits, high):
            continue
        if not _note(table, limits, high, low, entries[row, _NEXT_OFFSET]):
            return row
    return len(entries)


@kernel(
    *(BYTES_OUT, LONGS_OUT, LONG_ROWS_OUT, LONGS_IN, LONGS_IN, LONGS_IN),
    *(INTS_IN, BYTES_IN, BYTES_IN, BYTES_IN, LONG, LONG),
)
def _keep(
    kept: NDArray[np.uint8],
    oldest_tombstone: NDArray[np.int64],
    table: NDArray[np.int64],
    limits: NDArray[np.int64],
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
            is_here = _is_in_range(limits, high)
            stays = not is_here or table[_slot(table, high, low), _NEXT_OFFSET] <= offset + 1
            if stays and not value_valid[row]:
                stays = not is_here or offset >= tombstones_to
                if stays and oldest_tombstone[0] < 0:
                    oldest_tombstone[0] = offset
        kept[row] = stays
        count += stays
    return count


class LatestKeys:
    """The latest offset of each key, of records that are put in any order of offsets.

    A pass has the keys of a range. It begins with all that are left, and gives up the upper half whenever the
    table is full."""

    def __init__(self, most_bytes: int, secret: bytes | None = None) -> None:
        """Takes at most `most_bytes` of memory, and 16 slots at least. `secret` has 16 bytes."""
        slots = 1 << max(4, (most_bytes // SLOT_BYTES).bit_length() - 1)
        self._table = np.zeros((slots, 3), np.int64)
        self._limits = np.array([int(slots * _LOAD), 0, 0], np.int64)
        self.secret = secret or secrets.token_bytes(16)
        self._secret = np.frombuffer(self.secret, "<i8").astype(np.int64)

    def put(self, rows: pa.RecordBatch) -> None:
        """Puts records of RECORD_SCHEMA. Those whose keys are for another pass are left out."""
        offsets = rows.column("offset").to_numpy()
        put = 0
        while put < len(offsets):
            keys = binary_arrays(rows.column("key").slice(put))
            put += _put(self._table, self._limits, self._secret, offsets[put:], *keys)
            while put < len(offsets) and not _halve(self._table, self._limits):
                assert self._limits[_BITS] < _MOST_BITS, "hashes are spread evenly"

    def entries(self) -> NDArray[np.int64]:
        """What was put, one row per key: the key's hash in two halves, and the offset after its latest
        record."""
        taken: NDArray[np.int64] = self._table[self._table[:, _NEXT_OFFSET] != 0]
        return taken

    def put_entries(self, entries: NDArray[np.int64]) -> None:
        """Puts the entries of another one with the same secret. Those for another pass are left out."""
        put = 0
        while put < len(entries):
            put += _put_hashed(self._table, self._limits, entries[put:])
            while put < len(entries) and not _halve(self._table, self._limits):
                assert self._limits[_BITS] < _MOST_BITS, "hashes are spread evenly"

    @property
    def passes(self) -> int:
        """How many passes there are, as far as the keys are known."""
        return 1 << int(self._limits[_BITS])

    def next_pass(self) -> bool:
        """Turns to the next range of the same width, for which all records are put again. False: there is
        none."""
        _, bits, number = self._limits.tolist()
        if number + 1 == 1 << bits:
            return False
        self._table[:] = 0
        self._limits[:] = int(len(self._table) * _LOAD), bits, number + 1
        return True

    def kept(self, rows: pa.RecordBatch, *, tombstones_to: int, end: int) -> tuple[NDArray[np.bool_], int]:
        """True for each record that stays in this pass, and the offset of the first tombstone that does, or
        -1.

        Records from `end` on stay, and so do those whose keys are for another pass. All records below `end`
        that may be the latest of their keys have been put. Tombstones below the offset `tombstones_to` go.
        """
        kept = np.empty(rows.num_rows, np.uint8)
        oldest_tombstone = np.empty(1, np.int64)
        _, value_valid, _ = binary_arrays(rows.column("value"))
        _keep(
            *(kept, oldest_tombstone, self._table, self._limits, self._secret),
            *(rows.column("offset").to_numpy(), *binary_arrays(rows.column("key"))),
            *(value_valid, tombstones_to, end),
        )
        return kept.view(np.bool_), int(oldest_tombstone[0])
