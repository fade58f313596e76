"""Holds: a job's claim, with a lease, on the objects it reads and on those it is about to publish (DESIGN §4,
References).

Promises that a held object is not doomed while the hold's lease lasts, and that a hold that has lapsed is not
renewed. Whoever publishes an object looks under its row's lock whether it is doomed, and whether the hold has
lapsed (functions/publish_merge.sql).
"""

from collections.abc import Collection
from uuid import UUID

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import SegmentId

SQL = load_statements("holds")


class Holds:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, job_id: UUID, segment_ids: Collection[SegmentId], *, lease_s: float) -> frozenset[SegmentId]:
        """Holds those of the segments that are not doomed or gone, and returns them: plan with these alone.
        Repeating it renews.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(SQL["lock_segments"], {"segment_ids": list(segment_ids)})
            held = [SegmentId(row.segment_id) for row in await cursor.fetchall()]
            await connection.execute(SQL["hold"], {"segment_ids": held, "job_id": job_id, "lease_s": lease_s})
            return frozenset(held)

    async def renew(self, job_id: UUID, *, lease_s: float) -> bool:
        """Prolongs all holds of the job. False if one had lapsed (or there is none): then nothing is
        prolonged, and the job ends.
        """
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(SQL["lock_holds_of_job"], {"job_id": job_id})).fetchall()
            if not rows or not all(row.live for row in rows):
                return False
            await connection.execute(SQL["renew"], {"job_id": job_id, "lease_s": lease_s})
            return True

    async def release(self, job_id: UUID) -> None:
        """Lets everything go that the job held."""
        await self._database.run(SQL["release"], job_id=job_id)

    async def purge_lapsed(self, *, older_than_s: float, cap: int) -> int:
        """Forgets at most `cap` holds that lapsed that long ago; returns how many."""
        [row] = await self._database.run(SQL["purge_lapsed"], older_than_s=older_than_s, cap=cap)
        return int(row.deleted)
