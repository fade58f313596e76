"""What one agent measures for the whole cluster, as a row that every agent reads.

Promises:
- A measurement is one statement. Its cost has bounds that do not depend on the log, the number of agents or
  the amount of deleted data. Reading it means reading one row.
- An older measurement never replaces a newer one: two observers at once, or one that was paused, do no harm.
- Ages are those at the time of reading.

A job's lease decides which agent measures (`compactor/housekeeper.py`). The log does not depend on this, so
nothing here waits for a synchronous standby.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from sequencer.housekeeping.jobs import JobStatus
from sequencer.housekeeping.merge_values import Backlog, MergeDone, TierBacklog, TierTotals

SQL = load_statements("observations")

MOST_TIERS = 8
"""The highest tier that a setting allows (`merge_tiers`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationBounds:
    """How much one measurement looks at."""

    segments: int
    """Segments of each state that are counted one by one. Beyond it Postgres' estimate is used."""
    candidates: int
    """Candidates for merging, per tier, that are added up. The rest is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """How many segments are in each state on the way out, and how many are reserved. Large numbers are
    estimates."""

    reserved: int
    unreferenced: int
    doomed: int
    tombstones: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalProgress:
    """Ages are None before the first entry or checkpoint."""

    age_s: float | None
    checkpoint_age_s: float | None
    entries: int
    entry_bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLag:
    """How far tables are behind the log."""

    topics: int
    """Whose tables lack records."""
    late_topics: int
    """Of those, behind by more than their freshness."""
    behind_s: float
    """The longest."""
    records: int
    raw_bytes: int
    """An estimate."""
    age_s: float = 0.0
    """Seconds since a history service saw it, by the database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    age_s: float
    """Seconds since the measurement, by the database's clock."""
    census: Census
    backlog: Backlog
    totals: Sequence[TierTotals]
    jobs: Sequence[JobStatus]
    journal: JournalProgress
    history: HistoryLag | None
    """None if no history service has ever looked."""


class Observations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def observe(self, bounds: ObservationBounds) -> bool:
        """Measures and writes the result. False: there is already a newer one."""
        rows = await self._database.run_local(
            SQL["observe"],
            most_segments=bounds.segments,
            most_candidates=bounds.candidates,
            most_tiers=MOST_TIERS,
        )
        return bool(rows)

    async def latest(self) -> Observation | None:
        """Returns the last measurement; None before the first. Raises SequencerUnavailable."""
        rows = await self._database.run_local(SQL["latest"])
        return _observation(rows[0]) if rows else None

    async def note_history_lag(self, lag: HistoryLag) -> None:
        """Writes what a history service has seen, for agents to show."""
        await self._database.run_local(
            SQL["note_history_lag"],
            topics=lag.topics,
            late_topics=lag.late_topics,
            behind_s=lag.behind_s,
            records=lag.records,
            raw_bytes=lag.raw_bytes,
        )


def _observation(row: Any) -> Observation:
    seen: Mapping[str, Any] = row.seen
    now: float = row.now

    def age_s(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    segments, journal = seen["segments"], seen["journal"]
    return Observation(
        age_s=max(0.0, now - row.observed_at),
        census=Census(
            reserved=segments["reserved"],
            unreferenced=segments["unreferenced"],
            doomed=segments["doomed"],
            tombstones=seen["tombstones"],
        ),
        backlog=Backlog(
            tiers=tuple(
                TierBacklog(
                    tier=ripe["tier"],
                    segments=ripe["segments"],
                    units=ripe["units"],
                    size_bytes=ripe["size_bytes"],
                    oldest_s=max(0.0, now - ripe["oldest_at"]),
                )
                for ripe in seen["ripe"]
            ),
            agents=seen["agents"],
        ),
        totals=tuple(
            TierTotals(
                tier=tier["tier"],
                merges=tier["merges"],
                done=MergeDone(**{name: tier[name] for name in MergeDone.__slots__}),
                success_age_s=age_s(tier["last_success_at"]),
            )
            for tier in seen["merged"]
        ),
        jobs=tuple(
            JobStatus(
                name=job["name"],
                running=job["running"],
                success_age_s=age_s(job["last_success_at"]),
                last_error=job["last_error"],
            )
            for job in seen["jobs"]
        ),
        journal=JournalProgress(
            age_s=age_s(journal["taken_at"]),
            checkpoint_age_s=age_s(journal["checkpoint_at"]),
            entries=journal["entries"],
            entry_bytes=journal["entry_bytes"],
            checkpoint_bytes=journal["checkpoint_bytes"],
        ),
        history=None
        if row.lag_age_s is None
        else HistoryLag(
            topics=row.topics,
            late_topics=row.late_topics,
            behind_s=row.behind_s,
            records=row.records,
            raw_bytes=row.raw_bytes,
            age_s=max(0.0, row.lag_age_s),
        ),
    )
