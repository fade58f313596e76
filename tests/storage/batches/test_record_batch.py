"""The record batch's header, and the fields that are patched."""

import struct

import pytest

from storage.batches.batch_validation import check_crc, validate_produced
from storage.batches.record_batch import (
    PREFIX_BYTES,
    Compression,
    TimestampType,
    index_batches,
    patched_prefix,
    read_header,
    with_log_append_time,
    write_header,
)
from tests.storage.builders import LIMITS, ARecord, a_batch


def test_a_header_is_read_field_by_field() -> None:
    data = a_batch(
        ARecord(), ARecord(timestamp_delta=5), base_offset=7, base_timestamp_ms=1000, producer=(9, 3, 40)
    )

    header = read_header(b"xx" + data, 2)

    assert (header.base_offset, header.size_bytes, header.leader_epoch, header.magic) == (7, len(data), -1, 2)
    assert (header.last_offset_delta, header.record_count) == (1, 2)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1000, 1005)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 40)
    assert write_header(header) == data[:61]


def test_attributes_are_recognised_bit_by_bit() -> None:
    for compression in Compression:
        assert read_header(a_batch(attributes=compression)).compression is compression
    assert read_header(a_batch(attributes=8)).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert read_header(a_batch(attributes=16)).is_transactional
    assert read_header(a_batch(attributes=32)).is_control
    assert read_header(a_batch(attributes=64)).has_delete_horizon
    plain = read_header(a_batch())
    assert [plain.is_transactional, plain.is_control, plain.has_delete_horizon] == [False, False, False]


@pytest.mark.parametrize("position", [-1, 1, 1000])
def test_a_header_that_is_not_there_is_an_error(position: int) -> None:
    with pytest.raises(ValueError, match="61-byte header"):
        read_header(a_batch()[:61], position)


def test_a_patched_prefix_changes_the_offset_and_nothing_that_the_crc_covers() -> None:
    data = a_batch(ARecord(), ARecord())

    moved = patched_prefix(1_000_000, len(data)) + data[PREFIX_BYTES:]

    assert read_header(moved).base_offset == 1_000_000
    assert read_header(moved).leader_epoch == 0
    check_crc(memoryview(moved), read_header(moved))


def test_log_append_time_sets_one_time_for_all_records_and_a_new_crc() -> None:
    batch = validate_produced(a_batch(ARecord(), ARecord(timestamp_delta=9)), LIMITS)

    stamped = with_log_append_time(batch, 1234)

    assert read_header(stamped.data) == stamped.header
    assert stamped.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (stamped.min_timestamp_ms, stamped.max_timestamp_ms, stamped.header.max_timestamp_ms) == (
        1234,
        1234,
        1234,
    )
    assert stamped.header.crc != batch.header.crc
    assert stamped.data[61:] == batch.data[61:]


def test_batches_back_to_back_are_indexed() -> None:
    first, second = a_batch(ARecord(), ARecord()), a_batch(ARecord(value=b"x" * 100))
    data = b"junk" + first + second

    index = index_batches(data, 4, len(data))

    assert index["position"].tolist() == [4, 4 + len(first)]
    assert index["size_bytes"].tolist() == [len(first), len(second)]
    assert index["last_offset_delta"].tolist() == [1, 0]
    assert len(index_batches(data, 4, 4)) == 0


@pytest.mark.parametrize("cut", [1, 20, 60, 62])
def test_batches_that_do_not_fit_their_range_are_an_error(cut: int) -> None:
    data = a_batch() + a_batch(ARecord(value=b"x" * 100))

    with pytest.raises(ValueError, match="no record batch fits at position"):
        index_batches(data, 0, len(data) - cut)


@pytest.mark.parametrize("length", [-(2**31), -12, 0, 48, 2**31 - 1])
def test_a_batch_length_that_lies_is_an_error(length: int) -> None:
    data = bytearray(a_batch())
    struct.pack_into(">i", data, 8, length)

    with pytest.raises(ValueError, match="no record batch fits at position 0"):
        index_batches(data, 0, len(data))


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 10_000), (6, 5)])
def test_a_range_outside_the_buffer_is_an_error(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="does not lie within"):
        index_batches(a_batch(), start, end)
