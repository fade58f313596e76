"""The journal's container: it reads back as written, and every change to it is detected."""

import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.segments.journal_format import (
    PREFIX_BYTES,
    Column,
    CopiedRows,
    CorruptJournal,
    JournalHeader,
    Kind,
    Part,
    encode,
    header_length,
    read_container,
    read_header,
)

PAGE = Path(__file__).parents[3] / "docs" / "journal-format.md"

HEADER = JournalHeader(
    kind=Kind.ENTRY,
    cluster_id="AAAAAAAAAAAAAAAAAAAAAA",
    epoch=1,
    number=7,
    follows=6,
    taken_at="2026-01-02T03:04:05.678901+00:00",
    snapshot="730:734:731",
    migration=11,
    system_identifier=7_000_000_000_000_000_001,
    timeline=1,
    sequences={"node_ids": 3, "coordinator_epochs": 9},
)


def some_rows(data: bytes, table: str = "groups", rows: int = 1, *, is_whole: bool = True) -> CopiedRows:
    columns = (Column(name="group_id", type="text"), Column(name="generation", type="integer"))
    return CopiedRows(table=table, is_whole=is_whole, columns=columns, rows=rows, data=data)


def copied(*values: bytes) -> bytes:
    """Returns what COPY writes for rows of one column."""
    rows = [struct.pack(">hi", 1, len(value)) + value for value in values]
    return b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"".join(rows) + b"\xff\xff"


names = st.text(min_size=1, max_size=20)
numbers = st.integers(min_value=0, max_value=2**63 - 1)
tables = st.builds(
    CopiedRows,
    table=names,
    is_whole=st.booleans(),
    columns=st.lists(st.builds(Column, name=names, type=names), max_size=4).map(tuple),
    rows=numbers,
    data=st.binary(max_size=2000),
)
headers = st.builds(
    JournalHeader,
    kind=st.sampled_from(Kind),
    cluster_id=names,
    epoch=numbers,
    number=numbers,
    follows=numbers,
    taken_at=names,
    snapshot=names,
    migration=numbers,
    system_identifier=numbers,
    timeline=numbers,
    sequences=st.dictionaries(names, numbers, max_size=3),
    part=numbers,
    parts=st.lists(st.builds(Part, number=numbers, size_bytes=numbers, crc32c=numbers), max_size=3).map(
        tuple
    ),
)


@given(headers, st.lists(tables, max_size=4))
def test_what_was_written_reads_back(header: JournalHeader, given_tables: list[CopiedRows]) -> None:
    data = b"".join(encode(header, given_tables))

    read, sections = read_container(data)

    assert replace(read, sections=()) == header
    assert [(s.table, s.is_whole, s.columns, s.rows, bytes(s.data)) for s in sections] == [
        (t.table, t.is_whole, t.columns, t.rows, t.data) for t in given_tables
    ]
    assert read_header(data[: header_length(data[:PREFIX_BYTES])]) == read


def test_a_flipped_bit_in_any_byte_is_noticed() -> None:
    data = b"".join(encode(HEADER, [some_rows(b"abc" * 20), some_rows(b"xyz" * 30, "runs")]))

    for position in range(len(data)):
        for bit in (0x01, 0x80):
            changed = bytearray(data)
            changed[position] ^= bit
            with pytest.raises(CorruptJournal):
                read_container(changed)


def test_a_container_that_is_cut_or_too_long_is_refused() -> None:
    data = b"".join(encode(HEADER, [some_rows(b"abc" * 20)]))

    for wrong in [*(data[:length] for length in range(len(data))), data + b"\0"]:
        with pytest.raises(CorruptJournal):
            read_container(wrong)


def test_another_version_is_refused_by_its_number() -> None:
    data = bytearray(b"".join(encode(HEADER, [])))
    data[8:10] = struct.pack(">H", 2)

    with pytest.raises(CorruptJournal, match="version 2; this reader knows 1"):
        read_header(data)


def test_a_section_that_expands_beyond_its_length_is_refused() -> None:
    data = b"".join(encode(HEADER, [some_rows(bytes(100_000))]))
    length = header_length(data)
    text = data[PREFIX_BYTES:length].replace(b'"plain_length":100000', b'"plain_length":100   ')
    prefix = data[:22]
    forged = prefix + struct.pack(">I", crc32c(text, crc32c(prefix))) + text + data[length:]

    with pytest.raises(CorruptJournal, match="section of groups"):
        read_container(forged)


def example() -> bytes:
    found = re.search(r"```hexdump\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return b"".join(bytes.fromhex(line.split("  ")[1]) for line in found[1].splitlines())


def test_the_example_of_the_page_is_what_the_code_reads() -> None:
    header, [section] = read_container(example())

    assert (header.kind, header.number, header.sequences) == (
        Kind.ENTRY,
        7,
        {"node_ids": 3, "coordinator_epochs": 9},
    )
    assert (section.table, section.rows, bytes(section.data)) == (
        "topic_changes",
        1,
        copied(struct.pack(">q", 5)),
    )


def test_the_example_of_the_page_reads_as_its_tables_say() -> None:
    data = example()
    magic, version, text_bytes, size_bytes, checksum = struct.unpack_from(">8sHIQI", data)
    text = data[26 : 26 + text_bytes]
    assert (magic, version, size_bytes) == (b"TIDEJRNL", 1, len(data))
    assert crc32c(data[:22] + text) == checksum

    header = json.loads(text)
    assert {name: header[name] for name in ("kind", "epoch", "number", "follows")} == {
        "kind": "entry",
        "epoch": 1,
        "number": 7,
        "follows": 6,
    }
    [section] = header["sections"]
    start = 26 + text_bytes + section["position"]
    frame = data[start : start + section["length"]]
    assert crc32c(frame) == section["crc32c"]
    assert bytes(cramjam.zstd.decompress(frame)) == copied(struct.pack(">q", 5))
    assert start + section["length"] == len(data)
