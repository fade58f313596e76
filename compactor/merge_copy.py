"""Turns runs in many objects into one merged object (docs/design/merging.md#copying): what to read, whether
it is right, its layout.

Pure: the caller reads and writes.

Promises:
- Only ranges around live runs are read, with at most a quarter of dead bytes between.
- Every byte of every record is checked against its batch's checksum, and every run against its offsets.
- A run that fails stays where it is. Only its swap is left out.
- The result is a segment (`storage/segments/segment.py`) whose runs are in (topic, partition, offset) order.
  Each partition's runs are back to back.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from compactor.merge_plan import Swap
from sequencer.housekeeping.merge_values import MergedRun, PartitionKey, PlacedSwap, RunToMerge
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC_V2,
    index_batches,
)
from storage.identifiers import BytePosition, Offset, SegmentId
from storage.segments.keys import inline_bytes
from storage.segments.segment import MERGED_VERSION, FooterRun, SegmentFooter, footer_bytes, header_bytes

MOST_DEAD_SHARE = 4
"""At most one dead byte is read per this many live ones."""
_SMALL_CHUNK_BYTES = 262_144

_BATCH = struct.Struct(">8xi4xBI2xi")
"""From a batch's header: its length, magic, checksum and last offset delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """The bytes `[start, end)` of a segment."""

    segment_id: SegmentId
    start: int
    end: int


def ranges_to_read(swaps: Sequence[Swap], most_bytes: int) -> list[ByteRange]:
    """Returns ranges that cover every run of the swaps, each of about `most_bytes` or one run."""
    runs: dict[SegmentId, list[RunToMerge]] = {}
    for swap in swaps:
        for run in swap.replaced:
            if run.marker_key is None:
                runs.setdefault(run.segment_id, []).append(run)
    return [span for segment_id, own in runs.items() for span in _spans(segment_id, own, most_bytes)]


def _spans(segment_id: SegmentId, runs: list[RunToMerge], most_bytes: int) -> Iterator[ByteRange]:
    runs.sort(key=lambda run: run.position)
    start, end = int(runs[0].position), int(runs[0].position)
    live = 0
    for run in runs:
        dead = run.position - start - live
        if live and (dead * MOST_DEAD_SHARE > live or run.position + run.length - start > most_bytes):
            yield ByteRange(segment_id=segment_id, start=start, end=end)
            start, live = int(run.position), 0
        live += run.length
        end = run.position + run.length
    yield ByteRange(segment_id=segment_id, start=start, end=end)


class ReadRanges:
    """The bytes that were read, by run."""

    def __init__(self) -> None:
        self._starts: dict[SegmentId, list[int]] = {}
        self._data: dict[SegmentId, list[memoryview]] = {}

    def add(self, span: ByteRange, data: Buffer) -> None:
        at = bisect_right(self._starts.setdefault(span.segment_id, []), span.start)
        self._starts[span.segment_id].insert(at, span.start)
        self._data.setdefault(span.segment_id, []).insert(at, memoryview(data))

    def of(self, run: RunToMerge) -> memoryview:
        """Returns the run's bytes. They are too few, or none, if the object is too short or could not be
        read."""
        if run.marker_key is not None:
            return memoryview(inline_bytes(run.marker_key) or b"")
        starts = self._starts.get(run.segment_id, [])
        at = bisect_right(starts, run.position) - 1
        if at < 0:
            return memoryview(b"")
        begin = run.position - starts[at]
        return self._data[run.segment_id][at][begin : begin + run.length]


def fault_of_run(run: RunToMerge, data: memoryview) -> str | None:
    """Returns what is wrong with a run's bytes; None if nothing is."""
    if len(data) != run.length:
        return f"only {len(data)} of its {run.length} bytes are there"
    start = records = 0
    while start < len(data):
        if len(data) - start < HEADER_BYTES:
            return f"no batch fits at its byte {start}"
        length, magic, stored, last_offset_delta = _BATCH.unpack_from(data, start)
        end = start + length + LENGTH_OVERHEAD_BYTES
        if magic != MAGIC_V2 or last_offset_delta < 0 or not start + HEADER_BYTES <= end <= len(data):
            return f"no batch fits at its byte {start}"
        if crc32c(data[start + CRC_START : end]) != stored:
            return f"the batch at its byte {start} is damaged"
        start, records = end, records + last_offset_delta + 1
    return None if records == run.last_offset - run.base_offset + 1 else f"it holds {records} records"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A merged object: upload `chunks`, publish `swaps`."""

    chunks: tuple[Buffer, ...]
    size_bytes: int
    swaps: tuple[PlacedSwap, ...]

    @property
    def runs(self) -> int:
        return sum(len(swap.made) for swap in self.swaps)


class Layout:
    """Lays out one merged object, swap by swap. The caller decides when to pause."""

    def __init__(self, segment_id: SegmentId, writer: str, *, run_bytes: int) -> None:
        self._segment_id = segment_id
        self._writer = writer
        self._run_bytes = run_bytes
        header = header_bytes(segment_id, writer, MERGED_VERSION)
        self._position = len(header)
        self._chunks: list[Buffer] = []
        self._small: list[Buffer] = [header]
        self._small_bytes = 0
        self._footer: list[FooterRun] = []
        self._swaps: list[PlacedSwap] = []

    def add(self, swap: Swap, runs: Sequence[memoryview]) -> None:
        """Adds a swap and its runs' bytes, which have passed `fault_of_run`. Records may have been erased
        from them since. Call it in (topic, partition, offset) order."""
        made = tuple(_made(swap, self._position, runs, self._run_bytes))
        self._swaps.append(PlacedSwap(replaced=swap.replaced, made=made))
        for run, data in zip(swap.replaced, runs, strict=True):
            self._add_to_footer(run, data)
            self._add_chunk(data)
            self._position += len(data)

    def add_rebuilt(self, swap: Swap, data: Buffer, min_timestamp_ms: int, max_timestamp_ms: int) -> None:
        """Adds one run that replaces all of a swap: batches that span the same offsets. Call it in the same
        order as `add`."""
        first, last = swap.replaced[0], swap.replaced[-1]
        made = MergedRun(
            base_offset=Offset(first.base_offset),
            last_offset=Offset(last.last_offset),
            position=BytePosition(self._position),
            length=len(data),
            min_timestamp_ms=min_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
        )
        self._swaps.append(PlacedSwap(replaced=swap.replaced, made=(made,)))
        whole = replace(
            first,
            last_offset=last.last_offset,
            min_timestamp_ms=min_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
        )
        self._add_to_footer(whole, memoryview(data))
        self._add_chunk(data)
        self._position += len(data)

    def finish(self) -> LaidOut | None:
        """Returns the object; None if nothing was added."""
        if not self._swaps:
            return None
        footer = SegmentFooter(
            segment_id=self._segment_id, writer=self._writer, runs=tuple(self._footer), version=MERGED_VERSION
        )
        ending = footer_bytes(footer, self._position)
        self._add_chunk(ending)
        self._join_small()
        return LaidOut(
            chunks=tuple(self._chunks), size_bytes=self._position + len(ending), swaps=tuple(self._swaps)
        )

    def _add_to_footer(self, run: RunToMerge, data: memoryview) -> None:
        """A partition whose runs are back to back has one entry, plus one after each gap in its offsets."""
        last = (
            self._footer[-1]
            if self._footer and _end(self._footer[-1]) == (run.key, run.base_offset)
            else None
        )
        self._footer[len(self._footer) - (last is not None) :] = [
            FooterRun(
                topic_id=run.topic_id,
                partition=run.partition,
                position=last.position if last else BytePosition(self._position),
                length=len(data) + (last.length if last else 0),
                record_count=run.last_offset - run.base_offset + 1 + (last.record_count if last else 0),
                min_timestamp_ms=min(run.min_timestamp_ms, last.min_timestamp_ms)
                if last
                else run.min_timestamp_ms,
                max_timestamp_ms=max(run.max_timestamp_ms, last.max_timestamp_ms)
                if last
                else run.max_timestamp_ms,
                crc32c=crc32c(data, last.crc32c if last else 0),
                base_offset=last.base_offset if last else run.base_offset,
                last_offset=run.last_offset,
            )
        ]

    def _add_chunk(self, chunk: Buffer) -> None:
        """Joins small neighbours, so that the store does not get thousands of pieces."""
        if len(chunk) >= _SMALL_CHUNK_BYTES or self._small_bytes >= _SMALL_CHUNK_BYTES:
            self._join_small()
        if len(chunk) >= _SMALL_CHUNK_BYTES:
            self._chunks.append(chunk)
        else:
            self._small.append(chunk)
            self._small_bytes += len(chunk)

    def _join_small(self) -> None:
        if self._small:
            self._chunks.append(b"".join(self._small))
        self._small, self._small_bytes = [], 0


def _made(swap: Swap, position: int, runs: Sequence[memoryview], run_bytes: int) -> Iterator[MergedRun]:
    """Yields one run or, if that would be too long, several, cut between batches."""
    first, last = swap.replaced[0], swap.replaced[-1]
    times = {
        "min_timestamp_ms": min(run.min_timestamp_ms for run in swap.replaced),
        "max_timestamp_ms": max(run.max_timestamp_ms for run in swap.replaced),
    }
    base_offset = int(first.base_offset)
    for length, records in _pieces(swap, runs, run_bytes):
        yield MergedRun(
            base_offset=Offset(base_offset),
            last_offset=Offset(base_offset + records - 1),
            position=BytePosition(position),
            length=length,
            **times,
        )
        base_offset, position = base_offset + records, position + length
    assert base_offset == last.last_offset + 1, "a run that passed its check has as many records as offsets"


def _pieces(swap: Swap, runs: Sequence[memoryview], run_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields bytes and records of each run to make."""
    first, last = swap.replaced[0], swap.replaced[-1]
    if len(runs) > 1 or len(runs[0]) <= run_bytes:
        yield sum(map(len, runs)), last.last_offset - first.base_offset + 1
        return
    batches = index_batches(runs[0], 0, len(runs[0]))
    length = records = 0
    sizes, deltas = batches["size_bytes"].tolist(), batches["last_offset_delta"].tolist()
    for size_bytes, last_offset_delta in zip(sizes, deltas, strict=True):
        if length and length + size_bytes > run_bytes:
            yield length, records
            length = records = 0
        length, records = length + size_bytes, records + last_offset_delta + 1
    yield length, records


def _end(run: FooterRun) -> tuple[PartitionKey, int]:
    """Returns the partition and its next offset."""
    assert run.last_offset is not None, "a merged segment's footer has offsets"
    return (run.topic_id, run.partition), run.last_offset + 1
