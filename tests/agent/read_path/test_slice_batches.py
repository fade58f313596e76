"""Slicing: whole batches, in order, patched, within limits; copied or viewed, the bytes are the same."""

import itertools
from dataclasses import replace

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.read_path.slice_batches import take_batches, take_committed
from cache_ring.pages.run_bytes import RunBytes, RunIndexes
from sequencer.commits.coordinates import RunCoordinate
from storage.arrow.aborted_batches import AbortedTransaction
from storage.arrow.arrow_columns import decode_batches
from storage.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    empty_batch,
    marker_batch,
    read_header,
    write_header,
)
from storage.identifiers import Offset, ProducerId
from tests.agent.read_path.a_log import NOON_MS, a_batch
from tests.cache_ring.builders import a_run

RUNS = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 50, 9000])), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)
OFFSETS = {"records": 3, "open": 3, "other": 3, "marker": 1, "empty": 4}


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


def of_producer(batch: bytes, producer_id: ProducerId) -> bytes:
    """The batch, as if this producer had written it in a transaction."""
    header = read_header(batch)
    changed = replace(header, attributes=header.attributes | 0x10, producer_id=producer_id, producer_epoch=0)
    body = batch[HEADER_BYTES:]
    crc = crc32c((write_header(changed) + body)[CRC_START:])
    return write_header(replace(changed, crc=crc)) + body


@given(st.lists(st.sampled_from(list(OFFSETS)), min_size=1, max_size=60), st.data())
@settings(max_examples=300, deadline=None)
def test_readers_of_committed_data_find_what_is_not_aborted_though_markers_are_gone(
    kinds: list[str], data: st.DataObject
) -> None:
    """As Java's consumer: it drops a producer's transactional batches from a named transaction's first
    offset on, until it reads a marker of that producer. "open" is a batch of producer 7 in a transaction,
    "other" one of producer 8.
    """
    records = a_batch(["x"] * 3, [NOON_MS] * 3)
    made = {
        "records": records,
        "open": of_producer(records, ProducerId(7)),
        "other": of_producer(records, ProducerId(8)),
        "marker": marker_batch(ProducerId(7), 0, is_commit=False, timestamp_ms=0),
        "empty": empty_batch(4, 0),
    }
    offsets = list(itertools.accumulate((OFFSETS[kind] for kind in kinds), initial=1000))
    runs = cut_into_runs([made[kind] for kind in kinds], offsets, data)
    # Transactions of 7, one after the other. Their markers are there, or in an empty batch.
    ends = [
        at
        for at, kind in enumerate(kinds)
        if kind == "marker" or (kind == "empty" and data.draw(st.booleans(), "a marker was here"))
    ]
    aborted, first = [], 0
    for end in ends:
        if kinds[end] == "marker" or data.draw(st.booleans(), "it was aborted"):
            inside = offsets[end] + data.draw(st.integers(0, OFFSETS[kinds[end]] - 1))
            began = data.draw(st.integers(offsets[first], inside), "where it began")
            # It has all batches of 7 that are left before its marker.
            first_open = next((offsets[at] for at in range(first, end) if kinds[at] == "open"), began)
            aborted.append(AbortedTransaction(Offset(inside), Offset(min(began, first_open)), ProducerId(7)))
        first = end + 1
    aborted = [entry for entry in aborted if entry.first_offset < entry.last_offset]
    is_aborted = [
        kind == "open" and any(entry.first_offset <= offset < entry.last_offset for entry in aborted)
        for kind, offset in zip(kinds, offsets, strict=False)
    ]

    position, limit = 1000, data.draw(st.integers(1, 2000))
    seen: list[int] = []
    while position < offsets[-1]:
        rest = [run for run in runs if run.run.last_offset >= position]
        overlapping = [entry for entry in aborted if entry.last_offset >= position]
        outgoing, named = take_committed(
            rest, position, offsets[-1], limit, overlapping, first_whatever_its_size=True
        )
        assert outgoing.end_offset > position
        to_come, dropped = sorted(entry.first_offset for entry in named), False
        for at, kind in enumerate(kinds):
            if not position <= offsets[at] < outgoing.end_offset:
                continue
            while to_come and to_come[0] < offsets[at + 1]:
                to_come, dropped = to_come[1:], True
            if kind == "marker":
                dropped = False
            elif kind in ("records", "other") or (kind == "open" and not dropped):
                seen.append(at)
        position = outgoing.end_offset

    assert seen == [
        at for at, kind in enumerate(kinds) if kind in ("records", "other", "open") and not is_aborted[at]
    ]


def cut_into_runs(batches: list[bytes], offsets: list[int], data: st.DataObject) -> list[RunBytes]:
    """Consecutive runs of these batches, each in one or two pieces."""
    cuts = sorted({0, len(batches), *data.draw(st.lists(st.integers(0, len(batches)), max_size=3))})
    runs = []
    for first, end in itertools.pairwise(cuts):
        encoded = b"".join(batches[first:end])
        middle = data.draw(st.integers(0, len(encoded)))
        pieces = [memoryview(piece) for piece in (encoded[:middle], encoded[middle:]) if piece]
        run = RunBytes.of(a_run(offsets[first], offsets[end] - 1, length=len(encoded)), pieces)
        assert run is not None
        runs.append(run)
    return runs
