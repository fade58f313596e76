"""What lies below a local start: contiguous coordinates of row groups, raw runs, and nothing."""

import itertools
from typing import NamedTuple
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.commits.coordinates import NOTHING, HistoryFile, RunCoordinate, history_coordinates
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, TopicId

TOPIC, PARTITION = TopicId(UUID(int=1)), Partition(0)


class Layout(NamedTuple):
    files: list[HistoryFile]
    runs: list[RunCoordinate]
    end: int


def a_file(number: int, first: int, sizes: list[int]) -> HistoryFile:
    groups, offset = [], first
    for place, size in enumerate(sizes):
        groups += [offset, 1000 * place, 1000, 5]
        offset += size
    return HistoryFile(ObjectKey(f"{number}.parquet"), 99_999, Offset(first), Offset(offset - 1), groups)


def a_run(number: int, base: int, last: int) -> RunCoordinate:
    return RunCoordinate(
        topic_id=TOPIC,
        partition=PARTITION,
        base_offset=Offset(base),
        last_offset=Offset(last),
        object_key=ObjectKey(f"run {number}"),
        object_size_bytes=10,
        position=BytePosition(0),
        length=10,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    files, offset = [], draw(st.integers(0, 3))
    for number in range(draw(st.integers(0, 5))):
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
        files.append(a_file(number, offset, sizes))
        offset += sum(sizes) + draw(st.integers(0, 3))
    end = offset + draw(st.integers(1, 3))
    runs: list[RunCoordinate] = []
    base = draw(st.integers(0, 5))
    while base < end and draw(st.booleans()):
        last = base + draw(st.integers(0, 6))
        runs.append(a_run(len(runs), base, last))
        base = last + 1 + draw(st.integers(0, 6))
    return Layout(files, runs, end)


def source_of(layout: Layout, offset: int) -> str:
    """What must be named for an offset."""
    for run in layout.runs:
        if run.base_offset <= offset <= run.last_offset:
            return run.object_key
    for file in layout.files:
        if file.first_offset <= offset <= file.last_offset:
            return file.object_key
    return NOTHING


@settings(max_examples=300, deadline=None)
@given(layout=layouts(), draw=st.data())
def test_every_offset_is_in_one_coordinate_and_in_the_right_one(layout: Layout, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, layout.end - 1))

    found = history_coordinates(
        TOPIC, PARTITION, (Offset(start), Offset(layout.end)), layout.files, layout.runs
    )

    assert found[0].base_offset <= start
    assert found[-1].last_offset >= layout.end - 1
    for piece, following in itertools.pairwise(found):
        assert following.base_offset == piece.last_offset + 1
    for piece in found:
        for offset in range(max(start, piece.base_offset), min(layout.end - 1, piece.last_offset) + 1):
            assert piece.object_key == source_of(layout, offset)


@settings(max_examples=100, deadline=None)
@given(layout=layouts(), draw=st.data())
def test_a_row_group_is_named_alike_whatever_offset_is_asked_for(layout: Layout, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, layout.end - 1))
    whole, part = (
        history_coordinates(TOPIC, PARTITION, (Offset(at), Offset(layout.end)), layout.files, layout.runs)
        for at in (0, start)
    )

    assert {piece for piece in part if piece.object_key != NOTHING} <= set(whole)
