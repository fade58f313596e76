"""Record batches of a run as they go out: cut at batch borders, with their offsets patched in, not copied (DESIGN §3,
§6).

Pure. A batch's base offset lies outside its CRC, so 16 new bytes stand in for its first 16 and the rest is a view of
the page. Many small batches are instead copied once and patched in place, which is cheaper than two views each.
Promises whole batches in offset order, from the one that holds the offset asked for, within the limit but for the
first if it must go out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sequencer.coordinates import RunCoordinate
from storage.record_batch import LENGTH_OVERHEAD_BYTES, PREFIX_BYTES, index_batches, patched_prefix

_COPY_BELOW_BYTES = 2048
"""Batches smaller than this on average are copied and patched in place (measured: benchmarks/read_path.py)."""
_PATCH_COLUMNS = np.arange(PREFIX_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBytes:
    """A run with its bytes and the index of its batches."""

    run: RunCoordinate
    data: memoryview
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    base_offsets: NDArray[np.int64]

    @classmethod
    def of(cls, run: RunCoordinate, data: memoryview) -> "RunBytes":
        batches = index_batches(data, 0, len(data))
        counts = batches["last_offset_delta"] + 1
        return cls(
            run=run,
            data=data,
            positions=np.ascontiguousarray(batches["position"]),
            sizes=np.ascontiguousarray(batches["size_bytes"]),
            base_offsets=run.base_offset + np.cumsum(counts) - counts,
        )


@dataclass(slots=True)
class Outgoing:
    """Chunks of record batches, and what they take."""

    chunks: list[bytes | bytearray | memoryview]
    size_bytes: int = 0


def take_batches(
    runs: Sequence[RunBytes], offset: int, end_offset: int, limit_bytes: int, *, first_whatever_its_size: bool
) -> Outgoing:
    """The batches of consecutive runs from the one that holds `offset`, before `end_offset`, of at most
    `limit_bytes`."""
    outgoing = Outgoing(chunks=[])
    for run in runs:
        first = max(0, int(np.searchsorted(run.base_offsets, offset, side="right")) - 1)
        end = int(np.searchsorted(run.base_offsets, end_offset, side="left"))
        room = limit_bytes - outgoing.size_bytes
        fitting = int(np.searchsorted(np.cumsum(run.sizes[first:end]), room, side="right"))
        if fitting == 0 and first < end and first_whatever_its_size and not outgoing.chunks:
            fitting = 1
        _append(outgoing, run, first, first + fitting)
        if first + fitting < len(run.sizes):
            break
    return outgoing


def _append(outgoing: Outgoing, run: RunBytes, first: int, end: int) -> None:
    if first >= end:
        return
    start_byte = int(run.positions[first])
    end_byte = int(run.positions[end - 1] + run.sizes[end - 1])
    outgoing.size_bytes += end_byte - start_byte
    if end - first > 1 and (end_byte - start_byte) // (end - first) < _COPY_BELOW_BYTES:
        outgoing.chunks.append(_patched_copy(run, first, end, start_byte, end_byte))
        return
    positions, sizes = run.positions[first:end].tolist(), run.sizes[first:end].tolist()
    for position, size, base_offset in zip(positions, sizes, run.base_offsets[first:end].tolist(), strict=True):
        outgoing.chunks.append(patched_prefix(base_offset, size))
        outgoing.chunks.append(run.data[position + PREFIX_BYTES : position + size])


def _patched_copy(run: RunBytes, first: int, end: int, start_byte: int, end_byte: int) -> bytearray:
    copied = bytearray(run.data[start_byte:end_byte])
    prefixes: NDArray[Any] = np.zeros(end - first, dtype=[("base", ">i8"), ("length", ">i4"), ("epoch", ">i4")])
    prefixes["base"] = run.base_offsets[first:end]
    prefixes["length"] = run.sizes[first:end] - LENGTH_OVERHEAD_BYTES
    where = (run.positions[first:end] - start_byte)[:, np.newaxis] + _PATCH_COLUMNS
    np.frombuffer(copied, dtype=np.uint8)[where] = prefixes.view(np.uint8).reshape(-1, PREFIX_BYTES)
    return copied
