"""Holds: a job's claim, with a lease, on the objects it reads and on those it is about to publish (DESIGN §4,
References).

Promises that a held object is not doomed while the hold's lease lasts, and that a publish made under
`lock_for_publish` refers to no object that was, or could meanwhile be, doomed: a hold that has lapsed fails the
publish, not the log.
"""

from collections.abc import Collection
from uuid import UUID

from psycopg import AsyncConnection

from sequencer.database import Database, Row
from sequencer.named_sql import load_statements
from storage.identifiers import SegmentId

SQL = load_statements("holds")


class HoldLost(Exception):
    """The publish must not go on: the object is doomed or gone, or the job's hold on it has lapsed."""


class Holds:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, job_id: UUID, segment_ids: Collection[SegmentId], *, lease_s: float) -> frozenset[SegmentId]:
        """Holds those of the segments that are not doomed or gone, and returns them: plan with these alone. Repeating
        it renews.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(SQL["lock_segments"], {"segment_ids": list(segment_ids)})
            held = [SegmentId(row.segment_id) for row in await cursor.fetchall()]
            await connection.execute(SQL["hold"], {"segment_ids": held, "job_id": job_id, "lease_s": lease_s})
            return frozenset(held)

    async def renew(self, job_id: UUID, *, lease_s: float) -> bool:
        """Prolongs all holds of the job. False if one had lapsed (or there is none): then nothing is prolonged, and
        the job ends.
        """
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(SQL["lock_holds_of_job"], {"job_id": job_id})).fetchall()
            if not rows or not all(row.live for row in rows):
                return False
            await connection.execute(SQL["renew"], {"job_id": job_id, "lease_s": lease_s})
            return True

    async def release(self, job_id: UUID) -> None:
        """Lets everything go that the job held."""
        await self._database.fetch(SQL["release"], job_id=job_id)

    async def purge_lapsed(self, *, older_than_s: float, cap: int) -> int:
        """Forgets at most `cap` holds that lapsed that long ago; returns how many."""
        [row] = await self._database.fetch(SQL["purge_lapsed"], older_than_s=older_than_s, cap=cap)
        return int(row.deleted)


async def lock_for_publish(connection: AsyncConnection[Row], segment_id: SegmentId, job_id: UUID) -> None:
    """In the publisher's transaction, before it locks partitions and inserts runs: raises HoldLost, or keeps the
    object from being doomed until the transaction ends [raced: a merged object published for one partition, emptied,
    collected, then published for the next].
    """
    segment = await (await connection.execute(SQL["lock_output"], {"segment_id": segment_id})).fetchone()
    if segment is None or segment.state == "doomed":
        raise HoldLost(f"segment {segment_id} is {'gone' if segment is None else 'doomed'}")
    [hold] = await (await connection.execute(SQL["live_hold"], {"segment_id": segment_id, "job_id": job_id})).fetchall()
    if not hold.held:
        raise HoldLost(f"the hold of job {job_id} on segment {segment_id} has lapsed")
