"""Frames come out whole and in order, whatever the chunks are. Bytes that cannot be a frame are an error at
once.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.transport.frames import SMALLEST_FRAME_BYTES, BadFrame, FrameReader, NeedData

MAX_FRAME_BYTES = 300


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def frames_of(reader: FrameReader) -> list[bytes]:
    found = []
    while not isinstance(frame := reader.next_frame(), NeedData):
        found.append(bytes(frame))
    return found


@given(
    frames=st.lists(st.binary(min_size=SMALLEST_FRAME_BYTES, max_size=MAX_FRAME_BYTES), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
)
def test_frames_come_out_whole_and_in_order_whatever_the_chunks(frames: list[bytes], cuts: list[int]) -> None:
    stream = framed(*frames)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader(MAX_FRAME_BYTES)

    found = []
    for start, end in pairwise(places):
        reader.feed(stream[start:end])
        found += frames_of(reader)

    assert found == frames
    assert reader.held_bytes == 0
    assert not reader.in_frame


@given(body=st.binary(min_size=SMALLEST_FRAME_BYTES, max_size=MAX_FRAME_BYTES), data=st.data())
def test_the_number_of_missing_bytes_is_exact(body: bytes, data: st.DataObject) -> None:
    stream = framed(body)
    received = data.draw(st.integers(0, len(stream) - 1))
    reader = FrameReader(MAX_FRAME_BYTES)

    reader.feed(stream[:received])

    missing = len(stream) - received if received >= 4 else None
    assert reader.next_frame() == NeedData(missing_bytes=missing)
    assert reader.in_frame == (received > 0)


@pytest.mark.parametrize(
    "length", [-(2**31), -1, 0, SMALLEST_FRAME_BYTES - 1, MAX_FRAME_BYTES + 1, 2**31 - 1]
)
def test_an_impossible_length_is_an_error_at_its_fourth_byte(length: int) -> None:
    reader = FrameReader(MAX_FRAME_BYTES)
    prefix = length.to_bytes(4, "big", signed=True)

    reader.feed(prefix[:3])
    assert reader.next_frame_bytes() is None
    reader.feed(prefix[3:])

    with pytest.raises(BadFrame, match=str(length)):
        reader.next_frame()


@pytest.mark.parametrize(
    ("first", "guess"), [(b"GET / HTTP/1.1", "looks like HTTP"), (b"\x16\x03\x01\x02\x00", "looks like TLS")]
)
def test_another_protocol_is_recognised(first: bytes, guess: str) -> None:
    reader = FrameReader(MAX_FRAME_BYTES)
    reader.feed(first)

    with pytest.raises(BadFrame, match=guess):
        reader.next_frame()


def test_a_frame_keeps_no_other_bytes_alive() -> None:
    reader = FrameReader(MAX_FRAME_BYTES)

    reader.feed(framed(b"x" * 100, b"y" * 100))

    assert type(reader.next_frame()) is type(reader.next_frame()) is bytes


@given(
    frames=st.lists(
        st.binary(min_size=SMALLEST_FRAME_BYTES, max_size=MAX_FRAME_BYTES), min_size=1, max_size=8
    ),
    data=st.data(),
)
def test_frames_received_into_their_own_buffers_are_the_same(
    frames: list[bytes], data: st.DataObject
) -> None:
    stream = memoryview(framed(*frames))
    reader = FrameReader(MAX_FRAME_BYTES)

    found = []
    while stream:
        room = reader.room
        if room is None:
            count = data.draw(st.integers(1, len(stream)))
            reader.feed(bytes(stream[:count]))
        else:
            count = data.draw(st.integers(1, min(len(room), len(stream))))
            room[:count] = stream[:count]
            reader.filled(count)
        stream = stream[count:]
        while reader.next_frame_bytes() is not None:
            if data.draw(st.booleans()):
                reader.allot()
            if isinstance(frame := reader.next_frame(), NeedData):
                break
            found.append(bytes(frame))

    assert found == frames
    assert reader.held_bytes == 0
    assert not reader.in_frame
