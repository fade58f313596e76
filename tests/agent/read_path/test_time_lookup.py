"""A time is looked up by the headers of batches. Only the deciding batch is decompressed."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.read_path.time_lookup import TimedOffset, first_of_run
from cache_ring.pages.run_bytes import RunBytes
from cache_ring.pages.store_pages import DamagedPage
from sequencer.commits.coordinates import RunCoordinate
from storage.batches.compression import compress
from storage.batches.record_batch import (
    HEADER_BYTES,
    Compression,
    ValidBatch,
    read_header,
    with_log_append_time,
)
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, TopicId
from tests.faults.wire import Batch, varint

BASE_OFFSET = 1_000
NO_LIMIT = 1 << 30


def a_record(delta: int, time_delta: int) -> bytes:
    body = b"\x00" + varint(time_delta) + varint(delta) + varint(-1) + varint(1) + b"v" + b"\x00"
    return varint(len(body)) + body


def of_times(
    times_ms: Sequence[int], compression: Compression = Compression.NONE, *, append_ms: int = -1
) -> bytes:
    records = b"".join(a_record(delta, time_ms - times_ms[0]) for delta, time_ms in enumerate(times_ms))
    batch = Batch(
        records=compress(records, compression),
        attributes=compression,
        count=len(times_ms),
        base_timestamp=times_ms[0],
        max_timestamp=max(times_ms),
    ).encoded()
    if append_ms < 0:
        return batch
    valid = ValidBatch(
        header=read_header(batch), data=memoryview(batch), min_timestamp_ms=0, max_timestamp_ms=max(times_ms)
    )
    return bytes(with_log_append_time(valid, append_ms).data)


def a_run(*batches: bytes) -> RunBytes:
    data = b"".join(batches)
    records = sum(read_header(batch).last_offset_delta + 1 for batch in batches)
    run = RunCoordinate(
        topic_id=TopicId(UUID(int=1)),
        partition=Partition(0),
        base_offset=Offset(BASE_OFFSET),
        last_offset=Offset(BASE_OFFSET + records - 1),
        object_key=ObjectKey("a/segment"),
        object_size_bytes=len(data),
        position=BytePosition(0),
        length=len(data),
        min_timestamp_ms=0,
        max_timestamp_ms=1 << 40,
    )
    found = RunBytes.of(run, [memoryview(data)])
    assert found is not None
    return found


def found_in(
    run: RunBytes, timestamp_ms: int, log_start_offset: int = 0, most: int = NO_LIMIT
) -> TimedOffset | None:
    return first_of_run(run, timestamp_ms, log_start_offset, most)


def unreadable(batch: bytes) -> bytes:
    """Returns the batch with only its header intact."""
    return batch[:HEADER_BYTES] + b"\xff" * (len(batch) - HEADER_BYTES)


times = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(
    batches=st.lists(
        st.tuples(times, st.sampled_from(list(Compression)), st.integers(-30, 50)), min_size=1, max_size=5
    ),
    timestamp_ms=st.integers(-1, 51),
    log_start=st.integers(0, 30),
)
def test_the_first_record_since_a_time_is_found(
    batches: list[tuple[list[int], Compression, int]], timestamp_ms: int, log_start: int
) -> None:
    run = a_run(
        *[of_times(each, compression, append_ms=append_ms) for each, compression, append_ms in batches]
    )
    log_start_offset = BASE_OFFSET + log_start
    records = [time_ms if append_ms < 0 else append_ms for each, _, append_ms in batches for time_ms in each]

    found = found_in(run, timestamp_ms, log_start_offset)

    expected = next(
        (
            TimedOffset(offset=offset, timestamp_ms=time_ms)
            for offset, time_ms in enumerate(records, BASE_OFFSET)
            if time_ms >= timestamp_ms and offset >= log_start_offset
        ),
        None,
    )
    assert found == expected


def test_only_the_deciding_batch_is_decompressed() -> None:
    before, deciding, after = ([10, 20], [30, 50, 40], [60, 70])
    run = a_run(
        unreadable(of_times(before, Compression.ZSTD)),
        of_times(deciding, Compression.ZSTD),
        unreadable(of_times(after, Compression.ZSTD)),
    )

    assert found_in(run, 35) == TimedOffset(offset=BASE_OFFSET + 3, timestamp_ms=50)


@pytest.mark.parametrize(
    "batch", [of_times([30], Compression.ZSTD), of_times([1, 2], Compression.ZSTD, append_ms=30)]
)
def test_a_batch_whose_header_shows_the_record_is_not_decompressed(batch: bytes) -> None:
    assert found_in(a_run(unreadable(batch)), 30) == TimedOffset(offset=BASE_OFFSET, timestamp_ms=30)


def test_a_batch_too_large_to_decompress_is_answered_with_its_first_offset() -> None:
    run = a_run(of_times([1] * 5), of_times([10, 20, 30], Compression.ZSTD))

    assert found_in(run, 15, most=8) == TimedOffset(offset=BASE_OFFSET + 5, timestamp_ms=30)


def test_a_damaged_batch_is_no_answer() -> None:
    with pytest.raises(DamagedPage):
        found_in(a_run(unreadable(of_times([1, 2]))), 1)
