"""Cuts record batches of a run at batch borders and patches their offsets in, without copies
(docs/design/read-path.md#batches-on-the-way-out).

Pure. A batch's base offset lies outside its CRC. So 16 new bytes replace its first 16, and the rest is a view
of the page. Many small batches are copied once and patched in place, which is cheaper than two views each.

Promises:
- Whole batches in offset order, from the one that holds the requested offset, within the limit, except for
  the first if it must go out.
- Aborted transactions are named only if their markers are in these batches or behind them. A client drops a
  producer's records from the first one on until it sees the marker. Where log compaction or history have
  removed the marker, it would drop all later transactions of that producer, too.
- Records of an aborted transaction go out with its name. Where they are left but the marker is gone, the
  batches end before the marker's offset.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_ring.pages.run_bytes import BatchIndex, Longs, RunBytes
from sequencer.commits.coordinates import RunCoordinate, TransactionalBatches
from storage.arrow.aborted_batches import (
    AbortedTransaction,
    are_markers,
    columns_of,
    left_out,
    producers_of_transactions,
)
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    PREFIX_BYTES,
    patch_prefix,
    patched_prefix,
)

_COPY_BELOW_BYTES = 8192
"""Batches smaller than this on average are copied and patched in place. Measured up to the socket's other
end, 1 MiB of 2 KiB batches takes 0.8 ms of CPU copied and 1.9 ms as views. From 8 KiB on views are as cheap.
"""
_PATCHED_ONE_BY_ONE = 64
"""More batches than these are patched by numpy, which costs 20 µs and then almost nothing per batch."""
_PATCH_COLUMNS = np.arange(PREFIX_BYTES)


@dataclass(slots=True)
class Outgoing:
    """Chunks of record batches, and their sizes."""

    chunks: list[bytes | bytearray | memoryview]
    size_bytes: int = 0
    records: int = 0
    """Counted by the offsets that the batches take."""
    end_offset: int = 0
    """After the last batch."""


def take_batches(
    runs: Sequence[RunBytes], offset: int, end_offset: int, limit_bytes: int, *, first_whatever_its_size: bool
) -> Outgoing:
    """Returns the batches of consecutive runs from the one that holds `offset`, before `end_offset`, of at
    most `limit_bytes`.
    """
    outgoing = Outgoing(chunks=[])
    for run in runs:
        index, base_offset = run.batches, run.run.base_offset
        count = len(index.sizes)
        first = bisect_right(index.relative_offsets, offset - base_offset) - 1 if offset > base_offset else 0
        end = count
        if end_offset <= run.run.last_offset:
            end = bisect_left(index.relative_offsets, end_offset - base_offset)
        fitting = _fitting(index, first, end, limit_bytes - outgoing.size_bytes)
        if fitting == 0 and first < end and first_whatever_its_size and not outgoing.chunks:
            fitting = 1
        _append(outgoing, run, first, first + fitting)
        if first + fitting < count:
            break
    return outgoing


def take_committed(
    runs: Sequence[RunBytes],
    offset: int,
    end_offset: int,
    limit_bytes: int,
    aborted: Sequence[AbortedTransaction],
    *,
    first_whatever_its_size: bool,
) -> tuple[Outgoing, Sequence[AbortedTransaction]]:
    """As `take_batches`, and the aborted transactions to name. `aborted` has those that overlap the batches,
    in the order of their markers.
    """
    take = partial(
        take_batches, runs, offset, limit_bytes=limit_bytes, first_whatever_its_size=first_whatever_its_size
    )
    outgoing = take(end_offset)
    if not aborted:
        return outgoing, ()
    named, missing = _with_markers(runs, outgoing.end_offset, aborted)
    cut = _end_before_markers(runs, offset, outgoing.end_offset, missing) if missing else None
    if cut is not None:
        outgoing = take(cut)
        named, _ = _with_markers(runs, outgoing.end_offset, aborted)
    return outgoing, named


def transactional_batches(
    runs: Sequence[RunBytes], offset: int, end_offset: int, limit_bytes: int, most: int
) -> tuple[TransactionalBatches | None, int]:
    """The first `most` batches of transactions among those that `take_batches` would return, None if there
    are none; and where an answer must end to hold no others."""
    taken = take_batches(runs, offset, end_offset, limit_bytes, first_whatever_its_size=True)
    theirs: list[RunCoordinate] = []
    bases: list[int] = []
    producer_ids: list[int] = []
    for run in runs:
        offsets, data, places = _batches_in(run, offset, taken.end_offset)
        if not len(offsets):
            continue
        producers = producers_of_transactions(data, places)
        are_theirs = producers >= 0
        if not are_theirs.any():
            continue
        bases += offsets[are_theirs].tolist()
        producer_ids += producers[are_theirs].tolist()
        if len(bases) > most:
            end_offset = bases[most]
            del bases[most:], producer_ids[most:]
            if bases and bases[-1] >= run.run.base_offset:
                theirs.append(run.run)
            break
        theirs.append(run.run)
    found = TransactionalBatches(
        runs=theirs, base_offsets=bases, producer_ids=producer_ids, from_offset=offset
    )
    return found if bases else None, end_offset


def _batches_in(
    run: RunBytes, offset: int, end_offset: int
) -> tuple[NDArray[np.int64], Buffer, NDArray[np.int64]]:
    """The batches from the one that holds `offset` up to `end_offset`: their base offsets, bytes that hold
    them, and where each begins there."""
    positions, sizes, relative_offsets = run.batches
    offsets = _longs(relative_offsets, 0, len(relative_offsets)) + run.run.base_offset
    first = max(0, int(np.searchsorted(offsets, offset, side="right")) - 1)
    end = int(np.searchsorted(offsets, end_offset))
    if first >= end:
        return offsets[:0], b"", offsets[:0]
    start_byte = positions[first]
    views = run.views(start_byte, positions[end - 1] + sizes[end - 1])
    data = views[0] if len(views) == 1 else b"".join(views)
    return offsets[first:end], data, _longs(positions, first, end) - start_byte


def _with_markers(
    runs: Sequence[RunBytes], end_offset: int, aborted: Sequence[AbortedTransaction]
) -> tuple[Sequence[AbortedTransaction], Sequence[AbortedTransaction]]:
    """The aborted transactions whose markers are below `end_offset` or may follow, and the others."""
    found = [entry for entry in aborted if entry.first_offset < end_offset]
    markers = np.array([entry.last_offset for entry in found], np.int64)
    stays = markers >= end_offset
    for run in runs:
        run_end = min(run.run.last_offset + 1, end_offset)
        first, end = np.searchsorted(markers, [run.run.base_offset, run_end])
        if first < end:
            stays[first:end] |= _have_markers(run, markers[first:end] - run.run.base_offset)
    return list(compress(found, stays.tolist())), list(compress(found, (~stays).tolist()))


def _have_markers(run: RunBytes, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each offset in the run at which a marker is."""
    positions, _, relative_offsets = run.batches
    begins = _longs(relative_offsets, 0, len(relative_offsets))
    places = np.searchsorted(begins, offsets, side="right") - 1
    found: NDArray[np.bool_] = begins[places] == offsets
    of_found = [positions[place] for place in places[found].tolist()]
    headers = b"".join(view for at in of_found for view in run.views(at, at + HEADER_BYTES))
    found[found] = are_markers(headers, np.arange(len(of_found)) * HEADER_BYTES)
    return found


def _end_before_markers(
    runs: Sequence[RunBytes], offset: int, end_offset: int, missing: Sequence[AbortedTransaction]
) -> int | None:
    """Where batches of these transactions must end to come before all of their markers: a batch begins there.
    None if there are no batches of theirs, from the one that holds `offset` up to `end_offset`.
    """
    columns = columns_of(missing)
    of_missing: list[NDArray[np.int64]] = []
    for run in runs:
        offsets, data, places = _batches_in(run, offset, end_offset)
        if len(offsets):
            are_theirs = left_out(data, places, offsets, columns) & ~are_markers(data, places)
            of_missing.append(offsets[are_theirs])
    bases = np.concatenate(of_missing)
    behind = np.searchsorted(bases, columns[:, 0]) > np.searchsorted(bases, columns[:, 1])
    if not behind.any():
        return None
    all_begins = np.concatenate(
        [
            _longs(run.batches.relative_offsets, 0, len(run.batches.relative_offsets)) + run.run.base_offset
            for run in runs
        ]
    )
    marker = columns[behind, 0].min()
    return int(all_begins[np.searchsorted(all_begins, marker, side="right") - 1])


def _fitting(index: BatchIndex, first: int, end: int, room_bytes: int) -> int:
    """Returns how many of the batches `[first, end)` fit into `room_bytes`. They lie back to back, so their
    positions suffice.
    """
    if first >= end:
        return 0
    positions = index.positions
    end_byte = positions[first] + room_bytes
    if positions[end - 1] + index.sizes[end - 1] <= end_byte:
        return end - first
    # The last batch that begins within the room does not end there: otherwise the next one would begin there
    # too.
    return max(0, bisect_right(positions, end_byte, first, end) - 1 - first)


def _append(outgoing: Outgoing, run: RunBytes, first: int, end: int) -> None:
    if first >= end:
        return
    positions, sizes, relative_offsets = run.batches
    base_offset, chunks = run.run.base_offset, outgoing.chunks
    start_byte, end_byte = positions[first], positions[end - 1] + sizes[end - 1]
    outgoing.size_bytes += end_byte - start_byte
    end_offset = relative_offsets[end] if end < len(sizes) else run.run.last_offset + 1 - base_offset
    outgoing.records += end_offset - relative_offsets[first]
    outgoing.end_offset = base_offset + end_offset
    if end - first > 1 and end_byte - start_byte < _COPY_BELOW_BYTES * (end - first):
        chunks.append(_patched_copy(run, first, end))
        return
    for at in range(first, end):
        position, size = positions[at], sizes[at]
        chunks.append(patched_prefix(base_offset + relative_offsets[at], size))
        chunks += run.views(position + PREFIX_BYTES, position + size)


def _patched_copy(run: RunBytes, first: int, end: int) -> bytearray:
    positions, sizes, relative_offsets = run.batches
    start_byte, base_offset = positions[first], run.run.base_offset
    views = run.views(start_byte, positions[end - 1] + sizes[end - 1])
    copied = bytearray(views[0] if len(views) == 1 else b"".join(views))
    if end - first <= _PATCHED_ONE_BY_ONE:
        for at in range(first, end):
            patch_prefix(copied, positions[at] - start_byte, base_offset + relative_offsets[at], sizes[at])
        return copied
    prefixes: NDArray[Any] = np.zeros(
        end - first, dtype=[("base", ">i8"), ("length", ">i4"), ("epoch", ">i4")]
    )
    prefixes["base"] = _longs(relative_offsets, first, end) + base_offset
    prefixes["length"] = _longs(sizes, first, end) - LENGTH_OVERHEAD_BYTES
    where = (_longs(positions, first, end) - start_byte)[:, np.newaxis] + _PATCH_COLUMNS
    np.frombuffer(copied, dtype=np.uint8)[where] = prefixes.view(np.uint8).reshape(-1, PREFIX_BYTES)
    return copied


def _longs(column: Longs, first: int, end: int) -> NDArray[np.int64]:
    return np.frombuffer(column, dtype=np.int64)[first:end]
