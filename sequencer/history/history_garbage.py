"""Which objects of history the garbage collector may delete, found by state
(docs/design/history.md#unreferenced-files).

There are two kinds. *Recorded* objects were named by a published metadata file. Once no retained snapshot
names one, it waits `history_reader_grace` for outside readers, and is garbage. All else under the *prefix of
an ended job* was never published: repeated attempts, and jobs that were killed or refused. The collector
lists only that prefix, deletes what is not recorded, and forgets the job. It does so only when a late PUT of
a killed task can no longer arrive.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import ObjectKey

SQL = load_statements("history")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    job_id: UUID
    prefix: str


class HistoryGarbage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def drop_deleted(self, cap: int) -> int:
        """Drops the histories of deleted topics: the pointer goes, and their objects become garbage. Returns
        how many.
        """
        rows = await self._database.run(SQL["dropped_tables"], cap=cap)
        for row in rows:
            async with self._database.transaction() as connection:
                parameters = {"topic_id": row.topic_id}
                await connection.execute(SQL["lock_table"], parameters)
                cursor = await connection.execute(SQL["abandon_jobs_of"], parameters)
                job_ids = [job.job_id for job in await cursor.fetchall()]
                await connection.execute(SQL["release_holds"], {"job_ids": job_ids})
                for statement in (
                    "unreference_all_objects",
                    "delete_partitions_of",
                    "delete_files_of",
                    "delete_raw_ranges_of",
                    "delete_table",
                ):
                    await connection.execute(SQL[statement], parameters)
        return len(rows)

    async def abandon_expired(self, cap: int) -> int:
        """Ends the jobs with an expired lease, so that their prefixes are swept. Returns how many."""
        async with self._database.transaction() as connection:
            cursor = await connection.execute(SQL["abandon_all_expired"], {"cap": cap})
            job_ids = [job.job_id for job in await cursor.fetchall()]
            await connection.execute(SQL["release_holds"], {"job_ids": job_ids})
            return len(job_ids)

    async def unreferenced(
        self, *, grace_s: float, cap: int, erased_grace_s: float | None = None, after_checkpoint: bool = False
    ) -> tuple[ObjectKey, ...]:
        """Returns recorded objects that no retained snapshot has named for `grace_s`, and those that may hold
        erased records for `erased_grace_s`. Of the latter, what the journal's last checkpoint may refer to
        stays if `after_checkpoint`. Delete them, then `forget_objects`."""
        rows = await self._database.run(SQL["garbage"], grace_s=grace_s, cap=cap)
        rows += await self._database.run(
            SQL["erased_garbage"],
            grace_s=grace_s if erased_grace_s is None else erased_grace_s,
            after_checkpoint=after_checkpoint,
            cap=cap,
        )
        return tuple(dict.fromkeys(ObjectKey(row.object_key) for row in rows))

    async def forget_objects(self, keys: Collection[ObjectKey]) -> None:
        """Forgets objects after their deletion."""
        await self._database.run(SQL["forget_objects"], object_keys=list(keys))

    async def ended_jobs(self, *, older_than_s: float, cap: int) -> tuple[EndedJob, ...]:
        """Returns jobs that ended that long ago. List each prefix, delete what is not `recorded`, then
        `forget_jobs`."""
        rows = await self._database.run(SQL["ended_jobs"], older_than_s=older_than_s, cap=cap)
        return tuple(EndedJob(job_id=row.job_id, prefix=row.prefix) for row in rows)

    async def recorded(self, keys: Collection[ObjectKey]) -> frozenset[ObjectKey]:
        """Returns those of the keys that have a row, referenced or not."""
        rows = await self._database.run(SQL["recorded"], object_keys=list(keys))
        return frozenset(ObjectKey(row.object_key) for row in rows)

    async def forget_jobs(self, job_ids: Collection[UUID]) -> None:
        """Forgets jobs after their prefixes were swept."""
        await self._database.run(SQL["forget_jobs"], job_ids=list(job_ids))

    async def reserved_prefixes(self) -> Sequence[str]:
        """Returns prefixes of jobs that run or are not swept yet. An unrecorded object there is reserved or
        garbage; elsewhere it is an orphan.
        """
        return [row.prefix for row in await self._database.run(SQL["unforgotten_prefixes"])]
