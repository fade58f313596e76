"""Holds: a job's claim, with a lease, on the objects it reads and on those it will publish
(docs/design/commit.md#references-and-holds, References).

Promises: a held object is not doomed while the hold's lease lasts. An expired hold is not renewed. To publish
an object, check under its row's lock that it is not doomed and that the hold is valid
(functions/publish_merge.sql).
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

    async def take(
        self, job_id: UUID, segment_ids: Collection[SegmentId], *, lease_s: float
    ) -> frozenset[SegmentId]:
        """Holds those of the segments that are neither doomed nor gone, and returns them: plan only with
        these. Repeating it renews the holds.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(SQL["lock_segments"], {"segment_ids": list(segment_ids)})
            held = [SegmentId(row.segment_id) for row in await cursor.fetchall()]
            await connection.execute(SQL["hold"], {"segment_ids": held, "job_id": job_id, "lease_s": lease_s})
            return frozenset(held)

    async def renew(self, job_id: UUID, *, lease_s: float) -> bool:
        """Prolongs all holds of the job. False: one had expired, or there is none. Then nothing is prolonged,
        and the job must end.
        """
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(SQL["lock_holds_of_job"], {"job_id": job_id})).fetchall()
            if not rows or not all(row.live for row in rows):
                return False
            await connection.execute(SQL["renew"], {"job_id": job_id, "lease_s": lease_s})
            return True

    async def release(self, job_id: UUID) -> None:
        """Releases everything that the job held."""
        await self._database.run(SQL["release"], job_id=job_id)

    async def purge_lapsed(self, *, older_than_s: float, cap: int) -> int:
        """Deletes at most `cap` holds that expired that long ago. Returns how many."""
        [row] = await self._database.run(SQL["purge_lapsed"], older_than_s=older_than_s, cap=cap)
        return int(row.deleted)
