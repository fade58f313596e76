"""Garbage: objects that nothing refers to and nothing can come to refer to (P5; DESIGN §9).

Promises that a segment is doomed only under its row lock and only without runs and live holds; that its object is
deleted only once it is doomed, after the grace period, and a second time after the late-write window, before its row
goes; that the outcome of its commit stays known for `outcome_retention_s`; and that nothing is doomed for a while
after an outage or a failover of Postgres, nor while the bucket may be another database's (DESIGN §10). Here are the
states; the deleting is done by `compactor/garbage_jobs.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sequencer.database import Database
from sequencer.named_sql import load_statements
from sequencer.ownership import is_owner
from sequencer.reservations import SQL as RESERVATIONS_SQL
from storage.identifiers import ObjectKey, SegmentId

SQL = load_statements("garbage")

BEFORE_ALL = SegmentId(UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoomingRules:
    reservation_lease_s: float
    """How long dooming pauses at first and after an outage."""
    outage_after_s: float
    """A longer time without a look at the database was an outage, or might as well have been."""
    failover_hold_s: float
    """How long dooming pauses when the system identifier or the timeline has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    reservations: int
    unreferenced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DoomingPaused:
    pause_s: float
    reason: Literal["start", "outage", "failover", "ownership"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedPage:
    """`last_seen` is where the next page begins; None: the pass is complete."""

    marked: int
    last_seen: SegmentId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueObject:
    segment_id: SegmentId
    object_key: ObjectKey


class Garbage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def mark_unreferenced(self, after: SegmentId, cap: int) -> MarkedPage:
        """Looks at `cap` segments in id order and starts the grace period of those that nothing refers to."""
        [row] = await self._database.fetch(SQL["mark_unreferenced"], after=after, cap=cap)
        return MarkedPage(marked=row.marked, last_seen=row.last_seen if row.seen == cap else None)

    async def doom(
        self,
        rules: DoomingRules,
        *,
        grace_s: float,
        cap: int,
        outage_seen: bool = False,
        after_checkpoint: bool = False,
    ) -> Doomed | DoomingPaused:
        """Dooms at most `cap` expired reservations and `cap` segments that were unreferenced for `grace_s` and still
        are, unless paused.

        Call it more often than `outage_after_s`; `outage_seen`: the caller could not reach Postgres since the last
        time; `after_checkpoint`: what the journal's last checkpoint may refer to stays until the next one. The look at
        the database and the dooming are one transaction, so no failover comes between them.
        """
        async with self._database.transaction() as connection:
            parameters = {
                "lease_s": rules.reservation_lease_s,
                "outage_after_s": rules.outage_after_s,
                "failover_hold_s": rules.failover_hold_s,
                "outage_seen": outage_seen,
            }
            [watch] = await (await connection.execute(SQL["watch_database"], parameters)).fetchall()
            if watch.pause_s > 0:
                return DoomingPaused(pause_s=watch.pause_s, reason=watch.pause_reason)
            if not await is_owner(connection):
                return DoomingPaused(pause_s=0, reason="ownership")
            expired = await (await connection.execute(RESERVATIONS_SQL["doom_expired"], {"cap": cap})).fetchall()
            parameters = {"grace_s": grace_s, "cap": cap, "after_checkpoint": after_checkpoint}
            cursor = await connection.execute(SQL["lock_unreferenced"], parameters)
            locked = [row.segment_id for row in await cursor.fetchall()]
            cursor = await connection.execute(SQL["judge_unreferenced"], {"segment_ids": locked})
            [judged] = await cursor.fetchall()
            return Doomed(reservations=len(expired), unreferenced=judged.doomed)

    async def due_for_deletion(self, *, grace_s: float, cap: int) -> Sequence[DueObject]:
        """Doomed segments whose grace period is over: delete the objects, then `record_deletion`."""
        return await self._due("due_for_deletion", grace_s=grace_s, cap=cap)

    async def record_deletion(
        self, segment_ids: Sequence[SegmentId], *, late_write_window_s: float, outcome_retention_s: float
    ) -> None:
        """After the objects' first deletion: the rows become tombstones."""
        await self._database.fetch(
            SQL["record_deletion"],
            segment_ids=list(segment_ids),
            late_write_window_s=late_write_window_s,
            outcome_retention_s=outcome_retention_s,
        )

    async def due_for_forgetting(self, cap: int) -> Sequence[DueObject]:
        """Tombstones that have waited long enough: delete the objects again, then `forget`."""
        return await self._due("due_for_forgetting", cap=cap)

    async def forget(self, segment_ids: Sequence[SegmentId]) -> None:
        """After the objects' second deletion: the rows go."""
        await self._database.fetch(SQL["forget"], segment_ids=list(segment_ids))

    async def _due(self, statement: str, **parameters: object) -> Sequence[DueObject]:
        rows = await self._database.fetch(SQL[statement], **parameters)
        return [DueObject(segment_id=row.segment_id, object_key=row.object_key) for row in rows]
