"""Garbage: objects that nothing refers to and nothing can come to refer to (P5;
docs/design/promises.md#p5-safe-deletion).

Promises:
- A segment is doomed only under its row lock and only without runs and live holds.
- Its object is deleted only once it is doomed, after the grace period. It is deleted a second time after the
  late-write window.
- The outcome of its commit stays known for `outcome_retention_s`. A later repeat is refused; it is never
  committed again.
- For a while after an outage or a failover of Postgres nothing is doomed and no outcome is forgotten. Nothing
  is doomed while the bucket may be another database's (docs/design/promises.md#p5-safe-deletion).
- Tombstones and outcomes are dropped by whole partitions. Dropping one waits for a lock no longer than a
  setting says.

This module changes the states; `compactor/garbage_jobs.py` deletes the objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sequencer.cluster.ownership import is_owner
from sequencer.commits.commits import RESERVATIONS_SQL
from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import ObjectKey, SegmentId

SQL = load_statements("garbage")

BEFORE_ALL = SegmentId(UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoomingRules:
    reservation_lease_s: float
    """How long dooming pauses at first and after an outage."""
    outage_after_s: float
    """A longer time without a check of the database counts as an outage."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    width_s: float
    """The interval whose tombstones, or outcomes, share a partition."""
    lock_timeout_ms: int
    """How long making or dropping one waits for a lock, while others queue behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstonePage:
    """Objects to delete a second time."""

    partition: int
    due: Sequence[DueObject]
    swept_to: SegmentId | None
    """Where the next page begins; None: this page is empty."""
    is_last: bool


class Garbage:
    def __init__(self, database: Database) -> None:
        self._database = database

    # --- dooming

    async def mark_unreferenced(self, after: SegmentId, cap: int) -> MarkedPage:
        """Examines `cap` segments in id order, and starts the grace period of those that nothing refers
        to."""
        [row] = await self._database.run(SQL["mark_unreferenced"], after=after, cap=cap)
        return MarkedPage(marked=row.marked, last_seen=row.last_seen if row.seen == cap else None)

    async def doom(
        self,
        rules: DoomingRules,
        *,
        grace_s: float,
        cap: int,
        erased_grace_s: float | None = None,
        outage_seen: bool = False,
        after_checkpoint: bool = False,
    ) -> Doomed | DoomingPaused:
        """Dooms at most `cap` expired reservations, and `cap` segments that were unreferenced for `grace_s`
        and still are, unless dooming pauses. What an erasure may concern waits for `erased_grace_s`.

        Call it more often than `outage_after_s`. `outage_seen`: the caller could not reach Postgres since the
        last call. `after_checkpoint`: what the journal's last checkpoint may refer to stays until the next
        one. The check of the database and the dooming are one transaction, so no failover comes between them.
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
            expired = await (
                await connection.execute(RESERVATIONS_SQL["doom_expired"], {"cap": cap})
            ).fetchall()
            parameters = {
                "grace_s": grace_s,
                "erased_grace_s": grace_s if erased_grace_s is None else erased_grace_s,
                "cap": cap,
                "after_checkpoint": after_checkpoint,
            }
            cursor = await connection.execute(SQL["lock_unreferenced"], parameters)
            locked = [row.segment_id for row in await cursor.fetchall()]
            cursor = await connection.execute(SQL["judge_unreferenced"], {"segment_ids": locked})
            [judged] = await cursor.fetchall()
            return Doomed(reservations=len(expired), unreferenced=judged.doomed)

    # --- deletion

    async def due_for_deletion(self, *, grace_s: float, cap: int) -> Sequence[DueObject]:
        """Returns doomed segments whose grace period is over. Delete the objects, then `bury` them."""
        rows = await self._database.run(SQL["due_for_deletion"], grace_s=grace_s, cap=cap)
        return [DueObject(segment_id=row.segment_id, object_key=row.object_key) for row in rows]

    async def bury(
        self, segment_ids: Sequence[SegmentId], *, outcome_retention_s: float, partitions: PartitionRules
    ) -> int:
        """Call it after the objects' first deletion: turns their rows into tombstones. Returns how many; call
        it again for the rest."""
        await self._make_partitions(partitions)
        [row] = await self._database.run(
            SQL["bury"], segment_ids=list(segment_ids), outcome_retention_s=outcome_retention_s
        )
        return int(row.buried)

    # --- partitions

    async def due_tombstones(self, *, late_write_window_s: float, cap: int) -> TombstonePage | None:
        """Returns tombstones that have waited long enough: delete the objects again, then `sweep` the page.
        None: there are none."""
        closed = await self._database.run(
            SQL["close_due_tombstones"], late_write_window_s=late_write_window_s
        )
        if not closed:
            return None
        [partition] = closed
        rows = await self._database.run(
            SQL["tombstones_to_sweep"], number=partition.number, swept_to=partition.swept_to, cap=cap
        )
        return TombstonePage(
            partition=partition.number,
            due=[
                DueObject(segment_id=row.segment_id, object_key=row.object_key)
                for row in rows
                if not row.is_void
            ],
            swept_to=rows[-1].segment_id if rows else None,
            is_last=len(rows) < cap,
        )

    async def sweep(self, page: TombstonePage, partitions: PartitionRules) -> bool:
        """Call it after the objects' second deletion. With the last page it drops the partition. False: it
        did not get a lock; an empty last page comes next."""
        if page.swept_to is not None:
            await self._database.run(SQL["note_sweep"], number=page.partition, swept_to=page.swept_to)
        return not page.is_last or await self._drop("tombstones", page.partition, partitions)

    async def forget_outcomes(
        self, *, outcome_retention_s: float, outage_after_s: float, partitions: PartitionRules
    ) -> bool:
        """Drops the oldest partition of outcomes if all of them are old enough. True: there may be more."""
        closed = await self._database.run(
            SQL["close_due_outcomes"], outcome_retention_s=outcome_retention_s, outage_after_s=outage_after_s
        )
        return bool(closed) and await self._drop("outcomes", closed[0].number, partitions)

    async def _make_partitions(self, rules: PartitionRules) -> None:
        """Makes the partitions for this and the next interval. Without a lock, those made before mostly
        suffice."""
        await self._database.run(
            SQL["make_partitions"], width_s=rules.width_s, lock_timeout_ms=rules.lock_timeout_ms
        )

    async def _drop(self, table: str, number: int, rules: PartitionRules) -> bool:
        [row] = await self._database.run(
            SQL["drop_partition"], of_table=table, number=number, lock_timeout_ms=rules.lock_timeout_ms
        )
        return bool(row.is_dropped)
