"""Counts and durations as commands print and read them."""

from datetime import timedelta

import pytest

from tidelog.output import as_text, counted, parse_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (-1, "0.0 s"), (0.26, "0.3 s"), (42.4, "42 s"), (60, "1 min"), (185, "3 min 5 s"),
        (3_600, "1 h"), (3_661, "1 h 1 min"), (86_430, "1 d"), (187_200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_a_span_is_said_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert as_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("P7D", timedelta(days=7)),
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P1DT0.5S", timedelta(days=1, seconds=0.5)),
        ("pt5m", timedelta(minutes=5)),
        ("P2W", timedelta(weeks=2)),
        ("7d", timedelta(days=7)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("90s", timedelta(seconds=90)),
        ("10 min", None),
        ("2h 10min", timedelta(hours=2, minutes=10)),
    ],
)
def test_a_span_is_read_in_both_spellings(text: str, span: timedelta | None) -> None:
    if span is None:
        with pytest.raises(ValueError, match="is no duration"):
            parse_duration(text)
    else:
        assert parse_duration(text) == span


@pytest.mark.parametrize("text", ["", "P", "PT", "P1", "7", "-P1D", "1h1h", "P1M", "soon"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_000, "1,000 rows")]
)
def test_one_thing_is_not_many(number: int, said: str) -> None:
    assert counted(number, "row") == said
