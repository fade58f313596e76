"""Spark's pushed filters as ranges of partition, offset and time. Pure.

Promise: a filter that is taken is obeyed exactly, row by row. Every other filter is left to Spark.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from spark_source.window import Window

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp_type", "headers"})


def narrowed(window: Window, filters: Iterable[Filter]) -> tuple[Window, list[Filter]]:
    """The window that obeys those filters that ranges can express, and the filters that are left."""
    left: list[Filter] = []
    for one in filters:
        for change in _changes(one):
            window = _cut(window, **change)
            break
        else:
            left.append(one)
    return window, left


def _changes(one: Filter) -> Iterator[dict[str, Any]]:
    """What the filter cuts off; nothing if it is none of ours."""
    attribute = getattr(one, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return
    column, value = str(attribute[0]).lower(), getattr(one, "value", None)
    if isinstance(one, IsNotNull):
        if column in _NEVER_NULL:
            yield {}
    elif column == "partition":
        if isinstance(one, EqualTo):
            yield {"partitions": frozenset([value])}
        elif isinstance(one, In):
            yield {"partitions": frozenset(one.value)}
    elif column == "offset" and isinstance(value, int):
        yield from _range(one, value, "from_offset", "to_offset")
    elif column == "timestamp" and isinstance(value, datetime):
        yield from _time_range(one, value)


def _time_range(one: Filter, value: datetime) -> Iterator[dict[str, Any]]:
    """Records have milliseconds, Spark's times microseconds: between two milliseconds the next one counts."""
    time = value if value.tzinfo is not None else value.astimezone()
    micros = (time - _EPOCH) // _MICROSECOND
    at_or_after, after = -(-micros // 1000), micros // 1000 + 1
    if isinstance(one, EqualTo) and at_or_after == after:
        yield {"from_ms": 0, "to_ms": 0}
        return
    yield from _range(one, at_or_after, "from_ms", "to_ms", after)


def _range(
    one: Filter, at_or_after: int, lower: str, upper: str, after: int | None = None
) -> Iterator[dict[str, int]]:
    beyond = at_or_after + 1 if after is None else after
    if isinstance(one, EqualTo):
        yield {lower: at_or_after, upper: beyond}
    elif isinstance(one, GreaterThan):
        yield {lower: beyond}
    elif isinstance(one, GreaterThanOrEqual):
        yield {lower: at_or_after}
    elif isinstance(one, LessThan):
        yield {upper: at_or_after}
    elif isinstance(one, LessThanOrEqual):
        yield {upper: beyond}


def _cut(window: Window, **change: Any) -> Window:
    """Both hold: the later start, the earlier end, the common partitions."""
    cut: dict[str, Any] = {}
    for name, value in change.items():
        before = getattr(window, name)
        if before is None:
            cut[name] = value
        elif name == "partitions":
            cut[name] = before & value
        else:
            cut[name] = max(before, value) if name.startswith("from") else min(before, value)
    return replace(window, **cut)
