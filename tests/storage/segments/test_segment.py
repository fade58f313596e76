"""The segment: sealed, read back, and every change to it detected."""

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.batches.batch_validation import validate_produced
from storage.identifiers import BytePosition, Offset, Partition
from storage.segments.segment import (
    MERGED_VERSION,
    TRAILER_BYTES,
    CorruptSegment,
    FooterRun,
    SegmentFooter,
    empty_segment,
    footer_bytes,
    footer_range,
    header_bytes,
    read_footer,
    seal_segment,
    verify_segment,
)
from storage.segments.segment_batches import PendingBatch, PendingBatches
from tests.storage.builders import (
    LIMITS,
    ORDERS,
    PAYMENTS,
    SEGMENT_ID,
    ARecord,
    a_batch,
    a_pending,
    a_segment,
)


def test_batches_lie_in_partition_order_and_in_arrival_order_within_a_partition() -> None:
    pending = [
        a_pending(PAYMENTS, 0, a_batch(ARecord(value=b"a"))),
        a_pending(ORDERS, 1, a_batch(ARecord(value=b"bb"))),
        a_pending(ORDERS, 0, a_batch(ARecord(value=b"ccc"))),
        a_pending(ORDERS, 1, a_batch(ARecord(value=b"dddd"))),
    ]

    sealed, data = a_segment(*pending)

    assert sealed.order.tolist() == [2, 1, 3, 0]
    assert [(run.topic_id, run.partition) for run in sealed.footer.runs] == [
        (ORDERS, 0),
        (ORDERS, 1),
        (PAYMENTS, 0),
    ]
    for place, index in zip(sealed.placed, sealed.order, strict=True):
        assert data[place.position : place.position + place.length] == pending[index].batch.data
    assert sealed.size_bytes == len(data)


def test_a_run_sums_up_its_batches() -> None:
    early = a_batch(ARecord(), ARecord(timestamp_delta=10), base_timestamp_ms=500)
    late = a_batch(ARecord(), base_timestamp_ms=9000, producer=(5, 1, 77))

    sealed, _ = a_segment(a_pending(data=late), a_pending(data=early))

    (run,) = sealed.footer.runs
    assert (run.record_count, run.length) == (3, len(early) + len(late))
    assert (run.min_timestamp_ms, run.max_timestamp_ms) == (500, 9000)
    assert (
        sealed.placed[0].producer_id,
        sealed.placed[0].producer_epoch,
        sealed.placed[0].base_sequence,
    ) == (5, 1, 77)


def test_sealing_copies_no_record_bytes() -> None:
    pending = a_pending()

    sealed, _ = a_segment(pending)

    assert sealed.chunks[1] is pending.batch.data


def test_a_footer_is_read_with_two_range_reads() -> None:
    sealed, data = a_segment(a_pending(), a_pending(PAYMENTS, 3), writer="agent-é")

    start, end = footer_range(data[-TRAILER_BYTES:], len(data))

    assert read_footer(data[start:end]) == sealed.footer
    assert read_footer(data) == verify_segment(data) == sealed.footer


def test_a_flipped_bit_in_any_byte_is_noticed() -> None:
    _, data = a_segment(a_pending(), a_pending(PAYMENTS, 3))

    for position in range(len(data)):
        for bit in (0x01, 0x80):
            changed = bytearray(data)
            changed[position] ^= bit
            with pytest.raises(CorruptSegment):
                verify_segment(bytes(changed))


def test_a_segment_cut_or_extended_anywhere_is_noticed() -> None:
    _, data = a_segment()

    for size in range(len(data)):
        with pytest.raises(CorruptSegment):
            verify_segment(data[:size])
    for changed in (data + b"\0", b"\0" + data, data + data):
        with pytest.raises(CorruptSegment):
            verify_segment(changed)


def test_an_error_says_what_is_wrong_and_where() -> None:
    sealed, data = a_segment(a_pending(), a_pending(PAYMENTS, 3))
    run = sealed.footer.runs[1]
    changed = bytearray(data)
    changed[run.position + 70] ^= 1

    with pytest.raises(CorruptSegment, match=f"the checksum of run {PAYMENTS}/3 is wrong") as raised:
        verify_segment(bytes(changed))

    assert raised.value.position == run.position


def test_another_format_version_is_named() -> None:
    _, data = a_segment()

    with pytest.raises(CorruptSegment, match="segment format version 3; this reader knows 1 and 2"):
        verify_segment(data[:9] + b"\x03" + data[10:])


def test_a_footer_with_a_valid_checksum_is_still_checked_for_sense() -> None:
    sealed, data = a_segment(a_pending(), a_pending(PAYMENTS, 3))
    wrong_count = _resealed(data, sealed.footer.runs[0].record_count + 1)

    with pytest.raises(CorruptSegment, match="holds 1 records, its footer says 2"):
        verify_segment(wrong_count)


def _resealed(data: bytes, first_record_count: int) -> bytes:
    """Returns the segment with another record count in its first run, and a footer checksum that fits."""
    start, _ = footer_range(data, len(data))
    tail = bytearray(data[start:])
    struct.pack_into(">Q", tail, 22 + len("agent-1") + 36, first_record_count)
    checked_bytes = len(tail) - 12
    struct.pack_into(">I", tail, checked_bytes, crc32c(bytes(tail[:checked_bytes])))
    return data[:start] + bytes(tail)


def a_merged_segment() -> tuple[SegmentFooter, bytes]:
    """Three runs: two of one partition, with a gap of offsets between them."""
    records = [a_batch(ARecord()), a_batch(ARecord(), ARecord()), a_batch(ARecord())]
    header = header_bytes(SEGMENT_ID, "merge", MERGED_VERSION)
    position, runs = len(header), []
    places = [(ORDERS, 100, 100), (ORDERS, 150, 151), (PAYMENTS, 7, 7)]
    for data, (topic_id, base_offset, last_offset) in zip(records, places, strict=True):
        runs.append(
            FooterRun(
                topic_id=topic_id,
                partition=Partition(0),
                position=BytePosition(position),
                length=len(data),
                record_count=last_offset - base_offset + 1,
                min_timestamp_ms=1,
                max_timestamp_ms=1,
                crc32c=crc32c(data),
                base_offset=Offset(base_offset),
                last_offset=Offset(last_offset),
            )
        )
        position += len(data)
    footer = SegmentFooter(segment_id=SEGMENT_ID, writer="merge", runs=tuple(runs), version=MERGED_VERSION)
    return footer, b"".join([header, *records, footer_bytes(footer, position)])


def test_a_merged_segments_footer_says_which_offsets_it_holds() -> None:
    footer, data = a_merged_segment()

    assert verify_segment(data) == read_footer(data) == footer


def test_a_flipped_bit_in_any_byte_of_a_merged_segment_is_noticed() -> None:
    _, data = a_merged_segment()

    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        with pytest.raises(CorruptSegment):
            verify_segment(bytes(changed))


@pytest.mark.parametrize(("run", "offsets"), [(1, (100, 101)), (0, (100, 101)), (2, (7, 8))])
def test_a_merged_segment_whose_offsets_overlap_or_miscount_is_refused(
    run: int, offsets: tuple[int, int]
) -> None:
    footer, data = a_merged_segment()
    changed = replace(footer.runs[run], base_offset=Offset(offsets[0]), last_offset=Offset(offsets[1]))
    wrong = replace(footer, runs=(*footer.runs[:run], changed, *footer.runs[run + 1 :]))
    start, _ = footer_range(data, len(data))

    with pytest.raises(CorruptSegment, match=r"out of order|offsets"):
        verify_segment(data[:start] + footer_bytes(wrong, start))


def test_an_empty_segment_can_be_read_and_is_no_valid_segment() -> None:
    empty = empty_segment(SEGMENT_ID)

    footer = read_footer(empty)
    with pytest.raises(CorruptSegment, match="first run"):
        verify_segment(empty)

    assert (footer.segment_id, footer.runs) == (SEGMENT_ID, ())


def test_a_segment_without_batches_or_with_an_endless_writer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        seal_segment(SEGMENT_ID, "agent-1", PendingBatches.of([]))
    with pytest.raises(ValueError, match="at most 255 bytes"):
        seal_segment(SEGMENT_ID, "x" * 256, PendingBatches.of([a_pending()]))


_BATCHES = [
    validate_produced(a_batch(*[ARecord(value=bytes(size))] * count), LIMITS)
    for size in (0, 99)
    for count in (1, 3)
]
_pending = st.builds(
    PendingBatch,
    topic_id=st.sampled_from([ORDERS, PAYMENTS]),
    partition=st.integers(0, 3).map(Partition),
    batch=st.sampled_from(_BATCHES),
)


@settings(max_examples=60, deadline=None)
@given(pending=st.lists(_pending, min_size=1, max_size=12), writer=st.text(max_size=40))
def test_any_segment_reads_back_as_it_was_sealed(pending: list[PendingBatch], writer: str) -> None:
    sealed = seal_segment(SEGMENT_ID, writer, PendingBatches.of(pending))
    data = b"".join(sealed.chunks)

    assert verify_segment(data) == sealed.footer
    assert sorted(sealed.order) == list(range(len(pending)))
    keys = [(pending[i].topic_id.bytes, pending[i].partition, i) for i in sealed.order]
    assert keys == sorted(keys)
    assert sum(run.record_count for run in sealed.footer.runs) == sum(p.record_count for p in sealed.placed)
