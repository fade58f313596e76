"""A response as buffers: the same bytes as kio would write, record bytes never copied."""

from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.transport.vectored import RecordSlices, ResponseBuffer

pieces = st.lists(
    st.one_of(st.binary(max_size=20), st.lists(st.binary(max_size=20), max_size=4)), max_size=20
)


@given(pieces=pieces)
def test_the_buffers_joined_are_what_was_written_with_its_length_in_front(
    pieces: list[bytes | list[bytes]],
) -> None:
    buffer = ResponseBuffer()
    expected = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            buffer.write(piece)
            expected += piece
        else:
            buffer.write(RecordSlices([memoryview(chunk) for chunk in piece]))
            expected += b"".join(piece)

    assert b"".join(buffer.buffers()) == len(expected).to_bytes(4, "big") + expected


def test_record_slices_are_the_same_buffers_on_the_way_out() -> None:
    page = memoryview(b"x" * 100)
    buffer = ResponseBuffer()
    buffer.write(b"head")
    buffer.write(RecordSlices([page[10:20], page[30:40]]))

    taken = [chunk for chunk in buffer.buffers() if isinstance(chunk, memoryview)]

    assert [chunk.obj for chunk in taken] == [page.obj, page.obj]


def test_zero_bytes_of_records_are_not_null_records() -> None:
    assert RecordSlices([])
    assert len(RecordSlices([])) == 0
