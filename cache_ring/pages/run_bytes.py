"""A run's bytes with the index of its batches. Pure.

Promise: the batches cover the run's bytes and offsets exactly. Only headers are checked.

A run of few batches is walked in Python, which takes a microsecond: a fetch of many partitions takes one such
run of each. Other runs are walked natively. Indexes of runs with many batches are kept for a while, because
such a run is read in several pieces.
"""

import struct
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sequencer.commits.coordinates import RunCoordinate
from storage.batches.record_batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    index_batches,
    relative_offsets,
)
from storage.identifiers import ObjectKey

_WORTH_KEEPING = 32
"""A run of fewer batches is indexed faster than its index is looked up."""


_MOST_WALKED = 16
"""The most batches that are walked in Python."""
_LENGTH_AND_DELTA = struct.Struct(">i11xi")
_LENGTH_AT = 8

Longs: TypeAlias = "array[int]"


class BatchIndex(NamedTuple):
    """Three int64 arrays with one entry per batch: position in the run's bytes, size in bytes, base offset
    within the run."""

    positions: Longs
    sizes: Longs
    relative_offsets: Longs


class RunBytes(NamedTuple):
    """`pieces` are the run's bytes in order: one piece, or one per page."""

    run: RunCoordinate
    pieces: Sequence[memoryview]
    batches: BatchIndex

    @classmethod
    def of(cls, run: RunCoordinate, pieces: Sequence[memoryview]) -> "RunBytes | None":
        """None if the bytes are not those of the run."""
        index = _index(run, _joined(pieces))
        return None if index is None else cls(run, pieces, index)

    def data(self) -> memoryview:
        """The run's bytes, copied if they are in several pieces."""
        return _joined(self.pieces)

    def views(self, start: int, end: int) -> list[memoryview]:
        """The bytes `[start, end)` of the run, without a copy."""
        if len(self.pieces) == 1:
            return [self.pieces[0][start:end]]
        found, piece_start = [], 0
        for piece in self.pieces:
            if start < piece_start + len(piece) and end > piece_start:
                found.append(piece[max(0, start - piece_start) : end - piece_start])
            piece_start += len(piece)
        return found


class RunIndexes:
    """The indexes of recently read runs, of at most `most_batches` batches together."""

    def __init__(self, most_batches: int) -> None:
        self._most_batches = most_batches
        self._batches = 0
        self._kept: OrderedDict[tuple[ObjectKey, int, int], tuple[list[int], BatchIndex]] = OrderedDict()

    @property
    def batches(self) -> int:
        return self._batches

    def run_bytes(self, run: RunCoordinate, pieces: Sequence[memoryview]) -> RunBytes | None:
        """None if the bytes are not those of the run. An index is used again only for the very same
        buffers."""
        key = (run.object_key, run.position, run.length)
        buffers = [id(piece.obj) for piece in pieces]
        kept = self._kept.get(key)
        if kept is not None and kept[0] == buffers:
            self._kept.move_to_end(key)
            return RunBytes(run, pieces, kept[1])
        self._drop(key)
        found = RunBytes.of(run, pieces)
        if found is not None and len(found.batches.sizes) >= _WORTH_KEEPING:
            self._kept[key] = (buffers, found.batches)
            self._batches += len(found.batches.sizes)
            while self._batches > self._most_batches:
                self._drop(next(iter(self._kept)))
        return found

    def _drop(self, key: tuple[ObjectKey, int, int]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._batches -= len(dropped[1].sizes)


def _joined(pieces: Sequence[memoryview]) -> memoryview:
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def _index(run: RunCoordinate, data: memoryview) -> BatchIndex | None:
    length, records = run.length, run.last_offset - run.base_offset + 1
    if len(data) != length:
        return None
    positions: list[int] = []
    sizes: list[int] = []
    relative_offsets: list[int] = []
    position = relative_offset = 0
    while position < length:
        if len(sizes) == _MOST_WALKED:
            return _native_index(records, data)
        if length - position < HEADER_BYTES:
            return None
        size, last_offset_delta = _LENGTH_AND_DELTA.unpack_from(data, position + _LENGTH_AT)
        size += LENGTH_OVERHEAD_BYTES
        if size < HEADER_BYTES or last_offset_delta < 0:
            return None
        positions.append(position)
        sizes.append(size)
        relative_offsets.append(relative_offset)
        position += size
        relative_offset += last_offset_delta + 1
    if position != length or relative_offset != records:
        return None
    return BatchIndex(array("q", positions), array("q", sizes), array("q", relative_offsets))


def _native_index(records: int, data: memoryview) -> BatchIndex | None:
    try:
        batches = index_batches(data, 0, len(data))
    except ValueError:
        return None
    last_offset_deltas = batches["last_offset_delta"]
    begins = relative_offsets(batches)
    if int(begins[-1] + last_offset_deltas[-1]) + 1 != records or int(last_offset_deltas.min()) < 0:
        return None
    return BatchIndex(_longs(batches["position"]), _longs(batches["size_bytes"]), _longs(begins))


def _longs(column: NDArray[np.int64]) -> Longs:
    return array("q", np.ascontiguousarray(column).tobytes())
