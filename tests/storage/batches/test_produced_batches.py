"""Batches that are checked together get the same verdict as alone."""

import struct
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.batches.batch_validation import BatchLimits, InvalidBatch, validate_produced
from storage.batches.compression import compress
from storage.batches.produced_batches import BatchChecks, CheckedBatches, LoneCheck
from storage.batches.produced_batches import compressed as are_compressed
from storage.batches.record_batch import Compression, ValidBatch
from storage.segments import segment_batches
from storage.segments.segment_batches import column_of
from tests.agent.running import a_batch

LONE = LoneCheck()

PLAIN = [
    a_batch(b"one", b"two", b"three", timestamp_ms=1_000_000),
    a_batch(*[b"x" * 100] * 50, timestamp_ms=1_000_000, producer=(7, 0, 12)),
    a_batch(b"", timestamp_ms=2_000_000, producer=(7, 3, 0)),
    a_batch(b"one", b"two", timestamp_ms=1_000_000, keys=[b"k", b""]),
    a_batch(b"one", b"two", timestamp_ms=1_000_000, keys=[b"k", None]),
]


def with_crc(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def compressed(batch: bytes, compression: Compression) -> bytes:
    body = batch[:8] + b"\0\0\0\0" + batch[12:21] + struct.pack(">h", compression) + batch[23:61]
    body += compress(batch[61:], compression)
    return with_crc(body[:8] + struct.pack(">i", len(body) - 12) + body[12:])


@st.composite
def a_produced(draw: st.DrawFn) -> bytes:
    """A batch that is sound, compressed, or has some bytes changed, under a CRC that fits or not."""
    batch = draw(st.sampled_from(PLAIN))
    if draw(st.booleans()):
        batch = compressed(batch, draw(st.sampled_from(list(Compression))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.one_of(st.integers(0, 90), st.integers(0, len(batch) - 1))) % len(batch)
        batch = batch[:at] + bytes([draw(st.integers(0, 255))]) + batch[at + 1 :]
    if draw(st.booleans()) and len(batch) > 21:
        batch = with_crc(batch)
    return batch[: draw(st.sampled_from([len(batch), len(batch), len(batch), 70, 61, 60, 17, 0]))]


limits = st.builds(
    BatchLimits,
    max_message_bytes=st.sampled_from([100, 1 << 20]),
    max_decompressed_bytes=st.sampled_from([100, 1 << 20]),
    earliest_timestamp_ms=st.sampled_from([-1, 1_000_001]),
    latest_timestamp_ms=st.sampled_from([1_999_999, 253402300799999]),
    needs_keys=st.booleans(),
)


def judged(records: memoryview, limit: BatchLimits) -> Any:
    try:
        return validate_produced(records, limit)
    except InvalidBatch as invalid:
        return invalid


def as_value(answer: ValidBatch | InvalidBatch) -> Any:
    if isinstance(answer, InvalidBatch):
        return answer.fault, answer.message, answer.records
    return column_of(answer), bytes(answer.data)


def checks(
    frame: memoryview, places: list[tuple[int, int]], limits: list[BatchLimits], **bounds: int
) -> BatchChecks:  # fmt: skip
    asked = np.array(places, np.int64).reshape(-1, 2)
    return BatchChecks(
        frame,
        asked,
        are_compressed(frame, asked),
        limits,
        np.arange(len(places)),
        append_times_ms=[bounds.get("append_time_ms", -1)] * len(limits),
        compressions=[None] * len(limits),
        most_bytes=bounds.get("most_bytes", 1 << 30),
        most_bytes_of_one=bounds.get("most_bytes_of_one", 1 << 26),
    )


def checked(frame: memoryview, places: list[tuple[int, int]], limits: list[BatchLimits]) -> CheckedBatches:
    these = checks(frame, places, limits)
    assert these.step(1 << 30)
    return these.checked


def values_of(found: CheckedBatches) -> list[Any]:
    return [
        as_value(found.refused[index]) if index in found.refused else (tuple(column), bytes(data))
        for index, (column, data) in enumerate(zip(found.columns.T.tolist(), found.data, strict=True))
    ]


@given(asked=st.lists(st.tuples(a_produced(), limits), max_size=8), before=st.binary(max_size=9))
def test_batches_together_are_judged_as_each_alone(
    asked: list[tuple[bytes, BatchLimits]], before: bytes
) -> None:
    frame = memoryview(before + b"".join(batch for batch, _ in asked))
    places, at = [], len(before)
    for batch, _ in asked:
        places.append((at, at + len(batch)))
        at += len(batch)

    together = checked(frame, places, [limit for _, limit in asked])

    alone = [judged(frame[start:end], limit) for (start, end), (_, limit) in zip(places, asked, strict=True)]
    assert values_of(together) == [as_value(answer) for answer in alone]


@given(asked=st.lists(st.tuples(a_produced(), limits), min_size=1, max_size=3))
def test_a_lone_batch_is_judged_as_any_other(asked: list[tuple[bytes, BatchLimits]]) -> None:
    for batch, limit in asked:
        columns, among_others = LONE.columns(memoryview(batch), limit, 0), judged(memoryview(batch), limit)
        if columns is not None:
            assert (tuple(columns[:, 0].tolist()), batch) == as_value(among_others)


@pytest.mark.parametrize("batch", PLAIN)
def test_a_small_plain_batch_is_certainly_accepted(batch: bytes) -> None:
    assert LONE.columns(memoryview(batch), BatchLimits(), 0) is not None


def test_a_small_batch_of_a_compacted_topic_is_accepted_if_every_record_has_a_key() -> None:
    compacted = BatchLimits(needs_keys=True)
    batches = [a_batch(b"v", b"w", keys=keys) for keys in ([b"k", b""], [b"k", None], [None, b"k"])]

    accepted = [LONE.columns(memoryview(batch), compacted, 0) is not None for batch in batches]

    assert accepted == [True, False, False]


@pytest.mark.parametrize("compression", list(Compression))
def test_sound_batches_are_accepted_where_they_lie(compression: Compression) -> None:
    batches = [compressed(batch, compression) if compression else batch for batch in PLAIN]
    frame = memoryview(b"".join(batches))
    ends = [sum(len(batch) for batch in batches[: index + 1]) for index in range(len(batches))]

    found = checked(frame, list(zip([0, *ends], ends, strict=False)), [BatchLimits()] * len(batches))

    assert not found.refused
    assert [bytes(data) for data in found.data] == batches
    assert all(data.obj is frame.obj for data in found.data)


def test_a_refusal_keeps_no_checked_bytes_alive() -> None:
    """Frames of a kept exception hold decompressed bytes, and lead back to the exception through their
    callers.
    """
    damaged = bytearray(compressed(PLAIN[0], Compression.GZIP))
    damaged[-1] ^= 1
    for batch in (bytes(damaged), PLAIN[0][:-1]):
        found = checked(memoryview(batch), [(0, len(batch))], [BatchLimits(max_decompressed_bytes=8)])

        refused = found.refused[0]
        assert (refused.__traceback__, refused.__context__, refused.__cause__) == (None, None, None)


def in_a_row(batches: list[bytes]) -> tuple[memoryview, list[tuple[int, int]]]:
    ends = [sum(len(batch) for batch in batches[: index + 1]) for index in range(len(batches))]
    return memoryview(b"".join(batches)), list(zip([0, *ends], ends, strict=False))


@given(
    asked=st.lists(st.tuples(a_produced(), limits), max_size=8),
    steps=st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), max_size=4),
    append_time_ms=st.sampled_from([-1, 5]),
)
def test_batches_checked_in_steps_are_judged_as_at_once(
    asked: list[tuple[bytes, BatchLimits]], steps: list[tuple[int, bool]], append_time_ms: int
) -> None:
    frame, places = in_a_row([batch for batch, _ in asked])
    limits = [limit for _, limit in asked]
    at_once = checks(frame, places, limits, append_time_ms=append_time_ms)
    in_steps = checks(frame, places, limits, append_time_ms=append_time_ms)

    for plain_bytes, at_least_one in steps:
        in_steps.step(plain_bytes, at_least_one=at_least_one)
    while not in_steps.step(1):
        pass

    assert at_once.step(1 << 30)
    assert values_of(in_steps.checked) == values_of(at_once.checked)


def zeros(count: int) -> bytes:
    return compressed(a_batch(bytes(count)), Compression.ZSTD)


def test_a_step_decompresses_one_batch_beyond_its_bytes_or_none() -> None:
    frame, places = in_a_row([zeros(100_000)] * 3)
    these = checks(frame, places, [BatchLimits()] * 3)

    assert not these.step(50_000, at_least_one=False)
    assert not these.checked.columns.any()
    assert not these.step(50_000)
    assert np.count_nonzero(these.checked.columns[segment_batches.LENGTH]) == 1
    assert these.step(1 << 20)
    assert not these.checked.refused


def test_batches_that_together_decompress_to_too_much_are_refused_and_plain_ones_are_not() -> None:
    frame, places = in_a_row([zeros(100_000)] * 3 + [PLAIN[0]] + [zeros(10)])
    these = checks(frame, places, [BatchLimits()] * 5, most_bytes=250_000)

    assert these.step(1 << 30)

    assert these.checked.refused.keys() == {2, 4}
    assert "together decompress to more than the limit of 250000 bytes" in these.checked.refused[2].message


def test_a_topics_larger_limit_lets_no_compressed_batch_take_more_memory() -> None:
    frame, places = in_a_row([zeros(100_000), a_batch(bytes(100_000))])
    these = checks(frame, places, [BatchLimits(max_decompressed_bytes=1 << 20)] * 2, most_bytes_of_one=50_000)

    assert these.step(1 << 30)

    assert these.checked.refused.keys() == {0}
    assert "more than the limit of 50000 bytes" in these.checked.refused[0].message
