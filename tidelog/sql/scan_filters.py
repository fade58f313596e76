"""Which data files a statement may need, by the filters that DuckDB's plan hands to a table's scan. Pure.

DuckDB's optimizer has worked the filters out: constants are folded (`now() - INTERVAL 1 HOUR`), conditions
are taken through views, subqueries and joins. A plan has them as text, such as
`((offset >= 5) AND (timestamp < '2026-01-02 00:00:00+00'::TIMESTAMP WITH TIME ZONE))`.

Promise: a file is left out only if no row of it can pass. What is not understood leaves out nothing.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SLACK_US: Final = 60_000_000
"""`now()` is later when the statement runs than when it was planned."""
_COMPARISON: Final = re.compile(
    r"(?P<column>partition|offset|timestamp) (?P<sign>=|>=|>|<=|<) "
    r"(?:(?P<number>-?\d+)|'(?P<time>[0-9-]{10} [0-9:]{8}(?:\.\d{1,6})?)\+00'::TIMESTAMP WITH TIME ZONE)"
)
_LIST: Final = re.compile(r"(?P<column>partition|offset) IN \((?P<numbers>-?\d+(?:, -?\d+)*)\)")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value of a column in a file, both inclusive; times in microseconds."""

    low: int
    high: int


FileBounds = Mapping[str, Bounds]
"""By column; a column that is not there may hold anything."""
MayPass = Callable[[FileBounds], bool]


def may_pass(filters: str | list[str]) -> MayPass:
    """Whether a file may have rows that pass the filters of a plan's scan."""
    tests = [_test(text) for text in ([filters] if isinstance(filters, str) else filters)]
    return lambda bounds: all(test(bounds) for test in tests)


def _anything(_: FileBounds) -> bool:
    return True


def _test(text: str) -> MayPass:
    text = _bare(text)
    for word, decide in ((" OR ", any), (" AND ", all)):
        parts = _parts(text, word)
        if len(parts) > 1:
            tests = [_test(part) for part in parts]
            return lambda bounds, tests=tests, decide=decide: decide(test(bounds) for test in tests)  # type: ignore[misc]
    return _leaf(text)


def _leaf(text: str) -> MayPass:
    among = _LIST.fullmatch(text)
    if among is not None:
        column, numbers = among["column"], [int(number) for number in among["numbers"].split(",")]
        return lambda bounds: _overlaps(
            bounds, column, lambda own: any(own.low <= n <= own.high for n in numbers)
        )
    found = _COMPARISON.fullmatch(text)
    if found is None or (found["column"] == "timestamp") != (found["time"] is not None):
        return _anything
    if found["time"] is not None:
        time = datetime.fromisoformat(f"{found['time']}+00:00")
        value, slack = (time - _EPOCH) // timedelta(microseconds=1), _SLACK_US
    else:
        value, slack = int(found["number"]), 0
    sign = found["sign"]

    def overlaps(own: Bounds) -> bool:
        below = own.low < value + slack or (own.low == value and "=" in sign)
        above = own.high > value - slack or (own.high == value and "=" in sign)
        return (sign.startswith(">") or below) and (sign.startswith("<") or above)

    return lambda bounds: _overlaps(bounds, found["column"], overlaps)


def _overlaps(bounds: FileBounds, column: str, test: Callable[[Bounds], bool]) -> bool:
    own = bounds.get(column)
    return own is None or test(own)


def _bare(text: str) -> str:
    """Without the parentheses around the whole, and without `optional: ` before it."""
    while True:
        text = text.strip().removeprefix("optional: ")
        if not (text.startswith("(") and _closing(text) == len(text) - 1):
            return text
        text = text[1:-1]


def _closing(text: str) -> int:
    """Where the parenthesis closes with which the text begins."""
    depth = 0
    for at, sign in _outside_quotes(text):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return at
    return -1


def _parts(text: str, word: str) -> list[str]:
    """The text cut at each `word` that lies in no parentheses and no quotes."""
    parts: list[str] = []
    depth = start = 0
    for at, sign in _outside_quotes(text):
        depth += (sign == "(") - (sign == ")")
        if not depth and text.startswith(word, at):
            parts.append(text[start:at])
            start = at + len(word)
    return [*parts, text[start:]]


def _outside_quotes(text: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    mark = ""
    for at, sign in enumerate(text):
        if mark:
            mark = "" if sign == mark else mark
        elif sign in "'\"":
            mark = sign
        else:
            found.append((at, sign))
    return found
