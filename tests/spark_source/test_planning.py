"""Which task reads what, and where a micro-batch ends."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_source.agents import PartitionEnds, Piece
from spark_source.planning import Asked, missing, next_ends, plan_reads, wanted
from spark_source.pushed_filters import narrowed
from spark_source.window import Window

_TIME = datetime(2026, 5, 1, 12, tzinfo=UTC)
_TIME_MS = int(_TIME.timestamp() * 1000)


def a_piece(first: int, end: int, length: int = 100, kind: str = "raw", max_ms: int = 0) -> Piece:
    return Piece(
        kind=kind,  # type: ignore[arg-type]
        first_offset=first,
        end_offset=end,
        object_key=f"object-{first}",
        position=0,
        length=length,
        base_offset=first,
        last_offset=end - 1,
        min_timestamp_ms=0,
        max_timestamp_ms=max_ms,
    )


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 1000), st.booleans()), max_size=20),
    st.integers(1, 2000),
    st.integers(1, 10),
)
def test_tasks_cover_each_offset_once_and_in_order(
    sizes: list[tuple[int, int, bool]], task_bytes: int, min_partitions: int
) -> None:
    pieces, first = [], 0
    for count, length, is_file in sizes:
        pieces.append(a_piece(first, first + count, length, "parquet" if is_file else "raw"))
        first += count

    tasks = plan_reads({("t", 0): pieces}, task_bytes=task_bytes, min_partitions=min_partitions)

    parts = [piece for task in tasks for piece in task.pieces]
    assert all(one.end_offset == after.first_offset for one, after in pairwise(parts))
    assert sum(part.end_offset - part.first_offset for part in parts) == first
    assert all(part.first_offset < part.end_offset for part in parts)


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 100), st.integers(0, 1000)), min_size=1),
    st.integers(1, 500),
)
def test_a_micro_batch_takes_what_is_allowed_and_always_something(
    logs: dict[int, tuple[int, int]], most: int
) -> None:
    starts = {("t", partition): start for partition, (start, _) in logs.items()}
    ends = {("t", partition): start + waiting for partition, (start, waiting) in logs.items()}
    waiting = sum(count for _, count in logs.values())

    planned = next_ends(starts, ends, most)

    assert sum(planned.values()) - sum(starts.values()) == min(waiting, most)
    assert all(starts[key] <= planned[key] <= ends[key] for key in ends)


@pytest.mark.parametrize(
    ("pieces", "ends", "words"),
    [
        ([(10, 20)], None, ""),
        ([(10, 12), (15, 20)], None, ""),
        ([(12, 20)], (12, 20), r"lost offsets [10, 12)"),
        ([(10, 15)], (0, 15), "ends before offset 15"),
        ([(10, 15)], None, "ends before offset 15"),
        ([], (20, 30), "has none of the offsets"),
        ([], None, "has none of the offsets"),
        ([(12, 20)], (5, 20), ""),
        ([(10, 15)], (0, 20), ""),
        ([], (0, 30), ""),
    ],
)
def test_what_is_missing_at_either_end_is_said(
    pieces: list[tuple[int, int]], ends: tuple[int, int] | None, words: str
) -> None:
    """If the partition reaches further, there were only aborted records and markers."""
    asked = Asked(topic="t", partition=0, first_offset=10, end_offset=20, is_strict=True)
    now = None if ends is None else PartitionEnds(first_offset=ends[0], end_offset=ends[1])

    found = missing(asked, [a_piece(*each) for each in pieces], lambda _, __: now)

    assert words in found
    assert bool(words) == bool(found)


def test_objects_without_a_record_of_the_time_are_not_read() -> None:
    pieces = [a_piece(0, 10, max_ms=5), a_piece(10, 20, max_ms=10), a_piece(20, 30, max_ms=-1)]

    assert [piece.first_offset for piece in wanted(pieces, Window(from_ms=6))] == [10]
    assert [piece.first_offset for piece in wanted(pieces, Window(to_ms=0))] == []
    assert [piece.first_offset for piece in wanted(pieces, Window())] == [0, 10, 20]


@pytest.mark.parametrize(
    ("one", "window"),
    [
        (EqualTo(("partition",), 3), Window(partitions=frozenset([3]))),
        (In(("partition",), (1, 2)), Window(partitions=frozenset([1, 2]))),
        (EqualTo(("offset",), 5), Window(from_offset=5, to_offset=6)),
        (GreaterThan(("offset",), 5), Window(from_offset=6)),
        (GreaterThanOrEqual(("Offset",), 5), Window(from_offset=5)),
        (LessThan(("offset",), 5), Window(to_offset=5)),
        (LessThanOrEqual(("offset",), 5), Window(to_offset=6)),
        (IsNotNull(("offset",)), Window()),
        (GreaterThanOrEqual(("timestamp",), _TIME), Window(from_ms=_TIME_MS)),
        (GreaterThan(("timestamp",), _TIME), Window(from_ms=_TIME_MS + 1)),
        (GreaterThan(("timestamp",), _TIME + timedelta(microseconds=1)), Window(from_ms=_TIME_MS + 1)),
        (LessThan(("timestamp",), _TIME + timedelta(microseconds=1)), Window(to_ms=_TIME_MS + 1)),
        (LessThanOrEqual(("timestamp",), _TIME), Window(to_ms=_TIME_MS + 1)),
        (EqualTo(("timestamp",), _TIME), Window(from_ms=_TIME_MS, to_ms=_TIME_MS + 1)),
        (EqualTo(("timestamp",), _TIME + timedelta(microseconds=1)), Window(from_ms=0, to_ms=0)),
    ],
)
def test_a_filter_on_a_range_becomes_the_window(one: Filter, window: Window) -> None:
    assert narrowed(Window(), [one]) == (window, [])


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        IsNotNull(("timestamp",)),
        Not(EqualTo(("partition",), 3)),
        GreaterThan(("partition",), 3),
        EqualTo(("headers", "key"), "x"),
    ],
)
def test_every_other_filter_is_left_to_spark(one: Filter) -> None:
    assert narrowed(Window(), [one]) == (Window(), [one])


def test_filters_hold_together() -> None:
    filters = [GreaterThan(("offset",), 5), LessThan(("offset",), 9), In(("partition",), (1, 2))]
    before = Window(partitions=frozenset([2, 3]), from_offset=7)

    assert narrowed(before, filters)[0] == Window(partitions=frozenset([2]), from_offset=7, to_offset=9)
