"""Decides which history files have expired as a whole, and which in part. Pure.

A record has expired when its timestamp is older than the cutoff. A record without a timestamp has expired
when the file that holds it was first written before the cutoff. If a file's newest record has expired, the
file is dropped, which costs metadata only. If only a part has expired, the file is rewritten without that
part, oldest files first, up to a bound of bytes per pass. The rest waits for the next pass.

A time-ordered topic has about one such file per partition. A topic whose producers send times in disorder has
many; hence the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.identifiers import ObjectKey, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFileAge:
    """The bounds of one file's records, from the table's metadata."""

    object_key: ObjectKey
    partition: Partition
    first_offset: int
    row_count: int
    size_bytes: int
    written_at: datetime
    oldest: datetime | None
    """The least timestamp; None if no record has one."""
    newest: datetime | None
    has_untimed: bool
    """Some records have no timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    dropped: tuple[HistoryFileAge, ...]
    rewritten: tuple[HistoryFileAge, ...]
    deferred: tuple[HistoryFileAge, ...]
    """Partly expired files beyond this pass's bound."""


def plan_expiry(files: Sequence[HistoryFileAge], cutoff: datetime, *, rewrite_bytes: int) -> ExpiryPlan:
    dropped = [file for file in files if max(_times(file)) < cutoff]
    partly = sorted(
        (file for file in files if min(_times(file)) < cutoff <= max(_times(file))),
        key=lambda file: (min(_times(file)), file.object_key),
    )
    rewritten, total = 0, 0
    for file in partly:
        total += file.size_bytes
        if total > rewrite_bytes:
            break
        rewritten += 1
    return ExpiryPlan(dropped=tuple(dropped), rewritten=tuple(partly[:rewritten]), deferred=tuple(partly[rewritten:]))


def _times(file: HistoryFileAge) -> list[datetime]:
    bounds = [time for time in (file.oldest, file.newest) if time is not None]
    return [*bounds, file.written_at] if file.has_untimed or not bounds else bounds
