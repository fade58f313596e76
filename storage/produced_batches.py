"""All batches of a Produce request checked together: a few native calls for a request instead of several per batch.

Pure and CPU-bound. Promises for each batch exactly what `validate_produced` says of it: whatever is not sound beyond
doubt (compressed, faulty, out of the bounds of its topic) is handed to that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage import segment_batches
from storage.batch_kernels import (
    APPEND_TIMESTAMP,
    BASE_TIMESTAMP,
    COUNT,
    FAULT,
    FINDINGS,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    SOUND,
    scan_each,
)
from storage.batch_validation import LAST_TIMESTAMP_MS, NO_TIMESTAMP_MS, BatchLimits, InvalidBatch, validate_produced
from storage.byte_arrays import as_byte_array
from storage.header_kernels import (
    ASKED_COLUMNS,
    BASE_SEQUENCE,
    CRC,
    FOUND_CRC,
    HEADER_COLUMNS,
    IS_PLAIN,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    read_headers,
)
from storage.record_batch import CRC_START, HEADER_BYTES, ValidBatch, read_header, with_log_append_time
from storage.segment_batches import column_of

_COMPRESSION_POSITION = 22
_COMPRESSION_MASK = 0x07

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
        numbers = self.columns[:, index].tolist()
        batch = ValidBatch(
            header=read_header(self.data[index]),
            data=self.data[index],
            min_timestamp_ms=numbers[segment_batches.MIN_TIMESTAMP],
            max_timestamp_ms=numbers[segment_batches.MAX_TIMESTAMP],
        )
        self.put(index, with_log_append_time(batch, timestamp_ms))


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
    frame: memoryview, places: NDArray[np.int64], limits: Sequence[BatchLimits], limits_of: NDArray[np.int64]
) -> CheckedBatches:
    """What `validate_produced` says of the bytes `[start, end)` of the frame, for each row of `places`, with the limits
    that `limits_of` names for it.
    """
    data = [frame[start:end] for start, end in places.tolist()]
    checked = CheckedBatches(columns=np.zeros((segment_batches.COLUMNS, len(data)), np.int64), data=data, refused={})
    if len(data) == 1:  # alone, a batch is checked with less ado
        doubtful = [0]
    else:
        doubtful = np.flatnonzero(~_check_plain(frame, places, checked, _as_rows(limits)[limits_of])).tolist()
    for index in doubtful:
        found = _judged(data[index], limits[limits_of[index]])
        if isinstance(found, InvalidBatch):
            checked.refused[index] = found
        else:
            checked.put(index, found)
    return checked


def _as_rows(limits: Sequence[BatchLimits]) -> NDArray[np.int64]:
    return np.array(
        [
            (one.max_message_bytes, one.max_decompressed_bytes, one.earliest_timestamp_ms, one.latest_timestamp_ms)
            for one in limits
        ]
    ).reshape(-1, 4)


def _check_plain(
    frame: memoryview, places: NDArray[np.int64], checked: CheckedBatches, limits: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Fills in the columns of those that are sound beyond doubt, and says which."""
    count = len(places)
    asked = np.empty((count, ASKED_COLUMNS), np.int64)
    asked[:, :FOUND_CRC] = places
    asked[:, FOUND_CRC] = [
        0 if is_compressed else crc32c(records[CRC_START:])
        for records, is_compressed in zip(checked.data, compressed(frame, places).tolist(), strict=True)
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
    return _is_sound(rows, found, columns[segment_batches.LENGTH], limits.T)


def _is_sound(
    rows: NDArray[np.int64], found: NDArray[np.int64], lengths: NDArray[np.int64], limits: NDArray[np.int64]
) -> NDArray[np.bool_]:
    max_message_bytes, max_decompressed_bytes, earliest_ms, latest_ms = limits
    return (  # type: ignore[no-any-return]
        (rows[:, IS_PLAIN] != 0)
        & (found[:, FAULT] == SOUND)
        & (found[:, MAX_TIMESTAMP] == rows[:, APPEND_TIMESTAMP])
        & (earliest_ms <= found[:, MIN_TIMESTAMP])
        & (found[:, MAX_TIMESTAMP] <= latest_ms)
        & (rows[:, BASE_TIMESTAMP] >= NO_TIMESTAMP_MS)
        & (rows[:, BASE_TIMESTAMP] <= LAST_TIMESTAMP_MS)
        & (lengths <= max_message_bytes)
        & (lengths - HEADER_BYTES <= max_decompressed_bytes)
    )


def _judged(records: memoryview, limits: BatchLimits) -> ValidBatch | InvalidBatch:
    try:
        return validate_produced(records, limits)
    except InvalidBatch as invalid:
        # As a value it keeps no frames: they hold what was decompressed, and by their callers the value itself.
        invalid.__cause__ = invalid.__context__ = None
        return invalid.with_traceback(None)
