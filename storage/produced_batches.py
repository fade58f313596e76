"""The batches of a Produce request checked together: a few native calls for a request instead of several per batch.

Pure and CPU-bound. Promises for each batch exactly what `validate_produced` says of it: whatever is not sound beyond
doubt (compressed, faulty, out of the bounds of its topic) is handed to that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage import segment_batches
from storage.batch_kernels import COUNT, FINDINGS, MAX_TIMESTAMP, MIN_TIMESTAMP, scan_each
from storage.batch_validation import BatchLimits, InvalidBatch, validate_produced
from storage.byte_arrays import as_byte_array
from storage.header_kernels import (
    ASKED_COLUMNS,
    BASE_SEQUENCE,
    CRC,
    FOUND_CRC,
    HEADER_COLUMNS,
    LIMIT_COLUMNS,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TO,
    judge,
    read_headers,
)
from storage.recompression import recompressed
from storage.record_batch import CRC_START, HEADER_BYTES, Compression, ValidBatch, read_header, with_log_append_time
from storage.segment_batches import column_of

_COMPRESSION_POSITION = 22
_COMPRESSION_MASK = 0x07
_SMALL_BYTES = 16_384

_FROM_HEADERS = (
    (segment_batches.RECORDS, COUNT),
    (segment_batches.PRODUCER_ID, PRODUCER_ID),
    (segment_batches.PRODUCER_EPOCH, PRODUCER_EPOCH),
    (segment_batches.BASE_SEQUENCE, BASE_SEQUENCE),
    (segment_batches.CRC, CRC),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedBatches:
    """`columns` and `data` are of all batches asked about, in order; those of the refused mean nothing."""

    columns: NDArray[np.int64]
    data: list[memoryview]
    refused: dict[int, InvalidBatch]

    def put(self, index: int, batch: ValidBatch) -> None:
        self.columns[:, index] = column_of(batch)
        self.data[index] = batch.data

    def give_time(self, index: int, timestamp_ms: int) -> None:
        """The batch as of a topic whose log gives times. Copies it."""
        self.put(index, with_log_append_time(self._batch(index), timestamp_ms))

    def recompress(self, index: int, compression: Compression, limits: BatchLimits) -> None:
        """The batch as of a topic that has this compression.type. Copies it if it was sent in another."""
        changed = _outcome(lambda: recompressed(self._batch(index), compression, limits))
        if isinstance(changed, InvalidBatch):
            self.refused[index] = changed
        else:
            self.put(index, changed)

    def _batch(self, index: int) -> ValidBatch:
        numbers = self.columns[:, index].tolist()
        return ValidBatch(
            header=read_header(self.data[index]),
            data=self.data[index],
            min_timestamp_ms=numbers[segment_batches.MIN_TIMESTAMP],
            max_timestamp_ms=numbers[segment_batches.MAX_TIMESTAMP],
        )


def compressed(frame: memoryview, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each place whether to check its bytes means to decompress them, if they are a batch."""
    if len(places) == 1 or not len(frame):
        return np.array([_is_compressed(frame[start:end]) for start, end in places.tolist()], np.bool_)
    has_records = places[:, 1] - places[:, 0] > HEADER_BYTES
    attributes = as_byte_array(frame)[np.where(has_records, places[:, 0] + _COMPRESSION_POSITION, 0)]
    is_compressed: NDArray[np.bool_] = has_records & (attributes & _COMPRESSION_MASK != 0)
    return is_compressed


def _is_compressed(records: memoryview) -> bool:
    return len(records) > HEADER_BYTES and records[_COMPRESSION_POSITION] & _COMPRESSION_MASK != 0


def check_all(
    frame: memoryview,
    places: NDArray[np.int64],
    are_compressed: NDArray[np.bool_],
    limits: Sequence[BatchLimits],
    limits_of: NDArray[np.int64],
) -> CheckedBatches:
    """What `validate_produced` says of the bytes `[start, end)` of the frame, for each row of `places`, with the limits
    that `limits_of` names for it; `are_compressed` is what `compressed` says of these places.
    """
    data = [frame[start:end] for start, end in places.tolist()]
    checked = CheckedBatches(columns=np.zeros((segment_batches.COLUMNS, len(data)), np.int64), data=data, refused={})
    if len(data) == 1:  # alone, a batch is checked with less ado
        doubtful = [0]
    else:
        plain = _check_plain(frame, places, are_compressed, checked, _as_rows(limits)[limits_of])
        doubtful = np.flatnonzero(~plain).tolist()
    for index in doubtful:
        found = _judged(data[index], limits[limits_of[index]])
        if isinstance(found, InvalidBatch):
            checked.refused[index] = found
        else:
            checked.put(index, found)
    return checked


def _as_rows(limits: Sequence[BatchLimits]) -> NDArray[np.int64]:
    return np.array([_row_of(one) for one in limits], np.int64).reshape(-1, LIMIT_COLUMNS)


def _row_of(limits: BatchLimits) -> tuple[int, int, int, int]:
    return (
        limits.max_message_bytes,
        limits.max_decompressed_bytes,
        limits.earliest_timestamp_ms,
        limits.latest_timestamp_ms,
    )


def _check_plain(
    frame: memoryview,
    places: NDArray[np.int64],
    are_compressed: NDArray[np.bool_],
    checked: CheckedBatches,
    limits: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Fills in the columns of those that are sound beyond doubt, and says which."""
    count = len(places)
    asked = np.empty((count, ASKED_COLUMNS), np.int64)
    asked[:, :FOUND_CRC] = places
    asked[:, FOUND_CRC] = [
        0 if is_compressed else crc32c(records[CRC_START:])
        for records, is_compressed in zip(checked.data, are_compressed.tolist(), strict=True)
    ]
    rows = np.empty((count, HEADER_COLUMNS), np.int64)
    found = np.empty((count, FINDINGS), np.int64)
    if not read_headers(as_byte_array(frame), asked, rows):
        return np.zeros(count, np.bool_)
    scan_each(as_byte_array(frame), rows, found)
    columns = checked.columns
    np.subtract(places[:, 1], places[:, 0], out=columns[segment_batches.LENGTH])
    columns[segment_batches.MIN_TIMESTAMP] = found[:, MIN_TIMESTAMP]
    columns[segment_batches.MAX_TIMESTAMP] = found[:, MAX_TIMESTAMP]
    for to, column in _FROM_HEADERS:
        columns[to] = rows[:, column]
    sound = np.empty(count, np.int64)
    judge(rows, found, limits, sound)
    return sound.astype(np.bool_)


class LoneCheck:
    """Checks one small batch at a time, for requests that bring no other, and promises the columns that `check_all`
    finds. The batch is copied to where native code knows to look, which takes less time than telling it where the
    request's bytes are. For one thread.
    """

    def __init__(self) -> None:
        self._data = np.empty(_SMALL_BYTES, np.uint8)
        self._room = self._data.data
        self._asked = np.zeros((1, ASKED_COLUMNS), np.int64)
        self._rows = np.empty((1, HEADER_COLUMNS), np.int64)
        self._found = np.empty((1, FINDINGS), np.int64)
        self._limits = np.empty((1, LIMIT_COLUMNS), np.int64)
        self._sound = np.empty(1, np.int64)
        self._read = read_headers.on(self._data, self._asked, self._rows)
        self._scan = scan_each.on(self._data, self._rows, self._found)
        self._judge = judge.on(self._rows, self._found, self._limits, self._sound)

    def columns(self, records: memoryview, limits: BatchLimits, partition: int) -> NDArray[np.int64] | None:
        """Those of the batch, or None if it is not small, or not sound beyond doubt."""
        size = len(records)
        if not HEADER_BYTES < size <= _SMALL_BYTES:
            return None
        self._room[:size] = records
        self._asked[0, TO] = size
        self._asked[0, FOUND_CRC] = crc32c(self._room[CRC_START:size])
        self._limits[0] = _row_of(limits)
        if not self._read():
            return None
        self._scan()
        if not self._judge():
            return None
        [row], [found] = self._rows.tolist(), self._found.tolist()
        column = (
            0,
            partition,
            0,
            size,
            row[COUNT],
            found[MIN_TIMESTAMP],
            found[MAX_TIMESTAMP],
            row[PRODUCER_ID],
            row[PRODUCER_EPOCH],
            row[BASE_SEQUENCE],
            row[CRC],
        )
        return np.array(column, np.int64).reshape(-1, 1)


def _judged(records: memoryview, limits: BatchLimits) -> ValidBatch | InvalidBatch:
    return _outcome(lambda: validate_produced(records, limits))


def _outcome(check: Callable[[], ValidBatch]) -> ValidBatch | InvalidBatch:
    try:
        return check()
    except InvalidBatch as invalid:
        # As a value it keeps no frames: they hold what was decompressed, and by their callers the value itself.
        invalid.__cause__ = invalid.__context__ = None
        return invalid.with_traceback(None)
