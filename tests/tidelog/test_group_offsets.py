"""Lag, and where a reset sets a group: within the log, whatever is asked for."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_offsets import (
    Bounds,
    ResetTo,
    Unread,
    parse_moment,
    parse_reset,
    parse_topics,
    plan_reset,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OFFSETS = st.integers(0, 2**63 - 1)
BOUNDS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: Bounds(log_start=min(pair), end=max(pair)))
TARGETS = st.one_of(
    st.just(ResetTo(earliest=True)),
    st.just(ResetTo(latest=True)),
    st.builds(ResetTo, offset=OFFSETS),
    st.builds(ResetTo, shift=st.integers(-(2**63), 2**63)),
    st.builds(ResetTo, time_ms=st.integers(0, 2**53)),
)


def unread(
    committed: int | None, log_start: int = 10, end: int = 30, first_unread_ms: int | None = None
) -> Unread:
    bounds = Bounds(log_start=log_start, end=end)
    return Unread(
        topic="t",
        partition=0,
        committed=committed,
        bounds=bounds,
        first_unread_ms=first_unread_ms,
        member_id=None,
    )


@pytest.mark.parametrize(("committed", "lag"), [(None, None), (0, 20), (10, 20), (25, 5), (30, 0), (99, 0)])
def test_lag_counts_records_that_can_still_be_read(committed: int | None, lag: int | None) -> None:
    assert unread(committed).lag == lag


def test_lag_in_seconds_is_the_age_of_the_first_unread_record() -> None:
    assert unread(30).lag_s(9_000) == 0.0
    assert unread(20, first_unread_ms=4_500).lag_s(9_000) == 4.5
    assert unread(20, first_unread_ms=9_500).lag_s(9_000) == 0.0
    assert unread(20).lag_s(9_000) is None
    assert unread(None).lag_s(9_000) is None


@pytest.mark.parametrize(
    ("to", "offset", "was_bounded"),
    [
        (ResetTo(earliest=True), 10, False), (ResetTo(latest=True), 30, False),
        (ResetTo(offset=12), 12, False), (ResetTo(offset=3), 10, True), (ResetTo(offset=31), 30, True),
        (ResetTo(shift=-5), 15, False), (ResetTo(shift=-50), 10, True), (ResetTo(shift=10), 30, False),
        (ResetTo(time_ms=5), 17, False),
    ],
)  # fmt: skip
def test_a_reset_goes_where_it_is_told(to: ResetTo, offset: int, was_bounded: bool) -> None:
    [planned] = plan_reset(
        to, [("t", 0)], {("t", 0): 20}, {("t", 0): Bounds(log_start=10, end=30)}, {("t", 0): 17}
    )

    assert (planned.now, planned.new, planned.was_bounded) == (20, offset, was_bounded)


def test_a_time_after_the_last_record_is_the_end_and_a_shift_from_nothing_counts_from_the_start() -> None:
    bounds = {("t", 0): Bounds(log_start=10, end=30)}

    [late] = plan_reset(ResetTo(time_ms=5), [("t", 0)], {}, bounds, {})
    [shifted] = plan_reset(ResetTo(shift=4), [("t", 0)], {}, bounds, {})

    assert (late.now, late.new) == (None, 30)
    assert shifted.new == 14


@given(to=TARGETS, bounds=BOUNDS, committed=st.none() | OFFSETS, at_time=st.none() | OFFSETS)
def test_a_planned_offset_lies_within_the_log(
    to: ResetTo, bounds: Bounds, committed: int | None, at_time: int | None
) -> None:
    place = ("t", 0)
    [planned] = plan_reset(
        to, [place], {} if committed is None else {place: committed}, {place: bounds},
        {} if at_time is None else {place: at_time},
    )  # fmt: skip

    assert bounds.log_start <= planned.new <= bounds.end


def reset(**given: Any) -> ResetTo:
    nothing = {
        "earliest": False,
        "latest": False,
        "offset": None,
        "shift": None,
        "moment": None,
        "duration": None,
    }
    return parse_reset(**{**nothing, **given}, now=NOW)


def test_what_the_command_line_says_is_one_target() -> None:
    assert reset(earliest=True) == ResetTo(earliest=True)
    assert reset(latest=True) == ResetTo(latest=True)
    assert reset(offset=0) == ResetTo(offset=0)
    assert reset(shift=-3) == ResetTo(shift=-3)
    assert reset(moment="1970-01-01T00:00:01.5") == ResetTo(time_ms=1_500)
    assert reset(duration="PT1H") == ResetTo(time_ms=int((NOW - timedelta(hours=1)).timestamp() * 1000))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"earliest": True, "latest": True},
        {"offset": -1},
        {"moment": "yesterday"},
        {"duration": "a while"},
    ],
)
def test_what_is_no_target_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        reset(**given)


def test_a_moment_is_utc_unless_it_names_a_zone() -> None:
    assert parse_moment("2026-11-21 18:30") == datetime(2026, 11, 21, 18, 30, tzinfo=UTC)
    assert parse_moment("2026-11-21T18:30:00+02:00").tzinfo == timezone(timedelta(hours=2))


def test_topics_are_named_whole_or_by_partitions() -> None:
    assert parse_topics(["a", "b:0,2", "b:3", "c:1", "c"]) == {
        "a": None,
        "b": frozenset({0, 2, 3}),
        "c": None,
    }


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "a:1,", "a:-1"])
def test_what_names_no_topic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no topic"):
        parse_topics([text])
