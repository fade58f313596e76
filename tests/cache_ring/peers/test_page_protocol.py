"""Frames between peers: what is encoded is decoded, and other bytes are refused."""

import contextlib
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_ring.peers.page_protocol import (
    LENGTH_BYTES,
    MAX_SMALL_FRAME_BYTES,
    ProtocolViolation,
    RangeFound,
    RangeLoading,
    RangeRefused,
    ReadRange,
    Refusal,
    RunsCommitted,
    Subscribe,
    decode,
    encode_committed,
    encode_found,
    encode_loading,
    encode_read,
    encode_refused,
    encode_subscribe,
    frame_length,
    range_checksum,
)
from sequencer.commits.coordinates import RunCoordinate
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, TopicId
from tests.cache_ring.builders import ORDERS, a_run

KEYS = st.text(min_size=1, max_size=80).map(ObjectKey)


@st.composite
def runs(draw: st.DrawFn) -> RunCoordinate:
    base = draw(st.integers(0, 2**62))
    position = draw(st.integers(0, 2**40))
    length = draw(st.integers(1, 2**31))
    return RunCoordinate(
        topic_id=TopicId(UUID(int=draw(st.integers(0, 2**128 - 1)))),
        partition=Partition(draw(st.integers(0, 2**31 - 1))),
        base_offset=Offset(base),
        last_offset=Offset(base + draw(st.integers(0, 2**31))),
        object_key=draw(KEYS),
        object_size_bytes=position + length,
        position=BytePosition(position),
        length=length,
        min_timestamp_ms=draw(st.integers(-1, 2**53)),
        max_timestamp_ms=draw(st.integers(-1, 2**53)),
    )


def body(frame: bytes) -> bytes:
    assert frame_length(frame[:LENGTH_BYTES], MAX_SMALL_FRAME_BYTES) == len(frame) - LENGTH_BYTES
    return frame[LENGTH_BYTES:]


@given(KEYS, st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_read_survives_encoding(key: ObjectKey, start: int, end: int) -> None:
    request = ReadRange(object_key=key, object_size_bytes=2**62, start=start, end=end)

    assert decode(body(encode_read(request))) == request


@given(st.binary(max_size=1000))
def test_found_bytes_survive_encoding_with_their_checksum(data: bytes) -> None:
    request = ReadRange(object_key=ObjectKey("key"), object_size_bytes=1000, start=0, end=len(data))

    found = decode(body(b"".join(encode_found(request, data))))

    assert found == RangeFound(data=memoryview(data), checksum=range_checksum(request, data))


def test_the_checksum_detects_bytes_of_another_range_or_object() -> None:
    request = ReadRange(object_key=ObjectKey("key"), object_size_bytes=1000, start=0, end=10)
    shifted = ReadRange(object_key=ObjectKey("key"), object_size_bytes=1000, start=1, end=11)
    other = ReadRange(object_key=ObjectKey("yek"), object_size_bytes=1000, start=0, end=10)

    assert len({range_checksum(one, b"0123456789") for one in (request, shifted, other)}) == 3


def test_signs_of_life_and_refusals_survive_encoding() -> None:
    assert decode(body(encode_loading())) == RangeLoading()
    for reason in Refusal:
        assert decode(body(encode_refused(reason))) == RangeRefused(reason=reason)


@given(st.lists(runs(), min_size=1, max_size=20))
@settings(max_examples=50)
def test_committed_runs_survive_encoding(committed: list[RunCoordinate]) -> None:
    frames = encode_committed(committed)

    decoded = [decode(body(frame)) for frame in frames]

    assert [
        run for message in decoded if isinstance(message, RunsCommitted) for run in message.runs
    ] == committed


def test_many_runs_and_partitions_take_several_frames_of_bounded_size() -> None:
    many = [a_run(number, number, partition=number) for number in range(20_000)]
    keys = [(ORDERS, Partition(number)) for number in range(120_000)]

    committed, subscribed = encode_committed(many), encode_subscribe(5000, keys)

    assert all(len(frame) <= MAX_SMALL_FRAME_BYTES + LENGTH_BYTES for frame in committed + subscribed)
    assert [run for frame in committed for run in _runs(frame)] == many
    assert [key for frame in subscribed for key in _partitions(frame)] == keys


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_are_a_message_or_a_violation(frame: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        decode(frame)


@given(st.lists(runs(), min_size=1, max_size=3), st.data())
@settings(max_examples=100)
def test_a_frame_cut_short_is_a_violation(committed: list[RunCoordinate], data: st.DataObject) -> None:
    whole = body(encode_committed(committed)[0])

    with pytest.raises(ProtocolViolation):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("prefix", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET "])
def test_a_length_out_of_bounds_is_a_violation(prefix: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        frame_length(prefix, MAX_SMALL_FRAME_BYTES)


def _runs(frame: bytes) -> tuple[RunCoordinate, ...]:
    message = decode(body(frame))
    assert isinstance(message, RunsCommitted)
    return message.runs


def _partitions(frame: bytes) -> tuple[tuple[TopicId, Partition], ...]:
    message = decode(body(frame))
    assert isinstance(message, Subscribe)
    return message.partitions
