"""Records as Arrow columns and back, equal to what was written by our encoder and by other clients'
(docs/design/promises.md#p6-equality)."""

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from storage.arrow.arrow_columns import RECORD_SCHEMA, decode_batches, encode_batch
from storage.batches.batch_validation import LAST_TIMESTAMP_MS, BatchFault, InvalidBatch, validate_produced
from storage.batches.record_batch import Compression, TimestampType, read_header, with_log_append_time
from tests.storage.builders import LIMITS, ROOMY, ARecord, a_batch, varint

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp in ms, timestamp type, key, value, headers."""


def rows_of(records: pa.RecordBatch) -> list[Row]:
    columns = records.to_pydict()
    columns["timestamp"] = records.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        (
            offset,
            -1 if microseconds is None else microseconds // 1000,
            kind,
            key,
            value,
            [(header["key"], header["value"]) for header in headers],
        )
        for offset, microseconds, kind, key, value, headers in zip(*columns.values(), strict=True)
    ]


def decoded(*batches: bytes, base_offset: int = 0) -> list[Row]:
    data = b"".join(batches)
    records = decode_batches(data, 0, len(data), base_offset)
    records.validate(full=True)
    assert records.schema == RECORD_SCHEMA
    return rows_of(records)


def batch_by_kafka_python(rows: Sequence[Row], compression: int) -> bytes:
    builder = KafkaPythonBuilder(2, compression, False, -1, -1, -1, 1 << 24)
    for index, (_, timestamp, _, key, value, headers) in enumerate(rows):
        builder.append(index, timestamp, key, value, headers)
    return bytes(builder.build())


def rows_by(batch: Any) -> list[Row]:
    return [
        (
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            list(record.headers),
        )
        for record in batch
    ]


_content = st.one_of(st.none(), st.binary(max_size=20), st.integers(120, 300).map(bytes))
_rows = st.lists(
    st.tuples(
        st.one_of(st.integers(-1, LAST_TIMESTAMP_MS), st.integers(1_700_000_000_000, 1_700_000_000_300)),
        _content,
        _content,
        st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=4),
    ),
    min_size=1,
    max_size=8,
).map(lambda rows: [(index, row[0], 0, *row[1:]) for index, row in enumerate(rows)])


@settings(max_examples=100, deadline=None)
@given(rows=_rows, compression=st.sampled_from(list(Compression)), base_offset=st.integers(0, 2**62))
def test_what_another_client_writes_is_decoded_as_written(
    rows: list[Row], compression: int, base_offset: int
) -> None:
    written = batch_by_kafka_python(rows, compression)

    assert decoded(written, base_offset=base_offset) == [(base_offset + row[0], *row[1:]) for row in rows]


@settings(max_examples=100, deadline=None)
@given(rows=_rows, compression=st.sampled_from(list(Compression)))
def test_what_is_encoded_is_valid_and_other_clients_read_it(
    rows: list[Row], compression: Compression
) -> None:
    written = batch_by_kafka_python(rows, Compression.NONE)
    records = decode_batches(written, 0, len(written), 0)

    encoded = encode_batch(records, compression)

    valid = validate_produced(encoded, LIMITS)
    assert (valid.header.compression, valid.header.max_timestamp_ms) == (
        compression,
        max(row[1] for row in rows),
    )
    assert decode_batches(encoded, 0, len(encoded), 0).equals(records)
    assert rows_by(KafkaPythonBatch(encoded)) == rows
    assert rows_by(AiokafkaBatch(encoded)) == rows


@settings(max_examples=60, deadline=None)
@given(rows=_rows)
def test_uncompressed_records_are_encoded_byte_for_byte_as_another_client_does(rows: list[Row]) -> None:
    written = batch_by_kafka_python(rows, Compression.NONE)

    encoded = encode_batch(decode_batches(written, 0, len(written), 0), Compression.NONE)

    assert encoded[61:] == written[61:]
    assert encoded[21:27] == written[21:27]  # attributes and last offset delta


def test_nulls_empty_values_and_duplicate_headers_stay_distinct() -> None:
    headers = [(b"b", b"2"), (b"a", None), (b"b", b""), (b"", b"\xff")]
    batch = a_batch(
        ARecord(key=None, value=b""),
        ARecord(key=b"", value=None),
        ARecord(headers=headers),
        base_timestamp_ms=5,
    )

    assert decoded(batch) == [
        (0, 5, 0, None, b"", []),
        (1, 5, 0, b"", None, []),
        (2, 5, 0, b"key", b"value", [("b", b"2"), ("a", None), ("b", b""), ("", b"\xff")]),
    ]


def test_varints_at_their_limits_are_decoded() -> None:
    limits = [
        ARecord(value=bytes(size), timestamp_delta=delta)
        for size, delta in [
            (63, 63),
            (64, 64),
            (8191, -1),
            (8192, 8192),
            (1 << 20, 2**31),
            ((1 << 20) + 1, 2**40),
        ]
    ]
    batch = a_batch(*limits, base_timestamp_ms=1)

    assert [(row[1], len(row[4] or b"")) for row in decoded(batch)] == [
        (1 + record.timestamp_delta, len(record.value or b"")) for record in limits
    ]


def test_longer_varints_than_needed_are_decoded() -> None:
    zero_in_two_bytes, zero_in_ten_bytes = b"\x80\x00", b"\x80" * 9 + b"\x00"
    body = (
        b"\0"
        + zero_in_ten_bytes
        + zero_in_two_bytes
        + b"\x82\x80\x80\x80\x00"
        + b"k"
        + varint(-1)
        + varint(0)
    )
    batch = a_batch(ARecord(encoded=varint(len(body)) + body), base_timestamp_ms=9)

    assert decoded(batch) == [(0, 9, 0, b"k", None, [])]


def test_offsets_follow_from_the_runs_start_whatever_the_batches_say() -> None:
    first = a_batch(ARecord(), ARecord(), base_offset=77)
    gaps = a_batch(ARecord(offset_delta=1), ARecord(offset_delta=4), base_offset=3, last_offset_delta=6)
    last = a_batch(ARecord(), base_offset=0)

    assert [row[0] for row in decoded(first, gaps, last, base_offset=1000)] == [1000, 1001, 1003, 1006, 1009]


def test_control_batches_take_offsets_and_give_no_records() -> None:
    control = a_batch(ARecord(), attributes=0x20)

    assert [row[0] for row in decoded(a_batch(), control, a_batch(), base_offset=5)] == [5, 7]
    assert decoded(control) == []


def test_an_empty_range_and_an_empty_batch_give_no_records() -> None:
    empty = a_batch(record_count=0, last_offset_delta=9, body=b"")

    assert decoded() == []
    assert [row[0] for row in decoded(empty, a_batch())] == [10]


def test_under_log_append_time_every_record_has_the_batchs_time() -> None:
    batch = validate_produced(a_batch(ARecord(), ARecord(timestamp_delta=50)), LIMITS)
    stamped = with_log_append_time(batch, 1_800_000_000_000)

    records = decode_batches(stamped.data, 0, len(stamped.data), 0)

    assert [row[1:3] for row in rows_of(records)] == [(1_800_000_000_000, TimestampType.LOG_APPEND_TIME)] * 2
    again = encode_batch(records, Compression.ZSTD)
    assert read_header(again).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert decode_batches(again, 0, len(again), 0).equals(records)


def test_batches_of_every_compression_in_one_run_are_decoded_together() -> None:
    rows: list[Row] = [(index, index, 0, b"k%d" % index, b"v" * 50, []) for index in range(20)]
    batches = [batch_by_kafka_python(rows, compression) for compression in [*Compression, *Compression]]

    found = decoded(*batches, base_offset=100)

    assert [row[0] for row in found] == list(range(100, 300))
    assert [row[1:] for row in found] == [row[1:] for row in rows] * 10


def test_no_timestamp_is_null_and_none_again() -> None:
    batch = a_batch(ARecord(), ARecord(timestamp_delta=6), base_timestamp_ms=-1)
    records = decode_batches(batch, 0, len(batch), 0)

    assert records.column("timestamp").to_pylist() == [None, EPOCH + datetime.timedelta(milliseconds=5)]
    assert [row[1] for row in decoded(encode_batch(records, Compression.NONE))] == [-1, 5]


def test_the_last_timestamp_of_the_year_9999_survives() -> None:
    batch = a_batch(base_timestamp_ms=LAST_TIMESTAMP_MS)
    records = decode_batches(batch, 0, len(batch), 0)

    assert records.column("timestamp")[0].as_py() == datetime.datetime(
        9999, 12, 31, 23, 59, 59, 999000, datetime.UTC
    )
    assert [row[1] for row in decoded(encode_batch(records, Compression.NONE))] == [LAST_TIMESTAMP_MS]


def test_slices_and_extra_columns_are_encoded() -> None:
    rows: list[Row] = [
        (index, index, 0, None if index % 2 else b"k", b"v" * index, [(f"h{index}", None)] * (index % 3))
        for index in range(20)
    ]
    written = batch_by_kafka_python(rows, Compression.NONE)
    table = pa.Table.from_batches([decode_batches(written, 0, len(written), 0)])
    table = table.append_column("partition", pa.array([7] * 20, pa.int32())).slice(5, 10)

    encoded = encode_batch(table.to_batches()[0], Compression.NONE)

    assert rows_by(AiokafkaBatch(encoded)) == rows[5:15]


def test_a_batch_may_span_more_offsets_than_its_records() -> None:
    written = a_batch(ARecord(), ARecord())
    records = decode_batches(written, 0, len(written), 50)

    encoded = encode_batch(records, Compression.NONE, base_offset=40, last_offset=99)

    header = read_header(encoded)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (40, 59, 2)
    assert [row[0] for row in decoded(encoded, base_offset=40)] == [50, 51]


def test_a_range_without_records_is_one_empty_batch() -> None:
    encoded = encode_batch(_no_records(), Compression.ZSTD, base_offset=5, last_offset=8)

    header = read_header(encoded)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (5, 3, 0)
    assert [row[0] for row in decoded(encoded, a_batch(), base_offset=5)] == [9]


def _no_records() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )


def test_what_one_batch_cannot_hold_is_refused() -> None:
    first = a_batch(ARecord(), ARecord(timestamp_delta=1))
    created = decode_batches(first, 0, len(first), 0)
    stamped = created.set_column(2, RECORD_SCHEMA.field("timestamp_type"), pa.array([1, 1], pa.int32()))
    mixed = created.set_column(2, RECORD_SCHEMA.field("timestamp_type"), pa.array([0, 1], pa.int32()))
    unordered = created.set_column(0, RECORD_SCHEMA.field("offset"), pa.array([1, 1], pa.int64()))

    for records, bounds, says in [
        (stamped, {}, "one timestamp"),
        (mixed, {}, "one timestamp type"),
        (unordered, {}, "not ascending"),
        (created, {"base_offset": 1}, "not ascending"),
        (created, {"last_offset": 0}, "not ascending"),
        (created, {"last_offset": 2**31}, "cannot span"),
        (_no_records(), {}, "needs base_offset"),
    ]:
        with pytest.raises(ValueError, match=says):
            encode_batch(records, Compression.NONE, **bounds)


def test_a_flipped_bit_never_decodes_into_something_else() -> None:
    batch = a_batch(ARecord(), ARecord(headers=[(b"h", b"x")]))
    expected = decoded(batch, base_offset=7)

    for position in range(len(batch)):
        changed = bytearray(batch)
        changed[position] ^= 0x04
        try:
            assert decoded(bytes(changed), base_offset=7) == expected  # the prefix: offsets come from the run
        except (InvalidBatch, ValueError):
            continue


def test_an_old_message_format_is_named() -> None:
    with pytest.raises(InvalidBatch) as raised:
        decoded(a_batch(magic=1))

    assert raised.value.fault is BatchFault.UNSUPPORTED_FORMAT


def test_large_records_survive() -> None:
    written = a_batch(ARecord(key=bytes(5 << 20), value=b"\xff" * (5 << 20)))
    records = decode_batches(written, 0, len(written), 0)

    encoded = encode_batch(records, Compression.LZ4)

    assert validate_produced(encoded, ROOMY).header.record_count == 1
    assert decode_batches(encoded, 0, len(encoded), 0).equals(records)
