"""Finds the first record at or after a time, and the record with the latest time (KIP-79, KIP-734).

The sequencer names a run by its time range. The headers of the run's batches name the batch that decides, and
only that batch is decompressed.

Promises:
- The found record is the first such record at or after the log start, in offset order.
- A batch whose header shows the record is not decompressed. Of the others, only the deciding batch and the
  one with the log start are.
- The runs read for look-ups take at most `time_lookup_bytes` of memory at once, and connections take turns.
  They also take turns on the threads that decompress.
- A look-up ends when its caller is cancelled, which happens when the client hangs up.

A batch that decompresses to more than `max_decompressed_bytes`, because it was written when that was larger,
is answered with its first offset.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from cache_ring.pages.page_reader import PageReader
from cache_ring.pages.run_bytes import RunBytes
from cache_ring.pages.store_pages import DamagedPage
from sequencer.commits.coordinates import Coordinates, PartitionBounds, PartitionKey, RunCoordinate
from sequencer.topics.topic_key_cache import TopicKeys
from storage.batches.batch_kernels import first_since
from storage.batches.batch_validation import (
    BatchFault,
    InvalidBatch,
    check_crc,
    plain_records,
    scan,
    span_row,
)
from storage.batches.byte_arrays import as_byte_array
from storage.batches.record_batch import BatchHeader, TimestampType, read_header
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import SealBroken
from storage.fair_limit import FairLimit
from storage.identifiers import Offset
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from storage.threads import Threads

_TRIES = 4
"""How often a run that was replaced or deleted meanwhile is looked up again."""
_MAX_TIMESTAMP_POSITION = 35


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOffset:
    offset: int
    timestamp_ms: int


class TimeLookup:
    """One per agent. `client` is the requester: clients take turns."""

    def __init__(
        self,
        coordinates: Coordinates,
        pages: PageReader,
        threads: Threads,
        read_path: ReadPathSettings,
        settings: AgentSettings,
        keys: TopicKeys | None = None,
    ) -> None:
        self._keys = keys
        self._coordinates = coordinates
        self._pages = pages
        self._threads = threads
        self._reading = FairLimit(read_path.time_lookup_bytes)
        self._most_plain_bytes = settings.max_decompressed_bytes

    async def first_since(
        self, key: PartitionKey, timestamp_ms: int, bounds: PartitionBounds, client: Hashable
    ) -> TimedOffset | None:
        """Returns the first record with this timestamp or a later one. None: there is none.

        Raises SequencerUnavailable, StoreUnavailable, DamagedPage, or ObjectNotFound for an object that stays
        missing.
        """
        tries = 0
        from_offset = bounds.log_start_offset
        while True:
            run = await self._coordinates.candidate_run_for_timestamp(
                *key, timestamp_ms, from_offset, bounds.local_start_offset
            )
            if run is None:
                return None
            try:
                found = await self._first_of_run(run, timestamp_ms, bounds.log_start_offset, client)
            except ObjectNotFound:
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            if found is not None:
                return found
            from_offset = Offset(run.last_offset + 1)

    async def latest(
        self, key: PartitionKey, bounds: PartitionBounds, client: Hashable
    ) -> TimedOffset | None:
        """Returns the first record with the greatest timestamp of the log. None for an empty log. Raises as
        `first_since`.
        """
        if bounds.high_watermark == bounds.log_start_offset:
            return None
        found = await self.first_since(key, bounds.max_timestamp_ms, bounds, client)
        if found is not None:
            return found
        # The record that set the maximum is deleted. Some record is at or after a time exactly if the maximum
        # of the remaining records is, so bisection finds that maximum.
        low, high = await self.first_since(key, -1, bounds, client), bounds.max_timestamp_ms
        while low is not None and high - low.timestamp_ms > 1:
            middle = (low.timestamp_ms + high) // 2
            later = await self.first_since(key, middle, bounds, client)
            low, high = (low, middle) if later is None else (later, high)
        return low

    async def _first_of_run(
        self, run: RunCoordinate, timestamp_ms: int, log_start_offset: int, client: Hashable
    ) -> TimedOffset | None:
        await self._reading.take(client, run.length)
        give_back = partial(self._reading.give_back, run.length)
        try:
            run_bytes = await self._pages.read_run(run)
            if self._keys is not None and self._keys.may_be_sealed(run.topic_id):
                run_bytes = await _opened(self._keys, run_bytes)
        except BaseException:
            give_back()
            raise
        find = partial(first_of_run, run_bytes, timestamp_ms, log_start_offset, self._most_plain_bytes)
        return await self._threads.run_for(client, find, give_back)


async def _opened(keys: TopicKeys, run_bytes: RunBytes) -> RunBytes:
    """Returns the run with its sealed batches opened. Raises DamagedPage, or StoreUnavailable without their
    keys."""
    run = run_bytes.run
    try:
        data = memoryview(await keys.opened(run.topic_id, run.partition, run_bytes.data()))
    except KeyUnavailable as error:
        raise StoreUnavailable(str(error)) from error
    except SealBroken as error:
        raise DamagedPage(str(error)) from error
    found = RunBytes.of(run._replace(length=len(data)), [data])
    assert found is not None, "an opened batch keeps its offsets"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBatch:
    """A batch that may hold the record: its bytes, and its place in the log."""

    data: memoryview
    header: BatchHeader
    base_offset: int

    @property
    def is_told_by_header(self) -> bool:
        """True if the header shows the records' offsets and their one time."""
        header = self.header
        has_all_offsets = header.record_count == header.last_offset_delta + 1
        has_one_time = header.record_count == 1 or header.timestamp_type is TimestampType.LOG_APPEND_TIME
        return has_all_offsets and has_one_time and not header.is_control


def first_of_run(
    run_bytes: RunBytes, timestamp_ms: int, log_start_offset: int, most_plain_bytes: int
) -> TimedOffset | None:
    """Returns the first record of a run at or after a time and the log start. Raises DamagedPage."""
    for batch in batches_since(run_bytes, timestamp_ms, log_start_offset):
        found = first_of_batch(batch, timestamp_ms, log_start_offset, most_plain_bytes)
        if found is not None:
            return found
    return None


def batches_since(run_bytes: RunBytes, timestamp_ms: int, log_start_offset: int) -> Iterator[TimedBatch]:
    """Returns the batches of a run that reach the time and the log start, in order. Reads only their
    headers.
    """
    data, index = run_bytes.data(), run_bytes.batches
    base_offsets = run_bytes.run.base_offset + np.array(index.relative_offsets, np.int64)
    ends = np.append(base_offsets[1:], run_bytes.run.last_offset + 1)
    max_timestamps_ms = _longs_at(data, np.array(index.positions, np.int64) + _MAX_TIMESTAMP_POSITION)
    places = np.flatnonzero((ends > log_start_offset) & (max_timestamps_ms >= timestamp_ms)).tolist()

    def each() -> Iterator[TimedBatch]:
        for place in places:
            batch = data[index.positions[place] : index.positions[place] + index.sizes[place]]
            yield TimedBatch(data=batch, header=read_header(batch), base_offset=int(base_offsets[place]))

    return each()


def _longs_at(data: memoryview, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = as_byte_array(data)[positions[:, None] + np.arange(8)].view(">i8")
    return found.reshape(-1).astype(np.int64)


def first_of_batch(
    batch: TimedBatch, timestamp_ms: int, log_start_offset: int, most_plain_bytes: int
) -> TimedOffset | None:
    """Returns the first record of a batch at or after a time and the log start. Raises DamagedPage."""
    header = batch.header
    first_offset = max(batch.base_offset, log_start_offset)
    if batch.is_told_by_header:
        return TimedOffset(offset=first_offset, timestamp_ms=header.max_timestamp_ms)
    if header.is_control:
        return None
    try:
        check_crc(batch.data, header)
        plain = plain_records(batch.data, header, most_plain_bytes)
        spans = np.array([span_row(header, 0, len(plain), batch.base_offset)], np.int64)
        scan(plain, spans)
    except InvalidBatch as invalid:
        if invalid.fault is BatchFault.TOO_LARGE:
            return TimedOffset(offset=first_offset, timestamp_ms=header.max_timestamp_ms)
        raise DamagedPage(f"the batch at offset {batch.base_offset} is damaged: {invalid.message}") from None
    found = np.empty(2, np.int64)
    if not first_since(plain, spans, timestamp_ms, log_start_offset, found):
        return None
    offset, found_ms = found.tolist()
    return TimedOffset(offset=offset, timestamp_ms=found_ms)
