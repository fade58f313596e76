"""The container of the commit journal and of its checkpoints (docs/design/recovery.md#the-commit-journal;
byte by byte in `docs/journal-format.md`).

    prefix | header | sections

A section holds rows of one table, exactly as Postgres' `COPY ... TO STDOUT (FORMAT binary)` wrote them, in
one zstd frame. The header is JSON and names the tables. Pure: rows in, bytes out.

Promises:
- A container can be read from its own bytes alone.
- Any changed, missing or surplus byte is detected (CorruptJournal).
- Sections are checked before they are decompressed.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import cramjam
from crc32c import crc32c

from storage.batches.byte_arrays import Buffer

FORMAT_VERSION = 1
MAGIC = b"TIDEJRNL"

_PREFIX = struct.Struct(">8sHIQ")  # magic, format version, bytes of the header, bytes of the whole object
_CRC = struct.Struct(">I")  # CRC32C of the prefix and the header
PREFIX_BYTES = _PREFIX.size + _CRC.size
_ZSTD_LEVEL = 1


class CorruptJournal(Exception):
    """The bytes are not a whole container. `what` says what is wrong."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not a whole object of the journal: {what}")
        self.what = what


class Kind(StrEnum):
    ENTRY = "entry"
    CHECKPOINT_PART = "checkpoint part"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    """As Postgres writes it: `bigint`, `uuid`, `text[]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRows:
    """The rows of one COPY: the input of a section."""

    table: str
    is_whole: bool
    columns: tuple[Column, ...]
    rows: int
    data: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Where the rows of one COPY are."""

    table: str
    is_whole: bool
    """True: all rows of the table. False: the rows that changed, or a part of all."""
    columns: tuple[Column, ...]
    rows: int
    position: int
    """Position of the zstd frame, from the first byte after the header."""
    length: int
    """Bytes of the zstd frame."""
    plain_length: int
    """Bytes that COPY wrote."""
    crc32c: int
    """CRC32C of the zstd frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a checkpoint, as the manifest names it. Parts count from 1."""

    number: int
    size_bytes: int
    crc32c: int
    """CRC32C of the whole object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHeader:
    """What a container says about itself."""

    kind: Kind
    cluster_id: str
    epoch: int
    """The epoch of the ownership under which it was written."""
    number: int
    """The number of the entry or the checkpoint; never used twice."""
    follows: int
    """The entry that this one continues, or the last one that the checkpoint certainly includes; 0: none."""
    taken_at: str
    """When the snapshot was taken, by the database's clock. Everything committed before is in this container
    or an earlier one."""
    snapshot: str
    """`pg_current_snapshot()` of the rows."""
    migration: int
    """The database's last migration: it says which columns the tables have."""
    system_identifier: int
    timeline: int
    sequences: Mapping[str, int] = field(default_factory=dict)
    """The last value of each sequence; 0: none."""
    part: int = 0
    """The number of a checkpoint's part; else 0."""
    parts: tuple[Part, ...] = ()
    """The parts that a checkpoint's manifest names; else empty."""
    sections: tuple[Section, ...] = ()


def encode(header: JournalHeader, tables: Sequence[CopiedRows]) -> list[bytes]:
    """Returns the container in pieces that belong back to back. Compression takes a while: run it in a
    thread."""
    frames = [bytes(cramjam.zstd.compress(table.data, level=_ZSTD_LEVEL)) for table in tables]
    sections = tuple(_sections(tables, frames))
    text = _header_text(header, sections)
    size_bytes = PREFIX_BYTES + len(text) + sum(map(len, frames))
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(text), size_bytes)
    return [prefix + _CRC.pack(crc32c(text, crc32c(prefix))) + text, *frames]


def header_length(prefix: Buffer) -> int:
    """Returns how many bytes `read_header` needs, given the first PREFIX_BYTES of an object. Raises
    CorruptJournal."""
    text_bytes, _ = _read_prefix(prefix)
    return PREFIX_BYTES + text_bytes


def read_header(data: Buffer) -> JournalHeader:
    """Reads the header from the object's first `header_length` bytes or more. Raises CorruptJournal."""
    text_bytes, size_bytes = _read_prefix(data)
    end = PREFIX_BYTES + text_bytes
    if len(data) < end:
        raise CorruptJournal(f"its header ends at byte {end}, and there are {len(data)}")
    text = memoryview(data)[PREFIX_BYTES:end]
    if _CRC.unpack_from(data, _PREFIX.size)[0] != crc32c(text, crc32c(memoryview(data)[: _PREFIX.size])):
        raise CorruptJournal("the checksum of its header is wrong")
    header = _parse_header(bytes(text))
    position = 0
    for section in header.sections:
        if section.position != position:
            raise CorruptJournal(f"the section of {section.table} does not begin where the one before ends")
        position += section.length
    if end + position != size_bytes:
        raise CorruptJournal(f"its sections end at byte {end + position} of {size_bytes}")
    return header


def read_container(data: Buffer) -> tuple[JournalHeader, list[CopiedRows]]:
    """Reads the whole object and checks all its sections. Raises CorruptJournal."""
    header = read_header(data)
    size_bytes = _read_prefix(data)[1]
    if len(data) != size_bytes:
        raise CorruptJournal(f"it should have {size_bytes} bytes, and there are {len(data)}")
    return header, list(_read_sections(memoryview(data)[header_length(data) :], header))


def _read_prefix(data: Buffer) -> tuple[int, int]:
    if len(data) < PREFIX_BYTES:
        raise CorruptJournal(f"it has only {len(data)} bytes")
    magic, version, text_bytes, size_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise CorruptJournal("it does not begin with TIDEJRNL")
    if version != FORMAT_VERSION:
        raise CorruptJournal(f"its format has version {version}; this reader knows {FORMAT_VERSION}")
    return text_bytes, size_bytes


def _read_sections(data: memoryview, header: JournalHeader) -> Iterator[CopiedRows]:
    for section in header.sections:
        frame = data[section.position : section.position + section.length]
        if crc32c(frame) != section.crc32c:
            raise CorruptJournal(f"the checksum of its section of {section.table} is wrong")
        plain = bytearray(section.plain_length)
        try:
            written = cramjam.zstd.decompress_into(frame, plain) if plain else 0
        except cramjam.DecompressionError as error:
            raise CorruptJournal(f"its section of {section.table} is not a zstd frame: {error}") from error
        if written != section.plain_length:
            raise CorruptJournal(
                f"its section of {section.table} holds {written} of {section.plain_length} bytes"
            )
        yield CopiedRows(
            table=section.table,
            is_whole=section.is_whole,
            columns=section.columns,
            rows=section.rows,
            data=memoryview(plain),
        )


def _sections(tables: Sequence[CopiedRows], frames: Sequence[bytes]) -> Iterator[Section]:
    position = 0
    for table, frame in zip(tables, frames, strict=True):
        yield Section(
            table=table.table,
            is_whole=table.is_whole,
            columns=table.columns,
            rows=table.rows,
            position=position,
            length=len(frame),
            plain_length=len(table.data),
            crc32c=crc32c(frame),
        )
        position += len(frame)


def _header_text(header: JournalHeader, sections: Sequence[Section]) -> bytes:
    fields = asdict(header) | {
        "sequences": dict(header.sequences),
        "sections": [
            asdict(section) | {"columns": [[column.name, column.type] for column in section.columns]}
            for section in sections
        ],
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _parse_header(text: bytes) -> JournalHeader:
    try:
        fields: dict[str, Any] = json.loads(text)
        sections = tuple(
            Section(
                **each | {"columns": tuple(Column(name=name, type=kind) for name, kind in each["columns"])}
            )
            for each in fields["sections"]
        )
        parts = tuple(Part(**each) for each in fields["parts"])
        return JournalHeader(**fields | {"kind": Kind(fields["kind"]), "sections": sections, "parts": parts})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptJournal(f"its header is not as it should be: {error}") from error
