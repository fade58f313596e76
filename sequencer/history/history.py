"""History: the pointers of the topics' Iceberg tables, the jobs that write them, and their garbage.

Promises (docs/design/history.md#publish):
- A range of offsets is published once, however often and by however many jobs it is tried. The pointer, its
  end offsets and its objects change in one transaction, only from the version that the publish was staged on,
  and only while the job's hold lasts.
- Repeating a publish whose response was lost returns the first outcome.
- Nothing here deletes an object. An object that no retained snapshot names any more is recorded, with the
  time, for the garbage collector.

A topic's history is on from its first compaction. From then on `compacted_to` tells retention how far it may
go.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from sequencer.cluster.ownership import demand_ownership
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.history.history_garbage import HistoryGarbage
from sequencer.history.history_values import (
    Begun,
    Busy,
    HistoryJob,
    HistoryTable,
    NothingToDo,
    Publication,
    Published,
    PublishRefused,
    RawRange,
    RunToCompact,
)
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, SegmentId, TopicId

SQL = load_statements("history")

JobKind = Literal["compact", "expire"]


def history_prefix(cluster: str) -> str:
    """The prefix of everything that a cluster's history jobs write."""
    return f"{cluster}/history/"


class _Refusal(Exception):
    """Rolls the transaction back."""


class History:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.garbage = HistoryGarbage(database)

    async def begin_compaction(
        self, topic_id: TopicId, *, cluster: str, lease_s: float, runs_per_partition: int
    ) -> Begun | Busy | NothingToDo:
        """Claims the topic's history, reserves a prefix, and holds the objects of the runs that are not in
        history yet. Raises OwnershipUnconfirmed, as `begin_expiry` and `publish` do.
        """
        rows = await self._database.read(SQL["has_work"], topic_id=topic_id)
        if not rows[0].has_work:
            return NothingToDo()
        async with self._database.transaction() as connection:
            await connection.execute(SQL["lock_partitions"], {"topic_id": topic_id})
            await connection.execute(SQL["turn_on_table"], {"topic_id": topic_id})
            await connection.execute(SQL["turn_on_partitions"], {"topic_id": topic_id})
        async with self._database.transaction() as connection:
            job = await self._claim(connection, topic_id, "compact", cluster, lease_s)
            if not isinstance(job, HistoryJob):
                return job
            found = await _rows(connection, "runs_to_compact", topic_id=topic_id, runs_per_partition=runs_per_partition)
            segment_ids = sorted({row.segment_id for row in found})
            committed = {row.segment_id for row in await _rows(connection, "lock_segments", segment_ids=segment_ids)}
            runs = _contiguous([_run(row) for row in found if row.segment_id in committed])
            if not runs:
                await connection.execute(SQL["end_job"], {"job_id": job.job_id, "state": "abandoned"})
                return NothingToDo()
            held = sorted({run.segment_id for run in runs})
            await connection.execute(
                SQL["hold_segments"], {"job_id": job.job_id, "segment_ids": held, "lease_s": lease_s}
            )
            return Begun(job=job, runs=runs)

    async def begin_expiry(self, topic_id: TopicId, *, cluster: str, lease_s: float) -> HistoryJob | Busy | NothingToDo:
        """Claims the topic's history to drop expired records from it."""
        async with self._database.transaction() as connection:
            return await self._claim(connection, topic_id, "expire", cluster, lease_s)

    async def renew(self, job_id: UUID, lease_s: float) -> bool:
        """Prolongs the job's hold. False: it has ended, for good."""
        async with self._database.transaction() as connection:
            renewed = await _rows(connection, "renew_job", job_id=job_id, lease_s=lease_s)
            if renewed:
                await connection.execute(SQL["renew_holds"], {"job_id": job_id, "lease_s": lease_s})
            return bool(renewed)

    async def publish(self, job: HistoryJob, publication: Publication) -> Published | PublishRefused:
        """Makes the job's output the topic's history. Raises CommitOutcomeUnknown: repeat it with the same
        arguments until the outcome is known.
        """
        try:
            async with self._database.transaction() as connection:
                return await self._publish(connection, job, publication)
        except _Refusal as refusal:
            return PublishRefused(reason=str(refusal))

    async def abandon(self, job_id: UUID) -> None:
        """Ends the job without a publish and releases its inputs. Harmless after a publish."""
        async with self._database.transaction() as connection:
            await connection.execute(SQL["end_job"], {"job_id": job_id, "state": "abandoned"})
            await connection.execute(SQL["release_holds"], {"job_ids": [job_id]})

    async def compacted_to(self, topic_ids: Sequence[TopicId]) -> dict[tuple[TopicId, Partition], Offset]:
        """Returns how far retention may move the log start, for every live partition of those topics with
        history."""
        rows = await self._database.read(SQL["compacted_to"], topic_ids=list(topic_ids))
        return {(TopicId(row.topic_id), Partition(row.partition)): Offset(row.compacted_to) for row in rows}

    async def tables(self) -> tuple[HistoryTable, ...]:
        """Returns every table that a reader can open, by name."""
        return tuple(_table(row) for row in await self._database.read(SQL["tables"]))

    async def table(self, topic_name: str) -> HistoryTable | None:
        """None if there is no such topic."""
        rows = await self._database.read(SQL["table_by_name"], name=topic_name)
        return _table(rows[0]) if rows else None

    async def raw_ranges(self, topic_id: TopicId) -> tuple[RawRange, ...]:
        """Returns the ranges of a topic that did not decode."""
        rows = await self._database.read(SQL["raw_ranges"], topic_id=topic_id)
        return tuple(_raw_range(row) for row in rows)

    async def live_objects(self, topic_id: TopicId) -> dict[ObjectKey, datetime]:
        """Returns the objects that a retained snapshot may name, each with the time that replaces missing
        timestamps."""
        rows = await self._database.read(SQL["live_objects"], topic_id=topic_id)
        return {ObjectKey(row.object_key): row.written_at for row in rows}

    async def _claim(
        self, connection: AsyncConnection[Row], topic_id: TopicId, kind: JobKind, cluster: str, lease_s: float
    ) -> HistoryJob | Busy | NothingToDo:
        await demand_ownership(connection)
        tables = await _rows(connection, "lock_table", topic_id=topic_id)
        if not tables:
            return NothingToDo()
        expired = await _rows(connection, "abandon_expired", topic_id=topic_id)
        await connection.execute(SQL["release_holds"], {"job_ids": [job.job_id for job in expired]})
        running = await _rows(connection, "running_job", topic_id=topic_id)
        if running:
            return Busy(until=running[0].lease_until)
        job_id = uuid4()
        prefix = f"{history_prefix(cluster)}{topic_id}/{job_id}/"
        parameters = {"job_id": job_id, "topic_id": topic_id, "kind": kind, "prefix": prefix, "lease_s": lease_s}
        await connection.execute(SQL["insert_job"], parameters)
        return HistoryJob(
            job_id=job_id,
            topic_id=topic_id,
            prefix=prefix,
            version=tables[0].version,
            metadata_key=tables[0].metadata_key,
        )

    async def _publish(self, connection: AsyncConnection[Row], job: HistoryJob, publication: Publication) -> Published:
        tables = await _rows(connection, "lock_table", topic_id=job.topic_id)
        found = await _rows(connection, "lock_job", job_id=job.job_id)
        if found and found[0].state == "published":
            return Published()  # the response to an earlier attempt was lost
        await demand_ownership(connection)
        if not tables:
            raise _Refusal("the topic was deleted")
        if not found or found[0].state != "running" or not found[0].held:
            raise _Refusal("the job's lease has passed")
        if tables[0].version != job.version:
            raise _Refusal("another job published first")
        await self._advance(connection, job, publication)
        if publication.metadata_key is not None:
            moved = {"topic_id": job.topic_id, "version": job.version, "metadata_key": publication.metadata_key}
            await connection.execute(SQL["move_pointer"], moved)
        await connection.execute(SQL["end_job"], {"job_id": job.job_id, "state": "published"})
        await connection.execute(SQL["release_holds"], {"job_ids": [job.job_id]})
        return Published()

    async def _advance(self, connection: AsyncConnection[Row], job: HistoryJob, publication: Publication) -> None:
        await connection.execute(SQL["lock_history_partitions"], {"topic_id": job.topic_id})
        advances = publication.advances
        parameters: dict[str, Any] = {
            "topic_id": job.topic_id,
            "partitions": [advance.partition for advance in advances],
            "from_offsets": [advance.from_offset for advance in advances],
            "to_offsets": [advance.to_offset for advance in advances],
        }
        advanced = await _rows(connection, "advance_partitions", **parameters)
        if len(advanced) != len(advances):
            raise _Refusal("another job published these offsets first")
        raw = publication.raw_ranges
        parameters = {
            "topic_id": job.topic_id,
            "partitions": [each.partition for each in raw],
            "base_offsets": [each.base_offset for each in raw],
            "last_offsets": [each.last_offset for each in raw],
            "reasons": [each.reason for each in raw],
        }
        await connection.execute(SQL["insert_raw_ranges"], parameters)
        parameters = {
            "topic_id": job.topic_id,
            "object_keys": list(publication.added),
            "written_ats": list(publication.added.values()),
        }
        await connection.execute(SQL["insert_objects"], parameters)
        parameters = {"topic_id": job.topic_id, "object_keys": list(publication.unreferenced)}
        await connection.execute(SQL["unreference_objects"], parameters)


async def _rows(connection: AsyncConnection[Row], statement: str, **parameters: Any) -> list[Row]:
    cursor = await connection.execute(SQL[statement], parameters)
    return await cursor.fetchall()


def _run(row: Row) -> RunToCompact:
    return RunToCompact(
        partition=Partition(row.partition),
        from_offset=Offset(max(row.from_offset, row.base_offset)),
        base_offset=Offset(row.base_offset),
        last_offset=Offset(row.last_offset),
        segment_id=SegmentId(row.segment_id),
        object_key=ObjectKey(row.object_key),
        position=BytePosition(row.position),
        length=row.length,
    )


def _contiguous(runs: Sequence[RunToCompact]) -> tuple[RunToCompact, ...]:
    """Returns each partition's runs up to the first gap. After a gap come runs that were deleted during this
    call: an object before them is doomed.
    """
    kept: list[RunToCompact] = []
    stopped: set[Partition] = set()
    for run in runs:
        follows = not kept or kept[-1].partition != run.partition or kept[-1].last_offset + 1 == run.base_offset
        if not follows:
            stopped.add(run.partition)
        if run.partition not in stopped:
            kept.append(run)
    return tuple(kept)


def _table(row: Row) -> HistoryTable:
    return HistoryTable(
        topic_id=TopicId(row.topic_id), topic_name=row.name, config=row.config, metadata_key=row.metadata_key
    )


def _raw_range(row: Row) -> RawRange:
    return RawRange(
        partition=Partition(row.partition),
        base_offset=Offset(row.base_offset),
        last_offset=Offset(row.last_offset),
        reason=row.reason,
    )
