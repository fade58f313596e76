"""Slicing: whole batches, in order, patched, within limits; copied or viewed, the bytes are the same."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.read_path.slice_batches import aborted_in, take_batches
from cache_ring.pages.run_bytes import RunBytes, RunIndexes
from sequencer.commits.coordinates import RunCoordinate
from storage.arrow.aborted_batches import AbortedTransaction
from storage.arrow.arrow_columns import decode_batches
from storage.batches.record_batch import empty_batch, marker_batch, read_header
from storage.identifiers import Offset, ProducerId
from tests.agent.read_path.a_log import NOON_MS, a_batch
from tests.cache_ring.builders import a_run

RUNS = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 50, 9000])), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)
OFFSETS = {"records": 3, "marker": 1, "empty": 4}


def some_runs(shapes: list[list[tuple[int, int]]]) -> tuple[list[RunBytes], list[tuple[int, int, int]]]:
    """Returns runs of batches (records, value size) from offset 1000 on, and each batch's base offset, end
    offset and size.
    """
    runs, batches, offset = [], [], 1000
    for shape in shapes:
        base = offset
        encoded = []
        for count, size in shape:
            batch = a_batch(["x" * size] * count, [NOON_MS] * count)
            encoded.append(batch)
            batches.append((offset, offset + count, len(batch)))
            offset += count
        data = b"".join(encoded)
        run: RunCoordinate = a_run(base, offset - 1, length=len(data))
        found = RunBytes.of(run, [memoryview(data)])
        assert found is not None
        runs.append(found)
    return runs, batches


@given(RUNS, st.data(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_whole_batches_from_the_one_that_holds_the_offset_within_the_limit(
    shapes: list[list[tuple[int, int]]], data: st.DataObject, whatever: bool
) -> None:
    runs, batches = some_runs(shapes)
    first_run_end = runs[0].run.last_offset
    offset = data.draw(st.integers(1000, first_run_end))
    end_offset = data.draw(st.sampled_from([batch[1] for batch in batches if batch[1] > offset]))
    limit = data.draw(st.integers(0, sum(batch[2] for batch in batches)))
    expected: list[tuple[int, int]] = []
    size = 0
    for base, end, batch_size in batches:
        if end <= offset:
            continue
        if base >= end_offset or (size + batch_size > limit and (expected or not whatever)):
            break
        expected.append((base, end))
        size += batch_size

    outgoing = take_batches(runs, offset, end_offset, limit, first_whatever_its_size=whatever)

    joined = b"".join(bytes(chunk) for chunk in outgoing.chunks)
    assert len(joined) == outgoing.size_bytes == size
    found, position = [], 0
    while position < len(joined):
        header = read_header(joined, position)
        assert header.leader_epoch == 0
        found.append((header.base_offset, header.base_offset + header.last_offset_delta + 1))
        decode_batches(joined, position, position + header.size_bytes, header.base_offset)
        position += header.size_bytes
    assert found == expected


@given(RUNS, st.data())
@settings(max_examples=100, deadline=None)
def test_a_run_that_lies_in_several_pages_gives_the_same_bytes_uncopied(
    shapes: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    runs, batches = some_runs(shapes)
    offset = data.draw(st.integers(1000, runs[0].run.last_offset))
    limit = data.draw(st.integers(0, sum(batch[2] for batch in batches)))
    in_pages = []
    for run in runs:
        whole = run.data()
        borders = sorted({0, len(whole), *data.draw(st.lists(st.integers(0, len(whole)), max_size=3))})
        pieces = [memoryview(bytes(whole[start:end])) for start, end in itertools.pairwise(borders)]
        found = RunBytes.of(run.run, pieces)
        assert found is not None
        assert found.batches == run.batches
        in_pages.append(found)

    one, several = (
        take_batches(each, offset, 1 << 60, limit, first_whatever_its_size=True) for each in (runs, in_pages)
    )

    assert b"".join(several.chunks) == b"".join(one.chunks)
    assert several.size_bytes == one.size_bytes
    buffers = {id(piece.obj) for run in in_pages for piece in run.pieces}
    assert all(id(chunk.obj) in buffers for chunk in several.chunks if isinstance(chunk, memoryview))


def test_large_batches_are_views_of_the_page_and_not_copies() -> None:
    [run], _ = some_runs([[(1, 9000), (1, 9000)]])

    outgoing = take_batches([run], 1000, 1002, 1 << 20, first_whatever_its_size=True)

    assert [type(chunk) for chunk in outgoing.chunks] == [bytes, memoryview] * 2
    assert all(len(chunk) == 16 for chunk in outgoing.chunks[::2])
    assert all(
        chunk.obj is run.data().obj for chunk in outgoing.chunks[1::2] if isinstance(chunk, memoryview)
    )


def test_an_index_is_reused_only_for_the_same_buffer_and_few_are_kept() -> None:
    [small], _ = some_runs([[(1, 1)] * 40])
    indexes = RunIndexes(most_batches=60)

    first = indexes.run_bytes(small.run, small.pieces)
    again = indexes.run_bytes(small.run, small.pieces)
    damaged = indexes.run_bytes(small.run, [memoryview(bytes(len(small.data())))])
    other = a_run(5000, 5039, length=len(small.data()))
    indexes.run_bytes(small.run, small.pieces)
    indexes.run_bytes(other, small.pieces)

    assert first is not None
    assert again is not None
    assert again.batches is first.batches
    assert damaged is None
    assert indexes.batches == 40, "the one read longest ago went"


def test_bytes_of_another_run_are_detected() -> None:
    [run], _ = some_runs([[(2, 1), (3, 1)]])
    data = run.data()

    assert RunBytes.of(a_run(1000, 1004, length=len(data)), [data]) is not None
    assert RunBytes.of(a_run(1000, 1003, length=len(data)), [data]) is None
    assert RunBytes.of(a_run(1000, 1004, length=len(data) + 1), [data]) is None
    assert RunBytes.of(a_run(1000, 1004, length=len(data) - 1), [data[1:]]) is None


@given(st.lists(st.sampled_from(["records", "marker", "empty"]), min_size=1, max_size=60), st.data())
@settings(max_examples=200, deadline=None)
def test_an_aborted_transaction_is_named_only_if_its_marker_may_still_come(
    kinds: list[str], data: st.DataObject
) -> None:
    marker = marker_batch(ProducerId(7), 0, is_commit=False, timestamp_ms=0)
    made = {"records": a_batch(["x"] * 3, [NOON_MS] * 3), "marker": marker, "empty": empty_batch(4, 0)}
    offsets = list(itertools.accumulate((OFFSETS[kind] for kind in kinds), initial=1000))
    cuts = sorted({0, len(kinds), *data.draw(st.lists(st.integers(0, len(kinds)), max_size=3))})
    runs = []
    for first, end in itertools.pairwise(cuts):
        encoded = b"".join(made[kind] for kind in kinds[first:end])
        middle = data.draw(st.integers(0, len(encoded)))
        pieces = [memoryview(piece) for piece in (encoded[:middle], encoded[middle:]) if piece]
        run = RunBytes.of(a_run(offsets[first], offsets[end] - 1, length=len(encoded)), pieces)
        assert run is not None
        runs.append(run)
    end_offset = data.draw(st.sampled_from(offsets[1:]))
    spans = st.tuples(st.integers(1000, offsets[-1] + 5), st.integers(900, offsets[-1] + 5))
    aborted = [
        AbortedTransaction(Offset(last), Offset(min(first, last - 1)), ProducerId(7))
        for last, first in sorted(data.draw(st.lists(spans, max_size=20, unique_by=lambda span: span[0])))
    ]

    markers = {offset for offset, kind in zip(offsets, kinds, strict=False) if kind == "marker"}
    assert list(aborted_in(runs, end_offset, aborted)) == [
        entry
        for entry in aborted
        if entry.first_offset < end_offset
        and (entry.last_offset >= end_offset or entry.last_offset in markers)
    ]
