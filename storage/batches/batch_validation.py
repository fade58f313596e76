"""Decides which produced bytes are accepted (docs/design/write-path.md#validation).

Pure and CPU-bound. Checksums, decompression and the walk over the records are native code without the GIL.

Promise: whatever is accepted can be decoded later, into Arrow and by every client. Checked are format v2, the
CRC32C, lengths, counts and offset deltas, the structure of every record inside the compressed bytes,
timestamps (up to the year 9999 and within the limits), keys (if the topic needs them), header keys (UTF-8)
and sizes.

Two differences from Kafka let every record fit Arrow and Parquet: timestamps outside -1..253402300799999 are
INVALID_TIMESTAMP, and header keys that are not UTF-8 are INVALID_RECORD. As in Kafka, a wrong max timestamp
in a header is corrected, not refused.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage.batches import batch_kernels
from storage.batches.batch_kernels import (
    FAULTY,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    null_keys,
    scan_spans,
    timestamps_outside,
)
from storage.batches.compression import DecompressedTooLarge, DecompressionFailed, decompress
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    BatchHeader,
    Compression,
    TimestampType,
    ValidBatch,
    read_header,
    with_max_timestamp,
)
from storage.identifiers import NO_PRODUCER_ID

NO_TIMESTAMP_MS = -1
LAST_TIMESTAMP_MS = 253402300799999
"""The end of the year 9999: the last time that Arrow, Parquet, Spark and Python can all hold."""

_MOST_RECORDS_NAMED = 1000
"""The most faulty records of one batch that an error names."""

_RECORD_FAULTS = {
    batch_kernels.RECORDS_CUT_SHORT: "there are fewer records than the header counts",
    batch_kernels.BAD_RECORD_LENGTH: "its length does not match its fields",
    batch_kernels.BAD_OFFSET_DELTA: "its offset delta is not its index",
    batch_kernels.BAD_FIELD_LENGTH: "the length of a key, value or header does not fit",
    batch_kernels.BAD_HEADER_COUNT: "its count of headers does not fit",
    batch_kernels.HEADER_KEY_NOT_UTF8: "a header's key is not UTF-8",
    batch_kernels.BYTES_AFTER_RECORDS: "bytes follow the last record that the header counts",
}


class BatchFault(enum.Enum):
    """Why a batch is refused. The Kafka side decides which error code that is."""

    CORRUPT = enum.auto()
    """The bytes are not as they were sent: they are cut short, or the CRC32C is wrong."""
    UNSUPPORTED_FORMAT = enum.auto()
    """Magic 0 or 1 (before Kafka 0.11), or an unknown magic."""
    INVALID_RECORD = enum.auto()
    INVALID_TIMESTAMP = enum.auto()
    NO_KEY = enum.auto()
    """A record of a compacted topic has no key."""
    TOO_LARGE = enum.auto()
    UNKNOWN_COMPRESSION = enum.auto()
    CONTROL = enum.auto()
    """Only brokers write control batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidRecord:
    """What is wrong with the record at `index` of its batch."""

    index: int
    message: str


class InvalidBatch(Exception):
    """`records` names the first faulty records, if the fault is in single records."""

    def __init__(self, fault: BatchFault, message: str, records: Sequence[InvalidRecord] = ()) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.records = tuple(records)
        self.plain_bytes = 0
        """Bytes of uncompressed records that were checked before the fault was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    max_message_bytes: int = 1_048_588
    """The largest batch as sent, with its header: the topic's max.message.bytes."""
    max_decompressed_bytes: int = 64 << 20
    """The largest batch after decompression."""
    earliest_timestamp_ms: int = NO_TIMESTAMP_MS
    """Older records are refused. Records without a timestamp are not."""
    latest_timestamp_ms: int = LAST_TIMESTAMP_MS
    needs_keys: bool = False
    """Records without a key are refused: the topic is compacted. An empty key is a key."""


def validate_produced(records: bytes | memoryview, limits: BatchLimits) -> ValidBatch:
    """Returns the one batch that a Produce request (v3+) carries for a partition. Raises InvalidBatch.

    The result refers to `records` without a copy, unless its max timestamp had to be corrected.
    """
    return validate_counted(records, limits)[0]


def validate_counted(records: bytes | memoryview, limits: BatchLimits) -> tuple[ValidBatch, int]:
    """As `validate_produced`. Also returns how many bytes of uncompressed records were checked; InvalidBatch
    has this number, too."""
    data = memoryview(records)
    header = _whole_batch(data)
    if header.size_bytes > limits.max_message_bytes:
        raise InvalidBatch(
            BatchFault.TOO_LARGE,
            f"a batch of {header.size_bytes} bytes is above the limit of {limits.max_message_bytes}",
        )
    check_crc(data, header)
    _check_header(header)
    plain = plain_records(data, header, limits.max_decompressed_bytes)
    try:
        return _with_sound_records(data, header, plain, limits), len(plain)
    except InvalidBatch as invalid:
        invalid.plain_bytes = len(plain)
        raise


def _with_sound_records(
    data: memoryview, header: BatchHeader, plain: NDArray[np.uint8], limits: BatchLimits
) -> ValidBatch:
    """Returns the batch if its records are sound and within the limits. Raises InvalidBatch."""
    spans = np.array([span_row(header, 0, len(plain), base_offset=0)], np.int64)
    findings = scan(plain, spans)
    earliest, latest = int(findings[MIN_TIMESTAMP]), int(findings[MAX_TIMESTAMP])
    if not NO_TIMESTAMP_MS <= header.base_timestamp_ms <= LAST_TIMESTAMP_MS:
        raise InvalidBatch(
            BatchFault.INVALID_TIMESTAMP,
            f"the base timestamp {header.base_timestamp_ms} is not within -1..{LAST_TIMESTAMP_MS} ms",
        )
    if earliest < limits.earliest_timestamp_ms or latest > limits.latest_timestamp_ms:
        _check_timestamps(plain, spans, limits)
    if limits.needs_keys:
        _check_keys(plain, spans)
    batch = ValidBatch(header=header, data=data, min_timestamp_ms=earliest, max_timestamp_ms=latest)
    return batch if header.max_timestamp_ms == latest else with_max_timestamp(batch, latest)


def _check_timestamps(plain: NDArray[np.uint8], spans: NDArray[np.int64], limits: BatchLimits) -> None:
    """Raises InvalidBatch with the records whose timestamps are out of bounds."""
    earliest = max(NO_TIMESTAMP_MS, limits.earliest_timestamp_ms)
    latest = min(LAST_TIMESTAMP_MS, limits.latest_timestamp_ms)
    room = np.empty((_MOST_RECORDS_NAMED, 2), np.int64)
    found = room[: timestamps_outside(plain, spans, earliest, latest, room)]
    if len(found):
        bounds = f"is not within {earliest}..{latest} ms"
        raise InvalidBatch(
            BatchFault.INVALID_TIMESTAMP,
            f"the timestamp of record {found[0, 0]}, {found[0, 1]}, {bounds}",
            [
                InvalidRecord(index=int(index), message=f"its timestamp {timestamp} {bounds}")
                for index, timestamp in found
            ],
        )


def _check_keys(plain: NDArray[np.uint8], spans: NDArray[np.int64]) -> None:
    """Raises InvalidBatch with the records that have no key."""
    room = np.empty(_MOST_RECORDS_NAMED, np.int64)
    found = room[: null_keys(plain, spans, room)].tolist()
    if found:
        message = "a compacted topic needs a key in every record"
        raise InvalidBatch(
            BatchFault.NO_KEY,
            f"record {found[0]} has no key: {message}",
            [InvalidRecord(index=index, message=message) for index in found],
        )


def _whole_batch(data: memoryview) -> BatchHeader:
    """Returns the header if the data is exactly one v2 batch. Raises InvalidBatch."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != MAGIC_V2:
        raise InvalidBatch(
            BatchFault.UNSUPPORTED_FORMAT, f"message format {data[MAGIC_POSITION]}; only 2 is accepted"
        )
    if len(data) < HEADER_BYTES:
        raise InvalidBatch(BatchFault.CORRUPT, f"{len(data)} bytes are not a record batch")
    header = read_header(data)
    if not HEADER_BYTES <= header.size_bytes <= len(data):
        raise InvalidBatch(
            BatchFault.CORRUPT, f"a batch of {header.size_bytes} bytes in {len(data)} bytes of records"
        )
    if header.size_bytes < len(data):
        raise InvalidBatch(BatchFault.INVALID_RECORD, "more than one record batch for a partition")
    return header


def check_crc(data: memoryview, header: BatchHeader) -> None:
    """Raises InvalidBatch if the CRC32C of the batch is wrong. `data` is exactly the batch."""
    found = crc32c(data[CRC_START:])
    if found != header.crc:
        raise InvalidBatch(
            BatchFault.CORRUPT, f"the batch's CRC32C is {found:#010x}, its header says {header.crc:#010x}"
        )


def _check_header(header: BatchHeader) -> None:
    """Checks what the header alone shows. The CRC is right by now."""
    _compression(header)
    if header.base_offset != 0:
        raise InvalidBatch(
            BatchFault.INVALID_RECORD, f"the batch's base offset is {header.base_offset}; 0 is expected"
        )
    if header.is_control:
        raise InvalidBatch(BatchFault.CONTROL, "a client cannot write control batches")
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise InvalidBatch(BatchFault.INVALID_RECORD, "a transactional batch without a producer id")
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidBatch(
            BatchFault.INVALID_TIMESTAMP, "a producer cannot set the timestamp type to LogAppendTime"
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidBatch(
            BatchFault.INVALID_RECORD,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.producer_id < NO_PRODUCER_ID:
        raise InvalidBatch(BatchFault.INVALID_RECORD, f"producer id {header.producer_id}")
    if header.producer_id != NO_PRODUCER_ID and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidBatch(
            BatchFault.INVALID_RECORD,
            (
                f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}"
            ),
        )


def plain_records(data: memoryview, header: BatchHeader, limit: int) -> NDArray[np.uint8]:
    """Returns the batch's records without compression, at most `limit` bytes. Raises InvalidBatch."""
    compression = _compression(header)
    try:
        return decompress(data[HEADER_BYTES:], compression, limit)
    except DecompressedTooLarge:
        message = f"a {compression.name.lower()} batch decompresses to more than the limit of {limit} bytes"
        too_large = InvalidBatch(BatchFault.TOO_LARGE, message)
        too_large.plain_bytes = limit
        raise too_large from None
    except DecompressionFailed as error:
        message = f"the records are not {compression.name.lower()}: {error}"
        invalid = InvalidBatch(BatchFault.INVALID_RECORD, message)
        invalid.plain_bytes = error.plain_bytes
        raise invalid from error


def span_row(header: BatchHeader, start: int, end: int, base_offset: int) -> tuple[int, ...]:
    """Returns the span (SPAN_COLUMNS numbers) of a batch whose uncompressed records are the bytes `[start,
    end)`."""
    return (
        start,
        end,
        header.record_count,
        base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.timestamp_type,
    )


def scan(plain: NDArray[np.uint8], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Checks the structure of every record and returns the findings (int64, shape (FINDINGS,)). Raises
    InvalidBatch."""
    findings = np.empty(batch_kernels.FINDINGS, np.int64)
    fault = _RECORD_FAULTS.get(scan_spans(plain, spans, findings))
    if fault is not None:
        index = int(findings[FAULTY])
        named = (
            [InvalidRecord(index=index, message=fault)] if index < spans[:, batch_kernels.COUNT].sum() else []
        )
        raise InvalidBatch(BatchFault.INVALID_RECORD, f"record {index}: {fault}", named)
    return findings


def _compression(header: BatchHeader) -> Compression:
    try:
        return header.compression
    except ValueError:
        message = f"compression type {header.attributes & 7}"
        if header.attributes & 7 == 7:
            message += ", as batches have whose records are encrypted: only agents read these"
        raise InvalidBatch(BatchFault.UNKNOWN_COMPRESSION, message) from None
