"""Which bytes of a Produce request are accepted, and the name of each fault."""

import struct
from collections.abc import Callable

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from storage.arrow.arrow_columns import decode_batches
from storage.batches.batch_validation import (
    LAST_TIMESTAMP_MS,
    BatchFault,
    BatchLimits,
    InvalidBatch,
    validate_produced,
)
from storage.batches.record_batch import Compression, read_header
from tests.storage.builders import LIMITS, ROOMY, ARecord, a_batch, record_bytes, varint


def fault_of(data: bytes, limits: BatchLimits = LIMITS) -> tuple[BatchFault, str]:
    with pytest.raises(InvalidBatch) as raised:
        validate_produced(data, limits)
    return raised.value.fault, raised.value.message


@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
@pytest.mark.parametrize("compression", list(Compression))
def test_what_other_clients_write_is_accepted(builder: type, compression: Compression) -> None:
    batch = builder(2, compression, False, 7, 0, 12, 1 << 20)
    for index in range(100):
        batch.append(
            index,
            5000 - index,
            None if index % 3 else b"k%d" % index,
            b"v" * index,
            [("a", b"1"), ("a", None)],
        )
    data = bytes(batch.build())

    valid = validate_produced(data, LIMITS)

    assert valid.header.compression is compression
    assert (valid.min_timestamp_ms, valid.max_timestamp_ms) == (4901, 5000)
    assert (valid.header.producer_id, valid.header.base_sequence, valid.header.record_count) == (7, 12, 100)
    assert valid.data == data


def test_raw_snappy_is_accepted_as_librdkafka_sends_it() -> None:
    plain = record_bytes(ARecord(value=b"v" * 1000), 0)

    valid = validate_produced(a_batch(attributes=2, body=bytes(cramjam.snappy.compress_raw(plain))), LIMITS)

    assert valid.header.compression is Compression.SNAPPY


def test_bytes_that_are_cut_short_are_corrupt() -> None:
    data = a_batch()

    for size in range(len(data)):
        assert fault_of(data[:size])[0] is BatchFault.CORRUPT


def test_a_flipped_bit_in_any_byte_is_refused_unless_it_is_outside_the_crc_and_the_lengths() -> None:
    data = a_batch(ARecord(), ARecord())
    leader_epoch = range(12, 16)

    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x01
        if position in leader_epoch:
            validate_produced(bytes(changed), LIMITS)
        else:
            fault_of(bytes(changed))


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_other_message_formats_are_unsupported(magic: int) -> None:
    assert fault_of(a_batch(magic=magic)) == (
        BatchFault.UNSUPPORTED_FORMAT,
        f"message format {magic}; only 2 is accepted",
    )


def test_a_wrong_crc_is_corrupt() -> None:
    data = bytearray(a_batch())
    data[17] ^= 0xFF

    assert fault_of(bytes(data))[0] is BatchFault.CORRUPT


def test_a_second_batch_for_the_partition_is_an_invalid_record() -> None:
    assert fault_of(a_batch() + a_batch()) == (
        BatchFault.INVALID_RECORD,
        "more than one record batch for a partition",
    )


def test_the_size_limit_counts_the_whole_batch() -> None:
    data = a_batch(ARecord(value=b"v" * 1000))

    validate_produced(data, BatchLimits(max_message_bytes=len(data)))

    assert fault_of(data, BatchLimits(max_message_bytes=len(data) - 1))[0] is BatchFault.TOO_LARGE


@pytest.mark.parametrize("code", [5, 6, 7])
def test_an_unknown_compression_is_named(code: int) -> None:
    fault, message = fault_of(a_batch(attributes=code))

    assert fault is BatchFault.UNKNOWN_COMPRESSION
    assert message.startswith(f"compression type {code}")
    assert ("encrypted" in message) == (code == 7)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (a_batch(attributes=0x10), BatchFault.INVALID_RECORD),
        (a_batch(attributes=0x20), BatchFault.CONTROL),
        (a_batch(attributes=0x30), BatchFault.CONTROL),
        (a_batch(attributes=0x08), BatchFault.INVALID_TIMESTAMP),
        (a_batch(record_count=0, last_offset_delta=-1, body=b""), BatchFault.INVALID_RECORD),
        (a_batch(record_count=-1, last_offset_delta=-2), BatchFault.INVALID_RECORD),
        (a_batch(record_count=2), BatchFault.INVALID_RECORD),
        (a_batch(last_offset_delta=5), BatchFault.INVALID_RECORD),
        (a_batch(record_count=2, last_offset_delta=1), BatchFault.INVALID_RECORD),
        (a_batch(ARecord(), ARecord(), record_count=1, last_offset_delta=0), BatchFault.INVALID_RECORD),
        (a_batch(record_count=2**31 - 1, last_offset_delta=2**31 - 2), BatchFault.INVALID_RECORD),
        (a_batch(producer=(-2, -1, -1)), BatchFault.INVALID_RECORD),
        (a_batch(producer=(5, -1, 0)), BatchFault.INVALID_RECORD),
        (a_batch(producer=(5, 0, -1)), BatchFault.INVALID_RECORD),
    ],
)
def test_headers_that_make_no_sense_are_refused(data: bytes, fault: BatchFault) -> None:
    assert fault_of(data)[0] is fault


def test_sequences_up_to_the_largest_are_accepted() -> None:
    valid = validate_produced(a_batch(producer=(2**63 - 1, 2**15 - 1, 2**31 - 1)), LIMITS)

    assert (valid.header.producer_epoch, valid.header.base_sequence) == (2**15 - 1, 2**31 - 1)


def _framed(body: bytes) -> bytes:
    return varint(len(body)) + body


_FIELDS = b"\0" + varint(0) + varint(0)


@pytest.mark.parametrize(
    ("encoded", "says"),
    [
        (b"", "fewer records"),
        (b"\x80\x80\x80\x80\x80\x01", "fewer records"),  # a varint of six bytes
        (b"\xff\xff\xff\xff\x1f", "fewer records"),  # five bytes, beyond 32 bits
        (varint(-1), "length does not match"),
        (varint(0), "length does not match"),
        (varint(1000), "length does not match"),
        (_framed(b"\0" + b"\xff" * 10), "length does not match"),  # a timestamp delta of eleven bytes
        (_framed(b"\0" + b"\xff" * 9 + b"\x02"), "length does not match"),  # ten bytes, beyond 64 bits
        (_framed(b"\0" + varint(0) + varint(1) + varint(-1) * 2 + varint(0)), "offset delta"),
        (_framed(b"\0" + varint(0) + varint(-1) + varint(-1) * 2 + varint(0)), "offset delta"),
        (_framed(_FIELDS + varint(-2) + varint(-1) + varint(0)), "length of a key"),
        (_framed(_FIELDS + varint(50) + varint(-1) + varint(0)), "length of a key"),
        (_framed(_FIELDS + varint(2**31 - 1) + varint(-1) + varint(0)), "length of a key"),
        (_framed(_FIELDS + varint(-1) + varint(-(2**31)) + varint(0)), "length of a key"),
        (_framed(_FIELDS + varint(-1) + varint(-1)), "count of headers"),
        (_framed(_FIELDS + varint(-1) + varint(-1) + varint(-1)), "count of headers"),
        (_framed(_FIELDS + varint(-1) + varint(-1) + varint(2**31 - 1)), "count of headers"),
        (_framed(_FIELDS + varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1)), "length of a key"),
        (
            _framed(_FIELDS + varint(-1) + varint(-1) + varint(1) + varint(1) + b"a" + varint(9)),
            "length of a key",
        ),
        (_framed(_FIELDS + varint(-1) + varint(-1) + varint(0) + b"\0"), "length does not match"),
        (record_bytes(ARecord(), 0) + b"\0", "bytes follow"),
    ],
)
def test_a_record_whose_structure_is_wrong_is_refused(encoded: bytes, says: str) -> None:
    fault, message = fault_of(a_batch(ARecord(encoded=encoded)))

    assert fault is BatchFault.INVALID_RECORD
    assert says in message
    assert "record 0" in message or "record 1" in message


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_records_are_checked_inside_compressed_bytes_too(compression: Compression) -> None:
    batch = AiokafkaBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for index in range(10):
        batch.append(index, 0, b"k", b"v" * 50, [])
    data = bytes(batch.build())
    header = read_header(data)

    fault, message = fault_of(
        a_batch(
            attributes=compression, body=data[61:], record_count=11, last_offset_delta=10, base_timestamp_ms=0
        )
    )

    assert header.compression is compression
    assert (fault, message) == (
        BatchFault.INVALID_RECORD,
        "record 10: there are fewer records than the header counts",
    )


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_bytes_that_are_not_compressed_as_declared_are_refused(compression: Compression) -> None:
    for body in (b"", b"\0", b"not compressed at all, just words" * 9, bytes(100), b"\xff" * 100):
        assert fault_of(a_batch(attributes=compression, body=body))[0] is BatchFault.INVALID_RECORD


def _bomb_xerial(size: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 16)))
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * (size >> 16)


def _bomb_lz4(size: int) -> bytes:
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    compressor.compress(bytes(size))
    return bytes(compressor.finish())


@pytest.mark.parametrize(
    ("compression", "bomb"),
    [
        (Compression.GZIP, lambda size: bytes(cramjam.gzip.compress(bytes(size)))),
        (Compression.SNAPPY, lambda size: bytes(cramjam.snappy.compress_raw(bytes(size)))),
        (Compression.SNAPPY, _bomb_xerial),
        (Compression.LZ4, _bomb_lz4),
        (Compression.ZSTD, lambda size: bytes(cramjam.zstd.compress(bytes(size)))),
    ],
)
def test_a_decompression_bomb_is_an_error(compression: Compression, bomb: Callable[[int], bytes]) -> None:
    limits = BatchLimits(max_message_bytes=8 << 20, max_decompressed_bytes=1 << 20)

    fault, message = fault_of(a_batch(attributes=compression, body=bomb(8 << 20)), limits)

    assert fault is BatchFault.TOO_LARGE
    assert "decompresses to more than the limit of 1048576 bytes" in message


def test_a_declared_size_is_not_believed() -> None:
    declares_4_gib = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    believable_but_false = bytes([0x80, 0x80, 0x40]) + b"\0" * 20  # 1 MiB from 20 bytes

    assert fault_of(a_batch(attributes=2, body=declares_4_gib))[0] is BatchFault.TOO_LARGE
    assert fault_of(a_batch(attributes=2, body=believable_but_false))[0] is BatchFault.INVALID_RECORD


def test_lz4_that_kafkas_java_client_cannot_read_is_refused() -> None:
    linked = bytes(cramjam.lz4.compress(record_bytes(ARecord(), 0)))

    assert "depend on each other" in fault_of(a_batch(attributes=3, body=linked))[1]


def test_the_decompressed_limit_is_exact() -> None:
    plain = record_bytes(ARecord(value=b"v" * 5000), 0)
    data = a_batch(attributes=4, body=bytes(cramjam.zstd.compress(plain)))

    validate_produced(data, BatchLimits(max_decompressed_bytes=len(plain)))

    assert fault_of(data, BatchLimits(max_decompressed_bytes=len(plain) - 1))[0] is BatchFault.TOO_LARGE


@pytest.mark.parametrize(
    ("base", "delta"),
    [
        (-2, 0),
        (LAST_TIMESTAMP_MS, 1),
        (0, -2),
        (0, 2**63 - 1),
        (0, -(2**63)),
        (LAST_TIMESTAMP_MS + 1, -5),
        (-5, 9),
    ],
)
def test_timestamps_that_arrow_cannot_hold_are_invalid(base: int, delta: int) -> None:
    data = a_batch(ARecord(), ARecord(timestamp_delta=delta), base_timestamp_ms=base, max_timestamp_ms=0)

    assert fault_of(data)[0] is BatchFault.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    ("base", "delta"), [(-1, 0), (LAST_TIMESTAMP_MS, 0), (0, LAST_TIMESTAMP_MS), (5, -6)]
)
def test_timestamps_at_the_bounds_are_accepted(base: int, delta: int) -> None:
    data = a_batch(ARecord(), ARecord(timestamp_delta=delta), base_timestamp_ms=base)

    valid = validate_produced(data, LIMITS)

    assert (valid.min_timestamp_ms, valid.max_timestamp_ms) == (
        min(base, base + delta),
        max(base, base + delta),
    )


def test_records_with_timestamps_out_of_the_bounds_given_are_named() -> None:
    records = [ARecord(timestamp_delta=delta) for delta in (0, -1001, 1000, 3000, -1000)]
    data = a_batch(*records, base_timestamp_ms=1_000_000)
    limits = BatchLimits(earliest_timestamp_ms=999_000, latest_timestamp_ms=1_001_000)

    with pytest.raises(InvalidBatch) as refused:
        validate_produced(data, limits)

    assert refused.value.fault is BatchFault.INVALID_TIMESTAMP
    assert [record.index for record in refused.value.records] == [1, 3]
    assert "1003000" in refused.value.records[1].message


def test_a_record_without_a_timestamp_is_never_too_old() -> None:
    data = a_batch(ARecord(timestamp_delta=-6), ARecord(), base_timestamp_ms=5)

    assert validate_produced(data, BatchLimits(earliest_timestamp_ms=4)).min_timestamp_ms == -1


@pytest.mark.parametrize("compression", list(Compression))
def test_a_compacted_topic_takes_no_record_without_a_key(compression: Compression) -> None:
    builder = KafkaPythonBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for index, key in enumerate((None, b"k", b"", None)):
        builder.append(index, 5, key, b"v", [])
    data = bytes(builder.build())

    with pytest.raises(InvalidBatch) as refused:
        validate_produced(data, BatchLimits(needs_keys=True))

    assert refused.value.fault is BatchFault.NO_KEY
    assert [record.index for record in refused.value.records] == [0, 3]
    validate_produced(data, LIMITS)


def test_a_compacted_topic_takes_empty_keys_and_tombstones() -> None:
    data = a_batch(ARecord(key=b""), ARecord(key=b"k", value=None))

    assert validate_produced(data, BatchLimits(needs_keys=True)).header.record_count == 2


def test_a_bounded_number_of_faulty_records_is_named() -> None:
    data = a_batch(*[ARecord()] * 1500, base_timestamp_ms=5)

    with pytest.raises(InvalidBatch) as refused:
        validate_produced(data, BatchLimits(earliest_timestamp_ms=6))
    with pytest.raises(InvalidBatch) as without_keys:
        validate_produced(a_batch(*[ARecord(key=None)] * 1500), BatchLimits(needs_keys=True))

    assert len(refused.value.records) == len(without_keys.value.records) == 1000


@pytest.mark.parametrize("wrong", [-1, 0, 2**62])
def test_a_wrong_max_timestamp_is_corrected_as_a_kafka_broker_does(wrong: int) -> None:
    data = a_batch(ARecord(), ARecord(timestamp_delta=77), max_timestamp_ms=wrong)

    valid = validate_produced(data, LIMITS)

    assert valid.header.max_timestamp_ms == valid.max_timestamp_ms == 1_700_000_000_077
    assert validate_produced(valid.data, LIMITS).data == valid.data
    assert bytes(valid.data[61:]) == data[61:]


@settings(max_examples=200, deadline=None)
@given(key=st.one_of(st.binary(max_size=12), st.text(max_size=6).map(str.encode)))
def test_header_keys_are_utf8_exactly_where_python_says_so(key: bytes) -> None:
    data = a_batch(ARecord(headers=[(key, b"v")]))
    try:
        key.decode()
    except UnicodeDecodeError:
        assert fault_of(data)[0] is BatchFault.INVALID_RECORD
    else:
        validate_produced(data, LIMITS)


@pytest.mark.parametrize(
    "key",
    [
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\xaf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xc3",
    ],
)
def test_overlong_surrogate_and_cut_utf8_is_refused(key: bytes) -> None:
    assert "not UTF-8" in fault_of(a_batch(ARecord(headers=[(b"ok", None), (key, b"v")])))[1]


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=80), count=st.integers(1, 4), compression=st.sampled_from(list(Compression)))
def test_random_bytes_are_accepted_only_if_they_decode(
    body: bytes, count: int, compression: Compression
) -> None:
    data = a_batch(body=body, record_count=count, last_offset_delta=count - 1, attributes=compression)
    try:
        valid = validate_produced(data, LIMITS)
    except InvalidBatch:
        return
    decode_batches(valid.data, 0, len(valid.data), 0).validate(full=True)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_record_is_accepted_only_if_it_decodes(data: st.DataObject) -> None:
    records = [ARecord(headers=[(b"h", b"x")]), ARecord(key=None, value=b""), ARecord(timestamp_delta=300)]
    body = bytearray(b"".join(record_bytes(record, index) for index, record in enumerate(records)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    mutated = a_batch(*records, body=bytes(body))
    try:
        valid = validate_produced(mutated, LIMITS)
    except InvalidBatch:
        return
    decoded = decode_batches(valid.data, 0, len(valid.data), 0)
    decoded.validate(full=True)
    assert decoded.num_rows == 3


def test_records_of_one_byte_to_many_mebibytes_are_accepted() -> None:
    for size in (0, 1, 127, 128, 1 << 20, 20 << 20):
        valid = validate_produced(a_batch(ARecord(key=None, value=bytes(size))), ROOMY)
        assert valid.header.size_bytes >= size
