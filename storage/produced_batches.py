"""All batches of a Produce request checked together: a few native calls for a request instead of several per batch.

Pure and CPU-bound. Promises for each batch exactly what `validate_produced` says of it: whatever is not sound beyond
doubt (compressed, faulty, out of the bounds of its topic) is handed to that.
"""

from collections.abc import Sequence

import numpy as np
from crc32c import crc32c

from storage.batch_kernels import (
    APPEND_TIMESTAMP,
    BASE_TIMESTAMP,
    COUNT,
    FAULT,
    FINDINGS,
    LAST_OFFSET_DELTA,
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
    LEADER_EPOCH,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    read_headers,
)
from storage.identifiers import ProducerId
from storage.record_batch import CRC_START, HEADER_BYTES, MAGIC_V2, BatchHeader, ValidBatch

_COMPRESSION_POSITION = 22
_COMPRESSION_MASK = 0x07


def is_compressed(records: memoryview) -> bool:
    """Whether to check these bytes means to decompress them, if they are a batch."""
    return len(records) > HEADER_BYTES and records[_COMPRESSION_POSITION] & _COMPRESSION_MASK != 0


def validate_all(
    frame: memoryview, places: Sequence[tuple[int, int]], limits: Sequence[BatchLimits]
) -> list[ValidBatch | InvalidBatch]:
    """What `validate_produced` says of the bytes `[start, end)` of the frame, for each of the places with the limits
    given for it; a refusal is a value.
    """
    produced = [frame[start:end] for start, end in places]
    if len(places) == 1:  # alone, a batch is checked with less ado
        return [_judged(produced[0], limits[0])]
    asked = np.empty((len(places), ASKED_COLUMNS), np.int64)
    asked[:, :FOUND_CRC] = np.reshape(places, (-1, FOUND_CRC))
    asked[:, FOUND_CRC] = [0 if is_compressed(records) else crc32c(records[CRC_START:]) for records in produced]
    rows = np.empty((len(places), HEADER_COLUMNS), np.int64)
    found = np.empty((len(places), FINDINGS), np.int64)
    data = as_byte_array(frame)
    if read_headers(data, asked, rows):
        scan_each(data, rows, found)
    return [
        _sound(records, row, findings)
        if row[IS_PLAIN] and _is_sound(row, findings, limit, len(records))
        else _judged(records, limit)
        for records, row, findings, limit in zip(produced, rows.tolist(), found.tolist(), limits, strict=True)
    ]


def _is_sound(row: Sequence[int], findings: Sequence[int], limits: BatchLimits, size_bytes: int) -> bool:
    return (
        findings[FAULT] == SOUND
        and findings[MAX_TIMESTAMP] == row[APPEND_TIMESTAMP]
        and limits.earliest_timestamp_ms <= findings[MIN_TIMESTAMP]
        and findings[MAX_TIMESTAMP] <= limits.latest_timestamp_ms
        and NO_TIMESTAMP_MS <= row[BASE_TIMESTAMP] <= LAST_TIMESTAMP_MS
        and size_bytes <= limits.max_message_bytes
        and size_bytes - HEADER_BYTES <= limits.max_decompressed_bytes
    )


def _sound(records: memoryview, row: Sequence[int], findings: Sequence[int]) -> ValidBatch:
    header = BatchHeader(
        base_offset=0,
        size_bytes=len(records),
        leader_epoch=row[LEADER_EPOCH],
        magic=MAGIC_V2,
        crc=row[CRC],
        attributes=0,
        last_offset_delta=row[LAST_OFFSET_DELTA],
        base_timestamp_ms=row[BASE_TIMESTAMP],
        max_timestamp_ms=row[APPEND_TIMESTAMP],
        producer_id=ProducerId(row[PRODUCER_ID]),
        producer_epoch=row[PRODUCER_EPOCH],
        base_sequence=row[BASE_SEQUENCE],
        record_count=row[COUNT],
    )
    return ValidBatch(
        header=header,
        data=records,
        min_timestamp_ms=findings[MIN_TIMESTAMP],
        max_timestamp_ms=findings[MAX_TIMESTAMP],
    )


def _judged(records: memoryview, limits: BatchLimits) -> ValidBatch | InvalidBatch:
    try:
        return validate_produced(records, limits)
    except InvalidBatch as invalid:
        # As a value it keeps no frames: they hold what was decompressed, and by their callers the value itself.
        invalid.__cause__ = invalid.__context__ = None
        return invalid.with_traceback(None)
