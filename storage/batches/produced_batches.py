"""Checks the batches of a Produce request together: a few native calls per request instead of several per
batch. Converts a batch to the compression that its topic's compression.type names.

Pure and CPU-bound. The codecs are native code without the GIL.

Promises:
- The verdict on each batch is exactly that of `validate_produced`. A batch that is not certainly sound
  (compressed, faulty, outside its topic's bounds) is handed to it.
- A conversion keeps the records' bytes, sequences, times and offsets.
- No more is decompressed or kept than the limits allow.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage.batches.batch_kernels import COUNT, FINDINGS, MAX_TIMESTAMP, MIN_TIMESTAMP, judge_keys, scan_each
from storage.batches.batch_validation import (
    NO_TIMESTAMP_MS,
    BatchFault,
    BatchLimits,
    InvalidBatch,
    plain_records,
    validate_counted,
)
from storage.batches.byte_arrays import as_byte_array
from storage.batches.compression import compress
from storage.batches.header_kernels import (
    ASKED_COLUMNS,
    BASE_SEQUENCE,
    CRC,
    FOUND_CRC,
    HEADER_COLUMNS,
    IS_TRANSACTIONAL,
    LIMIT_COLUMNS,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TO,
    judge,
    read_headers,
)
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    Compression,
    ValidBatch,
    read_header,
    with_compression,
    with_log_append_time,
    write_header,
)
from storage.segments import segment_batches
from storage.segments.segment_batches import column_of


def recompressed(batch: ValidBatch, compression: Compression, limits: BatchLimits) -> ValidBatch:
    """Returns the batch itself if it has this compression, else a copy. Raises InvalidBatch if the copy would
    be too large."""
    header = batch.header
    if header.compression is compression:
        return batch
    records = compress(plain_records(batch.data, header, limits.max_decompressed_bytes).data, compression)
    size_bytes = HEADER_BYTES + len(records)
    if size_bytes > limits.max_message_bytes:
        raise InvalidBatch(
            BatchFault.TOO_LARGE,
            f"as the topic's compression.type asks for, the batch takes {size_bytes} bytes, which is "
            "above the limit "
            f"of {limits.max_message_bytes}",
        )
    changed = replace(with_compression(header, compression), size_bytes=size_bytes, crc=0)
    crc = crc32c(records, crc32c(write_header(changed)[CRC_START:]))
    header = replace(changed, crc=crc)
    return replace(batch, header=header, data=memoryview(write_header(header) + records))


_COMPRESSION_POSITION = 22
_COMPRESSION_MASK = 0x07
_SMALL_BYTES = 16_384
_PLAIN_IS_CHEAPER = 4
"""Checking a plain byte costs this many times less than decompressing and checking one."""
_EFFORT_OF_A_ROW, _EFFORT_OF_A_BATCH = 256, 8_192
"""The cost of a batch besides its bytes, among many and alone, as bytes that could be decompressed
meanwhile."""
_NO_LIMITS = np.zeros((0, LIMIT_COLUMNS), np.int64)
_MOST_TOGETHER = 4_096
"""Batches per native call."""

_FROM_HEADERS = (
    (segment_batches.RECORDS, COUNT),
    (segment_batches.PRODUCER_ID, PRODUCER_ID),
    (segment_batches.PRODUCER_EPOCH, PRODUCER_EPOCH),
    (segment_batches.BASE_SEQUENCE, BASE_SEQUENCE),
    (segment_batches.CRC, CRC),
    (segment_batches.TRANSACTION, IS_TRANSACTIONAL),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedBatches:
    """`columns` (int64, one row per number, one column per batch) and `data` hold all batches, in order. The
    values of refused batches mean nothing."""

    columns: NDArray[np.int64]
    data: list[memoryview]
    refused: dict[int, InvalidBatch]

    def put(self, index: int, batch: ValidBatch) -> None:
        self.columns[:, index] = column_of(batch)
        self.data[index] = batch.data

    def give_time(self, index: int, timestamp_ms: int) -> None:
        """Gives the batch LogAppendTime. Copies it."""
        self.put(index, with_log_append_time(self._batch(index), timestamp_ms))

    def recompress(self, index: int, compression: Compression, limits: BatchLimits) -> None:
        """Gives the batch its topic's compression.type. Copies it if it was sent in another."""
        try:
            self.put(index, recompressed(self._batch(index), compression, limits))
        except InvalidBatch as invalid:
            self.refused[index] = _without_frames(invalid)

    def _batch(self, index: int) -> ValidBatch:
        numbers = self.columns[:, index].tolist()
        return ValidBatch(
            header=read_header(self.data[index]),
            data=self.data[index],
            min_timestamp_ms=numbers[segment_batches.MIN_TIMESTAMP],
            max_timestamp_ms=numbers[segment_batches.MAX_TIMESTAMP],
        )


def compressed(frame: memoryview, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns for each of `places` whether checking its bytes, if they are a batch, means decompressing
    them."""
    if len(places) == 1 or not len(frame):
        return np.array([_is_compressed(frame[start:end]) for start, end in places.tolist()], np.bool_)
    has_records = places[:, 1] - places[:, 0] > HEADER_BYTES
    attributes = as_byte_array(frame)[np.where(has_records, places[:, 0] + _COMPRESSION_POSITION, 0)]
    is_compressed: NDArray[np.bool_] = has_records & (attributes & _COMPRESSION_MASK != 0)
    return is_compressed


def _is_compressed(records: memoryview) -> bool:
    return len(records) > HEADER_BYTES and records[_COMPRESSION_POSITION] & _COMPRESSION_MASK != 0


class BatchChecks:
    """Checks one request's batches in steps of a few milliseconds, whatever was sent.

    `places` says where in the frame the bytes of each batch are. `are_compressed` is the result of
    `compressed`. `limits_of` names the limits of each batch. Once a step has returned True, `checked` holds
    the verdict of `validate_produced` on each. All batches together may decompress to `most_bytes`, each of
    them to `most_bytes_of_one`; what exceeds that is refused. For one thread at a time.
    """

    def __init__(
        self,
        frame: memoryview,
        places: NDArray[np.int64],
        are_compressed: NDArray[np.bool_],
        limits: Sequence[BatchLimits],
        limits_of: NDArray[np.int64],
        *,
        append_times_ms: Sequence[int],
        compressions: Sequence[Compression | None],
        most_bytes: int,
        most_bytes_of_one: int,
    ) -> None:
        data = [frame[start:end] for start, end in places.tolist()]
        self.checked = CheckedBatches(
            columns=np.zeros((segment_batches.COLUMNS, len(data)), np.int64), data=data, refused={}
        )
        self._frame = frame
        self._places = places
        self._are_compressed = are_compressed
        self._limits = limits
        self._limits_of = limits_of
        self._limit_rows = _NO_LIMITS if len(data) == 1 else _as_rows(limits)
        needs_keys = [one.needs_keys for one in limits]
        self._needs_keys = np.array(needs_keys, np.int64) if any(needs_keys) else None
        """For each of the limits; None: no batch needs keys."""
        self._append_times_ms = append_times_ms
        self._compressions = compressions
        self._recompresses = np.array([one not in (None, Compression.NONE) for one in compressions], np.bool_)
        """For each topic: true if it keeps plain batches in another form, too."""
        self._gives_times = any(time_ms != NO_TIMESTAMP_MS for time_ms in append_times_ms)
        self._most_bytes = self._left_bytes = most_bytes
        self._most_bytes_of_one = most_bytes_of_one
        # A single batch has a shorter way.
        self._looked_at = len(data) if len(data) == 1 else 0
        self._doubtful = deque([0] if len(data) == 1 else ())

    def step(self, plain_bytes: int, *, at_least_one: bool = True) -> bool:
        """Checks batches until about `plain_bytes` were decompressed, or four times as many were plain as
        sent. Returns True once all are checked.

        The last batch of a step may decompress to more. With `at_least_one` False it is left to the next
        step.
        """
        left = plain_bytes
        while self._looked_at < len(self._places):
            if left <= 0:
                return False
            left -= self._check_next(left * _PLAIN_IS_CHEAPER)
        while self._doubtful:
            if left <= 0:
                return False
            used = self._check_doubtful(self._doubtful[0], None if at_least_one else left)
            if used is None:
                return False
            self._doubtful.popleft()
            left -= used
        return True

    def _check_next(self, most_bytes: int) -> int:
        """Checks the next batches together: fills in the columns of the certainly sound ones, notes the
        others."""
        start = self._looked_at
        sizes = (
            self._places[start : start + _MOST_TOGETHER, 1] - self._places[start : start + _MOST_TOGETHER, 0]
        )
        count = max(1, int(np.searchsorted(np.cumsum(sizes), most_bytes, "right")))
        these = slice(start, start + count)
        limits = self._limit_rows[self._limits_of[these]]
        needs_keys = None if self._needs_keys is None else self._needs_keys[self._limits_of[these]]
        plain = _check_plain(
            self._frame,
            self._places[these],
            self._are_compressed[these],
            self.checked,
            these,
            limits,
            needs_keys,
        )
        plain &= ~self._recompresses[self._limits_of[these]]  # these are checked one by one
        self._doubtful.extend((np.flatnonzero(~plain) + start).tolist())
        if self._gives_times:
            for index in (np.flatnonzero(plain) + start).tolist():
                self._give_time(index)
        self._looked_at += count
        return int(sizes[:count].sum()) // _PLAIN_IS_CHEAPER + count * _EFFORT_OF_A_ROW

    def _give_time(self, index: int) -> None:
        time_ms = self._append_times_ms[self._limits_of[index]]
        if time_ms != NO_TIMESTAMP_MS:
            self.checked.give_time(index, time_ms)

    def _check_doubtful(self, index: int, most_bytes: int | None) -> int | None:
        """Returns the effort spent, or None if the batch decompresses to more than `most_bytes`."""
        if self._are_compressed[index]:
            found, effort = self._check_compressed(index, most_bytes)
        else:
            found, plain_bytes = _judged(self.checked.data[index], self._limits[self._limits_of[index]])
            effort = plain_bytes // _PLAIN_IS_CHEAPER
        if found is None:
            return None
        if isinstance(found, InvalidBatch):
            self.checked.refused[index] = found
        else:
            self.checked.put(index, found)
            compression = self._compressions[self._limits_of[index]]
            if compression is not None:
                effort += found.header.size_bytes if found.header.compression is not compression else 0
                self.checked.recompress(index, compression, self._limits[self._limits_of[index]])
            if index not in self.checked.refused:
                self._give_time(index)
        return effort + _EFFORT_OF_A_BATCH

    def _check_compressed(
        self, index: int, most_bytes: int | None
    ) -> tuple[ValidBatch | InvalidBatch | None, int]:
        limits = self._limits[self._limits_of[index]]
        limit = min(limits.max_decompressed_bytes, self._most_bytes_of_one)
        room = min(limit, self._left_bytes)
        allowed = room if most_bytes is None else min(room, most_bytes)
        if allowed < limits.max_decompressed_bytes:
            limits = replace(limits, max_decompressed_bytes=allowed)
        found, plain_bytes = _judged(self.checked.data[index], limits)
        if isinstance(found, InvalidBatch) and found.fault is BatchFault.TOO_LARGE and plain_bytes == allowed:
            if allowed < room:
                return None, plain_bytes
            if room < limit:
                found = _too_large_together(self._most_bytes)
        self._left_bytes -= plain_bytes
        return found, plain_bytes


def _too_large_together(most_bytes: int) -> InvalidBatch:
    message = f"the request's batches together decompress to more than the limit of {most_bytes} bytes"
    return InvalidBatch(BatchFault.TOO_LARGE, message)


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
    these: slice,
    limits: NDArray[np.int64],
    needs_keys: NDArray[np.int64] | None,
) -> NDArray[np.bool_]:
    """Fills in the columns of those of `these` batches that are certainly sound, and returns which. The other
    arguments have one row for each of `these`. `needs_keys` is None if no batch does.
    """
    count = len(places)
    asked = np.empty((count, ASKED_COLUMNS), np.int64)
    asked[:, :FOUND_CRC] = places
    asked[:, FOUND_CRC] = [
        0 if is_compressed else crc32c(records[CRC_START:])
        for records, is_compressed in zip(checked.data[these], are_compressed.tolist(), strict=True)
    ]
    rows = np.empty((count, HEADER_COLUMNS), np.int64)
    found = np.empty((count, FINDINGS), np.int64)
    if not read_headers(as_byte_array(frame), asked, rows):
        return np.zeros(count, np.bool_)
    scan_each(as_byte_array(frame), rows, found)
    columns = checked.columns[:, these]
    np.subtract(places[:, 1], places[:, 0], out=columns[segment_batches.LENGTH])
    columns[segment_batches.MIN_TIMESTAMP] = found[:, MIN_TIMESTAMP]
    columns[segment_batches.MAX_TIMESTAMP] = found[:, MAX_TIMESTAMP]
    for to, column in _FROM_HEADERS:
        columns[to] = rows[:, column]
    sound = np.empty(count, np.int64)
    judge(rows, found, limits, sound)
    if needs_keys is not None:
        judge_keys(as_byte_array(frame), rows, needs_keys, sound)
    return sound.astype(np.bool_)


class LoneCheck:
    """Checks one small batch at a time, for requests with a single batch. Promise: the columns are those that
    `check_all` finds. It copies the batch to a fixed address, because that takes less time than passing the
    address of the request's bytes. For one thread.
    """

    def __init__(self) -> None:
        self._data = np.empty(_SMALL_BYTES, np.uint8)
        self._room = self._data.data
        self._asked = np.zeros((1, ASKED_COLUMNS), np.int64)
        self._rows = np.empty((1, HEADER_COLUMNS), np.int64)
        self._found = np.empty((1, FINDINGS), np.int64)
        self._limits = np.empty((1, LIMIT_COLUMNS), np.int64)
        self._sound = np.empty(1, np.int64)
        self._needed = np.ones(1, np.int64)
        self._read = read_headers.on(self._data, self._asked, self._rows)
        self._scan = scan_each.on(self._data, self._rows, self._found)
        self._judge = judge.on(self._rows, self._found, self._limits, self._sound)
        self._judge_keys = judge_keys.on(self._data, self._rows, self._needed, self._sound)

    def columns(self, records: memoryview, limits: BatchLimits, partition: int) -> NDArray[np.int64] | None:
        """Returns the batch's columns; None if it is not small or not certainly sound."""
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
        if not self._judge() or (limits.needs_keys and not self._judge_keys()):
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
            row[IS_TRANSACTIONAL],
        )
        return np.array(column, np.int64).reshape(-1, 1)


def _judged(records: memoryview, limits: BatchLimits) -> tuple[ValidBatch | InvalidBatch, int]:
    """Returns the verdict on a batch, and how many bytes of uncompressed records were checked."""
    try:
        return validate_counted(records, limits)
    except InvalidBatch as invalid:
        return _without_frames(invalid), invalid.plain_bytes


def _without_frames(invalid: InvalidBatch) -> InvalidBatch:
    """Drops the traceback: its frames hold the decompressed bytes, and through their callers the error
    itself."""
    invalid.__cause__ = invalid.__context__ = None
    return invalid.with_traceback(None)
