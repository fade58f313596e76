"""What a group has read, its lag, and where a reset would set its offsets (pure).

A committed offset is the offset of the first record that was not read yet. Promises that a planned offset
lies within the log, `[log start, end]`, whatever was asked for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from tidelog.output import parse_duration

_WHERE_TO: Final = "--to-earliest, --to-latest, --to-offset, --shift-by, --to-datetime, --by-duration"

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The log of a partition: the offset of its first record, and the offset after its last."""

    log_start: int
    end: int

    def hold(self, offset: int) -> int:
        return min(max(offset, self.log_start), self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A group's position in a partition. None: nothing was committed, or the value is unknown."""

    topic: str
    partition: int
    committed: int | None
    bounds: Bounds | None
    first_unread_ms: int | None
    """The timestamp of the first record that was not read yet."""
    member_id: str | None

    @property
    def lag(self) -> int | None:
        """The number of unread records."""
        if self.committed is None or self.bounds is None:
            return None
        return self.bounds.end - self.bounds.hold(self.committed)

    def lag_s(self, now_ms: int) -> float | None:
        """The age of the first unread record. 0 if all were read."""
        if self.lag == 0:
            return 0.0
        return None if self.first_unread_ms is None else max(0.0, (now_ms - self.first_unread_ms) / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTo:
    """Where to reset to. Exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    shift: int | None = None
    time_ms: int | None = None

    @property
    def asks_for_time(self) -> bool:
        return self.time_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOffset:
    topic: str
    partition: int
    now: int | None
    new: int
    was_bounded: bool
    """True if the requested offset lies outside the log."""


def plan_reset(
    to: ResetTo, places: Collection[Place], committed: Mapping[Place, int], bounds: Mapping[Place, Bounds],
    at_time: Mapping[Place, int],
) -> list[PlannedOffset]:  # fmt: skip
    """In order of topic and partition. `at_time` has the first offset at or after the requested time, if
    there is one.

    A shift of a partition without a committed offset counts from the log's start.
    """
    planned = []
    for topic, partition in sorted(places):
        place = (topic, partition)
        asked = _asked(to, committed.get(place), bounds[place], at_time.get(place))
        new = bounds[place].hold(asked)
        planned.append(
            PlannedOffset(
                topic=topic, partition=partition, now=committed.get(place), new=new, was_bounded=new != asked
            )
        )
    return planned


def _asked(to: ResetTo, committed: int | None, bounds: Bounds, at_time: int | None) -> int:
    if to.earliest:
        return bounds.log_start
    if to.offset is not None:
        return to.offset
    if to.shift is not None:
        return (bounds.log_start if committed is None else committed) + to.shift
    if to.asks_for_time and at_time is not None:
        return at_time
    return bounds.end  # the latest, or a time after the last record


def parse_reset(
    *, earliest: bool, latest: bool, offset: int | None, shift: int | None, moment: str | None,
    duration: str | None,
    now: datetime,
) -> ResetTo:  # fmt: skip
    """From the command line's options. Raises ValueError unless exactly one is given and can be read."""
    given = [
        earliest,
        latest,
        offset is not None,
        shift is not None,
        moment is not None,
        duration is not None,
    ]
    if sum(given) != 1:
        raise ValueError(f"none or several of {_WHERE_TO} were given: give one")
    if moment is not None:
        return ResetTo(time_ms=_milliseconds(parse_moment(moment)))
    if duration is not None:
        return ResetTo(time_ms=_milliseconds(now - parse_duration(duration)))
    if offset is not None and offset < 0:
        raise ValueError(f"{offset} is no offset")
    return ResetTo(earliest=earliest, latest=latest, offset=offset, shift=shift)


def parse_moment(text: str) -> datetime:
    """ISO 8601; UTC unless it names a zone. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"'{text}' is no date and time such as 2026-11-21T18:30:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_topics(texts: Sequence[str]) -> dict[str, frozenset[int] | None]:
    """`orders`, or `orders:0,2` for some of its partitions; None: all of them. Raises ValueError."""
    found: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic or (colon and not all(number.strip().isdecimal() for number in numbers.split(","))):
            raise ValueError(f"'{text}' is no topic, nor partitions of one such as orders:0,2")
        partitions = frozenset(int(number) for number in numbers.split(",")) if colon else None
        known = found.get(topic, frozenset())
        found[topic] = None if partitions is None or known is None else known | partitions
    return found


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
