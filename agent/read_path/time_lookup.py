"""Finds the first record at or after a time, and the record with the latest (KIP-79, KIP-734).

The sequencer names a run by its time range, its batches are decoded to the exact record. Promises the first such
record at or after the log start, in offset order, and that at most one batch is decoded per run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cache_ring.page_reader import PageReader
from cache_ring.run_bytes import RunBytes
from sequencer.coordinates import Coordinates, PartitionBounds, PartitionKey
from storage.identifiers import Offset
from storage.object_store import ObjectNotFound
from storage.record_batch import read_header

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES = 4
"""How often a run that was replaced or deleted meanwhile is looked up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOffset:
    offset: int
    timestamp_ms: int


class TimeLookup:
    def __init__(self, coordinates: Coordinates, pages: PageReader) -> None:
        self._coordinates = coordinates
        self._pages = pages

    async def first_since(self, key: PartitionKey, timestamp_ms: int, log_start_offset: Offset) -> TimedOffset | None:
        """The first record with this timestamp or a later one; None if there is none.

        Raises SequencerUnavailable, StoreUnavailable, DamagedPage, or ObjectNotFound for an object that stays missing.
        """
        tries = 0
        from_offset = log_start_offset
        while True:
            run = await self._coordinates.candidate_run_for_timestamp(*key, timestamp_ms, from_offset)
            if run is None:
                return None
            try:
                found_run = await self._pages.read_run(run)
            except ObjectNotFound:
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            found = await asyncio.to_thread(first_record_since, found_run, timestamp_ms, log_start_offset)
            if found is not None:
                return found
            from_offset = Offset(run.last_offset + 1)

    async def latest(self, key: PartitionKey, bounds: PartitionBounds) -> TimedOffset | None:
        """The first record that has the greatest timestamp of the log; None for an empty log. Raises as
        `first_since`."""
        if bounds.high_watermark == bounds.log_start_offset:
            return None
        found = await self.first_since(key, bounds.max_timestamp_ms, bounds.log_start_offset)
        if found is not None:
            return found
        # The record that set the maximum is deleted. Some record is at or after a time exactly if the maximum of what
        # is
        # left is, so bisecting finds that maximum.
        low, high = await self.first_since(key, -1, bounds.log_start_offset), bounds.max_timestamp_ms
        while low is not None and high - low.timestamp_ms > 1:
            middle = (low.timestamp_ms + high) // 2
            later = await self.first_since(key, middle, bounds.log_start_offset)
            low, high = (low, middle) if later is None else (later, high)
        return low


def first_record_since(run_bytes: RunBytes, timestamp_ms: int, log_start_offset: int) -> TimedOffset | None:
    """The first record of a run at or after a time and the log start. Decodes batch by batch, skipping those too
    old."""
    from storage.arrow_columns import decode_batches  # pyarrow (see agent/later.py)

    run, data, index = run_bytes.run, run_bytes.data(), run_bytes.batches
    base_offsets = [run.base_offset + relative for relative in index.relative_offsets]
    ends = [*base_offsets[1:], run.last_offset + 1]
    for position, size, base_offset, end_offset in zip(index.positions, index.sizes, base_offsets, ends, strict=True):
        if end_offset <= log_start_offset or read_header(data, position).max_timestamp_ms < timestamp_ms:
            continue
        records = decode_batches(data, position, position + size, base_offset)
        found = _first(records, lambda times, offsets: (times >= timestamp_ms) & (offsets >= log_start_offset))
        if found is not None:
            return found
    return None


def _first(records: "pa.RecordBatch", wanted: "Callable[[np.ndarray, np.ndarray], np.ndarray]") -> TimedOffset | None:
    import pyarrow as pa  # see agent/later.py

    offsets = records.column("offset").to_numpy()
    microseconds = records.column("timestamp").cast(pa.int64()).fill_null(-1000).to_numpy()
    times = microseconds // 1000
    places = np.flatnonzero(wanted(times, offsets))
    if len(places) == 0:
        return None
    return TimedOffset(offset=int(offsets[places[0]]), timestamp_ms=int(times[places[0]]))
