"""Row groups become record batches with the same records at the same offsets."""

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.arrow.arrow_columns import decode_batches
from storage.arrow.arrow_encoding import encode_span
from storage.arrow.arrow_schema import HISTORY_SCHEMA, RECORD_SCHEMA
from storage.arrow.row_groups import (
    DamagedRowGroup,
    footer_bytes,
    key_id_of_footer,
    read_row_group,
    row_group_range,
)
from storage.batches.record_batch import Compression, index_batches, read_header
from storage.encryption.parquet_keys import key_metadata, to_decrypt, to_encrypt
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import KeyId, TopicId

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAYBE_BYTES = st.none() | st.binary(max_size=60)
ROWS = st.lists(
    st.tuples(
        st.integers(1, 5) | st.integers(1, 2**33),  # the distance from the record before
        st.none() | st.integers(0, 10**12),
        st.integers(0, 1),
        MAYBE_BYTES,
        MAYBE_BYTES,
        st.lists(st.tuples(st.text(max_size=4), MAYBE_BYTES), max_size=3),
    ),
    max_size=40,
)


def a_batch(rows: Sequence[Any], first: int) -> pa.RecordBatch:
    offsets, offset = [], first
    for distance, *_ in rows:
        offset += distance
        offsets.append(offset)
    columns = {
        "offset": offsets,
        "timestamp": [None if ms is None else EPOCH + timedelta(milliseconds=ms) for _, ms, *_ in rows],
        "timestamp_type": [kind for _, _, kind, *_ in rows],
        "key": [key for _, _, _, key, *_ in rows],
        "value": [value for *_, value, _ in rows],
        "headers": [[{"key": key, "value": value} for key, value in headers] for *_, headers in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)


def read_back(data: bytes, base_offset: int) -> tuple[list[dict[str, Any]], int]:
    """Returns the records, and the offset after the last batch."""
    records: list[dict[str, Any]] = []
    for position, size_bytes, last_offset_delta in index_batches(data, 0, len(data)).tolist():
        records += decode_batches(data, position, position + size_bytes, base_offset).to_pylist()
        base_offset += last_offset_delta + 1
    return records, base_offset


@settings(max_examples=200, deadline=None)
@given(
    rows=ROWS,
    first=st.integers(0, 2**40),
    before=st.integers(0, 2**33),
    behind=st.integers(0, 2**33),
    compression=st.sampled_from([Compression.NONE, Compression.ZSTD]),
    batch_bytes=st.sampled_from([1, 50, 1 << 20]),
)
def test_batches_have_the_records_at_their_offsets_and_fill_the_span(
    rows: Sequence[Any], first: int, before: int, behind: int, compression: Compression, batch_bytes: int
) -> None:
    records = a_batch(rows, first)
    offsets = records.column("offset").to_pylist()
    end: int = offsets[-1] if offsets else first  # type: ignore[assignment]
    base, last = max(0, first - before), end + behind

    data = encode_span(records, compression, base_offset=base, last_offset=last, batch_bytes=batch_bytes)

    assert read_back(data, base) == (records.to_pylist(), last + 1)


@settings(max_examples=50, deadline=None)
@given(rows=ROWS.filter(lambda rows: len(rows) > 2), cut=st.data())
def test_records_outside_the_span_are_left_out(rows: Sequence[Any], cut: st.DataObject) -> None:
    records = a_batch(rows, 0)
    offsets = records.column("offset").to_pylist()
    base = cut.draw(st.sampled_from(offsets))
    last = cut.draw(st.sampled_from([offset for offset in offsets if offset >= base]))

    data = encode_span(records, Compression.NONE, base_offset=base, last_offset=last, batch_bytes=100)

    found, end = read_back(data, base)
    assert found == [row for row in records.to_pylist() if base <= row["offset"] <= last]
    assert end == last + 1


def test_batches_have_about_the_size_asked_for() -> None:
    records = a_batch([(1, 0, 0, None, b"x" * 1000, [])] * 500, 0)

    data = encode_span(records, Compression.NONE, base_offset=1, last_offset=500, batch_bytes=50_000)

    sizes = [size for _, size, _ in index_batches(data, 0, len(data)).tolist()]
    assert len(sizes) == 11
    assert max(sizes) < 55_000


def test_records_of_one_append_time_share_a_batch_and_others_do_not() -> None:
    records = a_batch([(1, 5, 1, None, b"a", [])] * 3 + [(1, 6, 1, None, b"b", [])] * 2, 0)

    data = encode_span(records, Compression.NONE, base_offset=1, last_offset=5, batch_bytes=1 << 20)

    counts = [
        read_header(memoryview(data)[position : position + size]).record_count
        for position, size, _ in index_batches(data, 0, len(data)).tolist()
    ]
    assert counts == [3, 2]


KEY = TopicKey(TopicId(UUID(int=1)), KeyId(17), bytes(range(32)))
LEAVES = [
    *("partition", "offset", "timestamp", "timestamp_type", "key", "value"),
    *("headers.list.element.key", "headers.list.element.value"),
]


def a_file(key: TopicKey | None = None) -> tuple[bytes, pq.FileMetaData]:
    records = a_batch([(1, n, 0, b"key", b"value" * 20, [("h", b"1")]) for n in range(300)], -1)
    table = pa.Table.from_batches([records]).add_column(
        0, HISTORY_SCHEMA.field("partition"), pa.repeat(pa.scalar(3, pa.int32()), 300)
    )
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        write_page_checksum=True,
        encryption_properties=None if key is None else to_encrypt(key, LEAVES),
    ) as writer:
        writer.write_table(table, row_group_size=100)
        if key is not None:
            writer.add_key_value_metadata(key_metadata(key))
    data = sink.getvalue()
    decryption = None if key is None else to_decrypt({key.key_id: key})
    return data, pq.read_metadata(io.BytesIO(data), decryption_properties=decryption)


def footer_of(data: bytes) -> bytes:
    return data[-footer_bytes(data[-8:]) :]


def test_a_row_group_is_read_from_its_range_and_the_footer_alone() -> None:
    data, metadata = a_file()
    for number in range(3):
        position, length = row_group_range(metadata.row_group(number))
        middle = position + length // 2
        pieces = [memoryview(data)[position:middle], memoryview(data)[middle : position + length]]

        records = read_row_group(footer_of(data), position, pieces, 3)

        assert records.schema == RECORD_SCHEMA
        assert records.column("offset").to_pylist() == list(range(100 * number, 100 * number + 100))


def test_a_row_group_of_an_encrypted_file_is_read_with_its_key_and_equals_the_clear_one() -> None:
    (data, metadata), (clear, clear_metadata) = a_file(KEY), a_file()
    assert key_id_of_footer(footer_of(data), "file") == KEY.key_id
    assert key_id_of_footer(footer_of(clear), "file") is None
    for number in range(3):
        position, length = row_group_range(metadata.row_group(number))
        start, size = row_group_range(clear_metadata.row_group(number))

        found = read_row_group(
            footer_of(data), position, [memoryview(data)[position : position + length]], 3, KEY
        )

        assert found == read_row_group(footer_of(clear), start, [memoryview(clear)[start : start + size]], 3)


@pytest.mark.parametrize(
    "key",
    [None, TopicKey(KEY.topic_id, KeyId(18), bytes(32)), TopicKey(KEY.topic_id, KEY.key_id, bytes(32))],
    ids=["no key", "another id", "another secret"],
)
def test_an_encrypted_row_group_does_not_read_with_another_key(key: TopicKey | None) -> None:
    data, metadata = a_file(KEY)
    position, length = row_group_range(metadata.row_group(0))
    with pytest.raises(DamagedRowGroup):
        read_row_group(footer_of(data), position, [memoryview(data)[position : position + length]], 3, key)


def test_a_damaged_byte_of_an_encrypted_row_group_is_an_error_or_changes_nothing() -> None:
    data, metadata = a_file(KEY)
    position, length = row_group_range(metadata.row_group(1))
    whole = data[position : position + length]
    sound = read_row_group(footer_of(data), position, [memoryview(whole)], 3, KEY)
    for at in range(0, length, 53):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        try:
            found = read_row_group(footer_of(data), position, [memoryview(damaged)], 3, KEY)
        except DamagedRowGroup:
            continue
        assert found == sound, at


def test_a_damaged_footer_of_an_encrypted_file_is_an_error() -> None:
    data, metadata = a_file(KEY)
    position, length = row_group_range(metadata.row_group(0))
    whole, footer = memoryview(data)[position : position + length], footer_of(data)
    sound = read_row_group(footer, position, [whole], 3, KEY)
    for at in range(0, len(footer) - 8, 7):
        damaged = bytearray(footer)
        damaged[at] ^= 0x10
        try:
            found = read_row_group(bytes(damaged), position, [whole], 3, KEY)
        except DamagedRowGroup:
            continue
        assert found == sound, at


def test_damage_another_partition_and_another_position_are_errors() -> None:
    data, metadata = a_file()
    position, length = row_group_range(metadata.row_group(1))
    whole = data[position : position + length]
    with pytest.raises(DamagedRowGroup, match="partition 4"):
        read_row_group(footer_of(data), position, [memoryview(whole)], 4)
    with pytest.raises(DamagedRowGroup, match="no row group"):
        read_row_group(footer_of(data), position + 1, [memoryview(whole)], 3)
    with pytest.raises(DamagedRowGroup):
        read_row_group(footer_of(data), position, [memoryview(whole)[:-40]], 3)
    for at in range(0, length, 97):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        try:
            found = read_row_group(footer_of(data), position, [memoryview(damaged)], 3)
        except DamagedRowGroup:
            continue
        assert found == read_row_group(footer_of(data), position, [memoryview(whole)], 3), at


def test_a_record_larger_than_a_batch_is_alone_in_it() -> None:
    """With others it could exceed what readers take: a batch as large as a producer may send, and more."""
    sizes = [900, 5000, 10, 10, 3000, 10]
    columns: dict[str, list[Any]] = {
        "offset": list(range(len(sizes))),
        "timestamp": [None] * len(sizes),
        "timestamp_type": [0] * len(sizes),
        "key": [b"k"] * len(sizes),
        "value": [bytes(size) for size in sizes],
        "headers": [[]] * len(sizes),
    }
    rows = pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)

    data = encode_span(rows, Compression.NONE, base_offset=0, last_offset=5, batch_bytes=1000)

    assert (index_batches(data, 0, len(data))["last_offset_delta"] + 1).tolist() == [1, 1, 2, 1, 1]
    assert decode_batches(data, 0, len(data), 0).equals(rows)
