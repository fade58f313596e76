"""The segment: one object with the batches of many topics (docs/design/segment.md; byte by byte in
`docs/segment-format.md`).

Its layout is `header | runs | footer | trailer`. Sealing is pure: batches in, bytes and places out.

Promises:
- Runs are in (topic id, partition) order without gaps. Batches within a run are in the order of their
  arrival.
- Record bytes are not copied.
- A segment can be verified from its own bytes alone. Any single flipped byte is detected.

The CRC32C of a run is computed from the CRC32Cs of its batches, without reading the bytes. A checksum is a
remainder of polynomials over GF(2). To append n bytes, multiply it by x^(8n) and add the checksum of those
bytes. Multiplication by x^(8 * 2^k) is linear, so 32 numbers describe it: the images of the 32 bits.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from uuid import UUID

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import CRC_START, index_batches
from storage.identifiers import BytePosition, Offset, Partition, SegmentId, TopicId
from storage.native.arguments import LONG_ROWS_IN, LONGS_OUT
from storage.native.kernels import helper, kernel
from storage.segments.segment_batches import (
    CRC,
    LENGTH,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    PARTITION,
    POSITION,
    RECORDS,
    TOPIC,
    PendingBatches,
    PlacedBatches,
    first_of_each,
    is_same_partition,
)

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's polynomial with its bits reversed."""
_BITS: Final = 32

# Columns of a part.
WHOLE, CHECKSUM, PART_LENGTH = 0, 1, 2
PART_COLUMNS: Final = 3


@helper
def _appended(checksum: Any, length: int, powers: NDArray[np.int64]) -> Any:
    """Returns the checksum multiplied by x^(8 * length). `powers` is int64 of shape (32, 32)."""
    power = 0
    while length:
        if length & 1:
            product = np.int64(0)
            bit = 0
            while checksum:
                if checksum & 1:
                    product ^= powers[power, bit]
                checksum >>= 1
                bit += 1
            checksum = product
        length >>= 1
        power += 1
    return checksum


@kernel(LONG_ROWS_IN, LONG_ROWS_IN, LONGS_OUT)
def _combine(parts: NDArray[np.int64], powers: NDArray[np.int64], wholes: NDArray[np.int64]) -> Any:
    wholes[:] = 0
    for part in range(parts.shape[0]):
        whole = parts[part, WHOLE]
        appended = _appended(wholes[whole], parts[part, PART_LENGTH], powers)
        wholes[whole] = appended ^ parts[part, CHECKSUM]
    return 0


def combined(parts: NDArray[np.int64], count: int) -> list[int]:
    """Returns the CRC32Cs of `count` wholes. `parts` (int64, shape (parts, 3)) has, in the order of the
    bytes: the whole that a part belongs to, the part's CRC32C, and its length, which is below 2^32.
    """
    wholes = np.empty(count, np.int64)
    _combine(parts, _powers(), wholes)
    return wholes.tolist()


@cache
def _powers() -> NDArray[np.int64]:
    """Row k of the result (int64, shape (32, 32)) has the image of each bit under multiplication by
    x^(8 * 2^k)."""
    by_x = [_POLYNOMIAL, *(1 << bit for bit in range(_BITS - 1))]
    power = by_x
    for _ in range(3):
        power = _twice(power)
    rows = [power]
    while len(rows) < _BITS:
        rows.append(_twice(rows[-1]))
    return np.array(rows, np.int64)


def _twice(power: list[int]) -> list[int]:
    return [_image(power, image) for image in power]


def _image(power: list[int], value: int) -> int:
    product = 0
    for bit in range(_BITS):
        if value >> bit & 1:
            product ^= power[bit]
    return product


UPLOADED_VERSION = 1
"""Written before offsets are assigned."""
MERGED_VERSION = 2
"""Its footer says which offsets each run holds."""
HEADER_MAGIC = b"TIDESEGM"
TRAILER_MAGIC = b"TIDEFOOT"
_MERGED_TRAILER_MAGIC = b"TIDEFOO2"
_VERSIONS = {TRAILER_MAGIC: UPLOADED_VERSION, _MERGED_TRAILER_MAGIC: MERGED_VERSION}
_MAGICS = {version: magic for magic, version in _VERSIONS.items()}
MAX_WRITER_BYTES = 255

# Magic, format version, length of the writer, segment id; then the writer and a CRC32C.
_HEADER = struct.Struct(">8sHH16s")
# Segment id, length of the writer, count of runs; then the writer and the runs.
_FOOTER = struct.Struct(">16sHI")
# Topic id, partition, position, length, records, minimum and maximum timestamp, CRC32C.
_RUN = struct.Struct(">16siQQQqqI")
_MERGED_RUN = struct.Struct(">16siQQQqqIqq")  # the same, then base offset and last offset
_RUNS = {UPLOADED_VERSION: _RUN, MERGED_VERSION: _MERGED_RUN}
_TRAILER_BODY = struct.Struct(">QI")  # position and length of the footer
_CRC = struct.Struct(">I")

TRAILER_BYTES = _TRAILER_BODY.size + _CRC.size + len(TRAILER_MAGIC)


class CorruptSegment(Exception):
    """The bytes are not a whole segment. `what` is wrong at byte `position`."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} (at byte {position})")
        self.what = what
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterRun:
    """One partition's batches in a segment."""

    topic_id: TopicId
    partition: Partition
    position: BytePosition
    length: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    crc32c: int
    base_offset: Offset | None = None
    last_offset: Offset | None = None
    """None: the segment was written before offsets were assigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """With `version` MERGED_VERSION every run has its offsets."""

    segment_id: SegmentId
    writer: str
    runs: tuple[FooterRun, ...]
    version: int = UPLOADED_VERSION


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SealedSegment:
    """`chunks` is to be uploaded and `placed` to be committed. `placed[i]` is the input's batch number
    `order[i]`."""

    segment_id: SegmentId
    chunks: tuple[bytes | memoryview, ...]
    size_bytes: int
    footer: SegmentFooter
    placed: PlacedBatches
    order: NDArray[np.int64]


def seal_segment(segment_id: SegmentId, writer: str, batches: PendingBatches) -> SealedSegment:
    """Gives every batch its place. Raises ValueError without batches, or for a writer's name above 255
    bytes."""
    if not len(batches):
        raise ValueError("a segment holds at least one batch")
    header = header_bytes(segment_id, writer)
    topics = sorted(range(len(batches.topic_ids)), key=batches.topic_ids.__getitem__)
    ranks = np.empty(len(topics), np.int64)
    ranks[topics] = np.arange(len(topics))
    ranked = ranks[batches.columns[TOPIC]]
    order = np.lexsort((batches.columns[PARTITION], ranked))
    columns = np.take(batches.columns, order, axis=1)
    columns[TOPIC] = ranked[order]
    np.cumsum(columns[LENGTH], out=columns[POSITION])
    position = len(header) + int(columns[POSITION, -1])
    columns[POSITION] += len(header) - columns[LENGTH]
    placed = PlacedBatches(topic_ids=tuple([batches.topic_ids[topic] for topic in topics]), columns=columns)
    data = [batches.data[index] for index in order.tolist()]
    footer = SegmentFooter(segment_id=segment_id, writer=writer, runs=tuple(_runs_of(placed, data)))
    ending = footer_bytes(footer, position)
    return SealedSegment(
        segment_id=segment_id,
        chunks=(header, *data, ending),
        size_bytes=position + len(ending),
        footer=footer,
        placed=placed,
        order=order,
    )


def empty_segment(segment_id: SegmentId) -> bytes:
    """Returns an object in a segment's form without runs: it can never be committed."""
    header = header_bytes(segment_id, "")
    return header + footer_bytes(SegmentFooter(segment_id=segment_id, writer="", runs=()), len(header))


def footer_range(trailer: Buffer, size: int) -> tuple[int, int]:
    """Returns the range to read for `read_footer`: `[start, end)` from the footer to the object's end.

    `trailer` is the last TRAILER_BYTES, or more, of an object of `size` bytes. Raises CorruptSegment.
    """
    if len(trailer) < TRAILER_BYTES or size < TRAILER_BYTES:
        raise CorruptSegment(f"too short for a segment: {size} bytes", 0)
    if bytes(trailer[-len(TRAILER_MAGIC) :]) not in _VERSIONS:
        raise CorruptSegment(
            "no segment ends here: the trailer's magic is missing", size - len(TRAILER_MAGIC)
        )
    position, length = _TRAILER_BODY.unpack_from(trailer, len(trailer) - TRAILER_BYTES)
    if position + length + TRAILER_BYTES != size:
        raise CorruptSegment(
            f"the trailer puts the footer at [{position}, {position + length})", size - TRAILER_BYTES
        )
    return position, size


def read_footer(data: Buffer) -> SegmentFooter:
    """Reads the footer from the object's last bytes: at least those of `footer_range`, at most the whole
    object. Raises CorruptSegment.
    """
    if len(data) < TRAILER_BYTES:
        raise CorruptSegment(f"too short for a segment's footer: {len(data)} bytes", 0)
    position, length = _TRAILER_BODY.unpack_from(data, len(data) - TRAILER_BYTES)
    footer_range(data[-TRAILER_BYTES:], position + length + TRAILER_BYTES)
    start = len(data) - TRAILER_BYTES - length
    if start < 0:
        raise CorruptSegment(
            f"the footer of {length} bytes is not within the {len(data)} bytes given", position
        )
    checked = memoryview(data)[start : len(data) - TRAILER_BYTES + _TRAILER_BODY.size]
    if _CRC.unpack_from(data, len(data) - len(TRAILER_MAGIC) - _CRC.size)[0] != crc32c(checked):
        raise CorruptSegment("the footer's checksum is wrong", position)
    return _parse_footer(bytes(checked[:length]), position, _VERSIONS[bytes(data[-len(TRAILER_MAGIC) :])])


def verify_segment(data: Buffer) -> SegmentFooter:
    """Checks every byte of a whole segment: bounds, checksums, and that runs fill the object without gaps.
    Raises CorruptSegment."""
    footer_start, _ = footer_range(data[-TRAILER_BYTES:], len(data))
    footer = read_footer(data)
    _check_version(data)
    header = header_bytes(footer.segment_id, footer.writer, footer.version)
    if data[: len(header)] != header:
        differs = next((i for i, byte in enumerate(header) if i >= len(data) or data[i] != byte), 0)
        raise CorruptSegment("the header does not match the footer", differs)
    if not footer.runs or footer.runs[0].position != len(header):
        raise CorruptSegment("the first run does not follow the header", len(header))
    for run in footer.runs:
        _verify_run(memoryview(data), run, footer_start)
    return footer


def _check_version(data: Buffer) -> None:
    magic, version, _, _ = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0, b"")
    if magic == HEADER_MAGIC and version not in _MAGICS:
        known = " and ".join(map(str, _MAGICS))
        raise CorruptSegment(
            f"segment format version {version}; this reader knows {known}", len(HEADER_MAGIC)
        )


def _verify_run(data: memoryview, run: FooterRun, footer_start: int) -> None:
    name = f"run {run.topic_id}/{run.partition}"
    end = run.position + run.length
    if end > footer_start:
        raise CorruptSegment(f"{name} reaches into the footer", run.position)
    if crc32c(data[run.position : end]) != run.crc32c:
        raise CorruptSegment(f"the checksum of {name} is wrong", run.position)
    try:
        batches = index_batches(data, run.position, end)
    except ValueError as error:
        raise CorruptSegment(f"{name}: {error}", run.position) from error
    records = int((batches["last_offset_delta"] + 1).sum())
    if records != run.record_count:
        raise CorruptSegment(
            f"{name} holds {records} records, its footer says {run.record_count}", run.position
        )
    if run.base_offset is not None and run.last_offset is not None:
        offsets = run.last_offset - run.base_offset + 1
        if records != offsets:
            raise CorruptSegment(
                f"{name} holds {records} records, its footer says {offsets} offsets", run.position
            )


def _runs_of(placed: PlacedBatches, data: Sequence[memoryview]) -> list[FooterRun]:
    """Neighbouring batches of one partition are one run. Its checksum is computed from those of its
    batches."""
    columns = placed.columns
    starts = first_of_each(is_same_partition(columns), len(placed))
    parts = np.empty((2 * len(placed), PART_COLUMNS), np.int64)
    parts[:, WHOLE] = np.repeat(np.arange(len(starts)), 2 * np.diff(starts, append=len(placed)))
    parts[::2, CHECKSUM] = [crc32c(batch[:CRC_START]) for batch in data]
    parts[::2, PART_LENGTH] = CRC_START
    parts[1::2, CHECKSUM] = columns[CRC]
    parts[1::2, PART_LENGTH] = columns[LENGTH] - CRC_START
    sums = zip(
        columns[TOPIC, starts].tolist(),
        columns[PARTITION, starts].tolist(),
        columns[POSITION, starts].tolist(),
        np.add.reduceat(columns[LENGTH], starts).tolist(),
        np.add.reduceat(columns[RECORDS], starts).tolist(),
        np.minimum.reduceat(columns[MIN_TIMESTAMP], starts).tolist(),
        np.maximum.reduceat(columns[MAX_TIMESTAMP], starts).tolist(),
        combined(parts, len(starts)),
        strict=True,
    )
    return [
        FooterRun(
            topic_id=placed.topic_ids[topic],
            partition=partition,
            position=position,
            length=length,
            record_count=records,
            min_timestamp_ms=min_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            crc32c=checksum,
        )
        for topic, partition, position, length, records, min_timestamp_ms, max_timestamp_ms, checksum in sums
    ]


def header_bytes(segment_id: SegmentId, writer: str, version: int = UPLOADED_VERSION) -> bytes:
    """The bytes of a segment before its first run. Raises ValueError for a writer's name above 255 bytes."""
    name = writer.encode()
    if len(name) > MAX_WRITER_BYTES:
        raise ValueError(f"a segment's writer has at most {MAX_WRITER_BYTES} bytes, got {len(name)}")
    body = _HEADER.pack(HEADER_MAGIC, version, len(name), segment_id.bytes) + name
    return body + _CRC.pack(crc32c(body))


def footer_bytes(footer: SegmentFooter, position: int) -> bytes:
    """The bytes of a segment after its last run, which ends at `position`: footer and trailer."""
    name = footer.writer.encode()
    parts = [_FOOTER.pack(footer.segment_id.bytes, len(name), len(footer.runs)), name]
    parts += [_run_bytes(run, footer.version) for run in footer.runs]
    body = b"".join(parts)
    checked = body + _TRAILER_BODY.pack(position, len(body))
    return checked + _CRC.pack(crc32c(checked)) + _MAGICS[footer.version]


def _run_bytes(run: FooterRun, version: int) -> bytes:
    offsets = () if version == UPLOADED_VERSION else (run.base_offset, run.last_offset)
    return _RUNS[version].pack(
        run.topic_id.bytes,
        run.partition,
        run.position,
        run.length,
        run.record_count,
        run.min_timestamp_ms,
        run.max_timestamp_ms,
        run.crc32c,
        *offsets,
    )


def _parse_footer(body: Buffer, position: int, version: int) -> SegmentFooter:
    if len(body) < _FOOTER.size:
        raise CorruptSegment("the footer is cut short", position)
    raw_id, name_bytes, run_count = _FOOTER.unpack_from(body)
    runs_start = _FOOTER.size + name_bytes
    layout = _RUNS[version]
    if len(body) != runs_start + run_count * layout.size:
        raise CorruptSegment(f"a footer of {len(body)} bytes cannot hold {run_count} runs", position)
    try:
        writer = bytes(body[_FOOTER.size : runs_start]).decode()
    except UnicodeDecodeError:
        raise CorruptSegment("the writer's name is not UTF-8", position + _FOOTER.size) from None
    runs = tuple(_parse_run(fields) for fields in layout.iter_unpack(body[runs_start:]))
    _check_runs_fill_object(runs, position, position + runs_start, layout.size)
    return SegmentFooter(segment_id=SegmentId(UUID(bytes=raw_id)), writer=writer, runs=runs, version=version)


def _parse_run(fields: tuple[Any, ...]) -> FooterRun:
    (
        topic_id,
        partition,
        position,
        length,
        record_count,
        min_timestamp_ms,
        max_timestamp_ms,
        checksum,
        *offsets,
    ) = fields
    base_offset, last_offset = offsets or (None, None)
    return FooterRun(
        topic_id=TopicId(UUID(bytes=topic_id)),
        partition=Partition(partition),
        position=BytePosition(position),
        length=length,
        record_count=record_count,
        min_timestamp_ms=min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        crc32c=checksum,
        base_offset=base_offset,
        last_offset=last_offset,
    )


def _check_runs_fill_object(
    runs: Sequence[FooterRun], footer_position: int, runs_position: int, run_bytes: int
) -> None:
    """Raises CorruptSegment unless runs follow each other, in the order of keys and offsets, up to the
    footer."""
    if not runs:
        return  # made by `empty_segment`
    ends = [run.position for run in runs[1:]] + [footer_position]
    for index, (run, end) in enumerate(zip(runs, ends, strict=True)):
        where = runs_position + index * run_bytes
        if run.position + run.length != end:
            raise CorruptSegment(
                f"run {run.topic_id}/{run.partition} does not end where the next begins", where
            )
        if index and not _follows(runs[index - 1], run):
            raise CorruptSegment(f"run {run.topic_id}/{run.partition} is out of order", where)


def _follows(before: FooterRun, run: FooterRun) -> bool:
    """A partition has one run. If its offsets are known, it has one run per gapless range of offsets."""
    keys = (before.topic_id.bytes, before.partition), (run.topic_id.bytes, run.partition)
    if keys[0] == keys[1] and before.last_offset is not None and run.base_offset is not None:
        return before.last_offset < run.base_offset
    return keys[0] < keys[1]
