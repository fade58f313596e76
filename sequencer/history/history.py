"""History: the pointers of the topics' Iceberg tables, the jobs that write them, and their garbage.

Promises (docs/design/history.md#publish):
- A range of offsets is published once, however often and by however many jobs it is tried. The pointer, its
  end offsets and its objects change in one transaction, only from the version that the publish was staged on,
  and only while the job's hold lasts.
- A table begins again only of a topic that is compacted by key, and only where no file is the log.
- Repeating a publish whose response was lost returns the first outcome.
- Nothing here deletes an object. An object that no retained snapshot names any more is recorded, with the
  time, for the garbage collector.

A topic's history is on from its first compaction. From then on `compacted_to` tells retention how far it may
go.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from sequencer.cluster.ownership import demand_ownership
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.history.history_garbage import HistoryGarbage
from sequencer.history.history_values import (
    Advance,
    Begun,
    Busy,
    Ends,
    HistoryJob,
    HistoryTable,
    NothingToDo,
    Outrun,
    Publication,
    Published,
    PublishRefused,
    RawRange,
    RowGroup,
    RunToCompact,
    ShownJob,
    StagedVersion,
    StatePlan,
    TableFile,
    TableVersion,
    TopicBehind,
    TopicShown,
)
from sequencer.tenants.tenant_names import behind, prefix_of
from sequencer.topics.topic_config import KNOWN_CONFIGS
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import BytePosition, ObjectKey, Offset, Partition, ProducerId, SegmentId, TopicId

SQL = load_statements("history")

TABLES_PER_PAGE = 1_000
_DISAMBIGUATED = re.compile(r"(.+)__[0-9a-fA-F]{8}")
_MAX_ABORTED = 200_000
"""Aborted transactions of a job, shared evenly among its partitions. What more would be needed for waits for
the next job."""
_MAX_ABORTED_OF_ONE = 1_000_000
_NO_END = (1 << 63) - 1
_LONGEST_RETENTION_MS = 1_000 * 365 * 86_400_000
"""Beyond, nothing expires, and no time of Postgres reaches back so far."""

JobKind = Literal["compact", "expire", "merge", "erase"]


def history_prefix(cluster: str) -> str:
    """The prefix of everything that a cluster's history jobs write."""
    return f"{cluster}/history/"


class _Refusal(Exception):
    """Rolls the transaction back."""

    def __init__(self, answer: Outrun | PublishRefused) -> None:
        super().__init__()
        self.answer = answer


def _refused(reason: str, *, is_of_files: bool = False) -> _Refusal:
    return _Refusal(PublishRefused(reason=reason, is_of_files=is_of_files))


class History:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.garbage = HistoryGarbage(database)

    async def ends(self, topic_id: TopicId, *, is_state: bool = False) -> Ends:
        """Where the stable part of the log of each live partition ends now. With `is_state`, of each that can
        have its state as history."""
        rows = await self._database.read(SQL["ends"], topic_id=topic_id, is_state=is_state)
        return Ends(
            at=rows[0].now if rows else None,
            offsets={Partition(row.partition): Offset(row.last_stable_offset) for row in rows},
        )

    async def is_complete(self, topic_id: TopicId, ends: Ends, *, is_state: bool = False) -> bool:
        """Whether all stable records below the ends are in history. If so, it is noted."""
        wanted = {"topic_id": topic_id, "is_state": is_state, **_wanted(ends)}
        if (await self._database.read(SQL["has_work"], **wanted))[0].has_work:
            return False
        await self._database.run(SQL["note_complete"], topic_id=topic_id, complete_at=ends.at)
        return True

    async def behind(self) -> tuple[TopicBehind, ...]:
        """The topics whose history is on and lacks stable records. Looks at every live partition's row."""
        return tuple(
            TopicBehind(
                topic_id=TopicId(row.topic_id),
                topic_name=row.name,
                config=row.config,
                partition_count=row.partitions,
                records=row.records,
                raw_bytes=row.raw_bytes,
                behind_s=row.behind_s,
            )
            for row in await self._database.read(SQL["behind"])
        )

    async def topics_with_expired_files(self) -> tuple[str, ...]:
        """The names of the topics of whose history a file may have expired, whole or in part."""
        rows = await self._database.read(
            SQL["with_expired_files"],
            default_retention_ms=int(KNOWN_CONFIGS["retention.ms"].default),
            longest_ms=_LONGEST_RETENTION_MS,
        )
        return tuple(row.name for row in rows)

    async def shown(self, topic_name: str | None = None) -> tuple[TopicShown, ...]:
        """What the history of each topic has, or of one, by name. Counts the rows of its files."""
        return tuple(
            TopicShown(
                topic_name=row.name,
                config=row.config,
                files=row.files,
                records=row.records,
                parquet_bytes=row.parquet_bytes,
                raw_bytes=row.raw_bytes,
                raw_records=row.raw_records,
                raw_ranges=row.raw_ranges,
                complete_at=row.complete_at,
                published_at=row.published_at,
                last_job=None
                if row.job_kind is None
                else ShownJob(
                    kind=row.job_kind, state=row.job_state, age_s=row.job_age_s, took_s=row.job_took_s
                ),
                waits=row.waits,
            )
            for row in await self._database.read(SQL["shown"], name=topic_name)
        )

    async def begin_compaction(
        self,
        topic_id: TopicId,
        ends: Ends,
        *,
        cluster: str,
        lease_s: float,
        runs_per_partition: int,
        is_state: bool = False,
    ) -> Begun | Busy | NothingToDo:
        """Claims the topic's history, reserves a prefix, and holds the objects of the stable runs that are
        not in history yet. `is_state`: the topic is compacted by key. Raises OwnershipUnconfirmed, as
        `begin_expiry` and `publish` do.
        """
        wanted = {"topic_id": topic_id, "is_state": is_state, **_wanted(ends)}
        rows = await self._database.read(SQL["has_work"], **wanted)
        if not rows[0].has_work:
            return NothingToDo()
        async with self._database.transaction() as connection:
            await connection.execute(SQL["add_table"], {"topic_id": topic_id})
            job = await self._claim(connection, topic_id, "compact", cluster, lease_s)
            if not isinstance(job, HistoryJob):
                return job
            found = await _runs_to_compact(
                connection,
                ends.offsets,
                topic_id=topic_id,
                runs_per_partition=runs_per_partition,
                is_state=is_state,
            )
            segment_ids = sorted({run.segment_id for run in found.runs})
            committed = {
                row.segment_id for row in await _rows(connection, "lock_segments", segment_ids=segment_ids)
            }
            runs = _contiguous([run for run in found.runs if run.segment_id in committed])
            if not runs:
                await connection.execute(SQL["end_job"], {"job_id": job.job_id, "state": "abandoned"})
                return NothingToDo()
            held = sorted({run.segment_id for run in runs})
            await connection.execute(
                SQL["hold_segments"], {"job_id": job.job_id, "segment_ids": held, "lease_s": lease_s}
            )
            states = found.states if is_state else {}
            return Begun(job=job, runs=runs, aborted=found.aborted, states=states)

    async def begin(
        self, topic_id: TopicId, kind: Literal["expire", "merge", "erase"], *, cluster: str, lease_s: float
    ) -> HistoryJob | Busy | NothingToDo:
        """Claims the topic's history to drop what has expired from it, to merge small files, or to erase
        records."""
        async with self._database.transaction() as connection:
            return await self._claim(connection, topic_id, kind, cluster, lease_s)

    async def renew(self, job_id: UUID, lease_s: float) -> bool:
        """Prolongs the job's hold. False: it has ended, for good."""
        async with self._database.transaction() as connection:
            renewed = await _rows(connection, "renew_job", job_id=job_id, lease_s=lease_s)
            if renewed:
                await connection.execute(SQL["renew_holds"], {"job_id": job_id, "lease_s": lease_s})
            return bool(renewed)

    async def publish(self, job: HistoryJob, publication: Publication) -> Published | Outrun | PublishRefused:
        """Makes the job's output the topic's history. Raises CommitOutcomeUnknown: repeat it with the same
        arguments until known.
        """
        try:
            async with self._database.transaction() as connection:
                return await self._publish(connection, job, publication)
        except _Refusal as refusal:
            return refusal.answer

    async def abandon(self, job_id: UUID) -> None:
        """Ends the job without a publish and releases its inputs. Harmless after a publish."""
        async with self._database.transaction() as connection:
            await connection.execute(SQL["end_job"], {"job_id": job_id, "state": "abandoned"})
            await connection.execute(SQL["release_holds"], {"job_ids": [job_id]})

    async def note_wait(self, topic_id: TopicId, reason: str | None) -> None:
        """Remembers, for people, why the topic's records cannot become columns; None: they can."""
        await self._database.run(SQL["note_wait"], topic_id=topic_id, reason=reason)

    async def compacted_to(self, topic_ids: Sequence[TopicId]) -> dict[tuple[TopicId, Partition], Offset]:
        """Returns how far retention may move the log start, for every live partition of those topics with
        history."""
        rows = await self._database.read(SQL["compacted_to"], topic_ids=list(topic_ids))
        return {(TopicId(row.topic_id), Partition(row.partition)): Offset(row.compacted_to) for row in rows}

    async def tables(self, after: str = "", cap: int = TABLES_PER_PAGE) -> tuple[HistoryTable, ...]:
        """Returns the tables that a reader can open, by the topics' names: the first `cap` after `after`."""
        rows = await self._database.read(SQL["catalog_tables"], after=after, cap=cap)
        return tuple(map(_table, rows))

    async def tables_of_tenant(
        self, tenant: str, after: str = "", cap: int = TABLES_PER_PAGE
    ) -> tuple[HistoryTable, ...]:
        """As `tables`, of one tenant. `after` has the tenant's prefix, if it is not empty."""
        prefix = prefix_of(tenant)
        rows = await self._database.read(
            SQL["catalog_tables_of_tenant"], after=max(after, prefix), behind=behind(prefix), cap=cap
        )
        return tuple(map(_table, rows))

    async def table(self, name: str) -> HistoryTable | None:
        """Returns the table of this name, in this case before any other; None if there is no such topic."""
        wanted = [name.lower()]
        if (disambiguated := _DISAMBIGUATED.fullmatch(name)) is not None:
            wanted.append(disambiguated[1].lower())
        rows = await self._database.read(SQL["catalog_candidates"], names=wanted)
        found = [row for row in rows if row.name == name] or [
            row for row in rows if row.name.lower() == name.lower()
        ]
        return _table(found[0]) if found else None

    async def version(self, topic_id: TopicId) -> TableVersion | None:
        """Returns the state of the topic's table now; None if there is none any more."""
        rows = await self._database.read(SQL["table_version"], topic_id=topic_id)
        return TableVersion(number=rows[0].version, metadata_key=rows[0].metadata_key) if rows else None

    async def raw_ranges(self, topic_id: TopicId) -> tuple[RawRange, ...]:
        """Returns the ranges of a topic that did not decode."""
        rows = await self._database.read(SQL["raw_ranges"], topic_id=topic_id)
        return tuple(_raw_range(row) for row in rows)

    async def live_objects(self, topic_id: TopicId, after: str, cap: int) -> tuple[ObjectKey, ...]:
        """Objects that a retained snapshot may name, in key order: the first `cap` after `after` (first:
        "").
        """
        rows = await self._database.read(SQL["live_objects"], topic_id=topic_id, after=after, cap=cap)
        return tuple(ObjectKey(row.object_key) for row in rows)

    async def live_among(self, keys: Sequence[ObjectKey]) -> frozenset[ObjectKey]:
        """Those of the keys that a retained snapshot may name."""
        rows = await self._database.read(SQL["live_among"], object_keys=list(keys))
        return frozenset(ObjectKey(row.object_key) for row in rows)

    async def expired_files(self, topic_id: TopicId, cutoff: datetime, cap: int) -> tuple[TableFile, ...]:
        """The first `cap` files of the current snapshot of which every record is older than `cutoff`, and as
        many of which every record was deleted by a request.
        """
        rows = await self._database.read(SQL["expired_files"], topic_id=topic_id, cutoff=cutoff, cap=cap)
        return tuple(map(_file, rows))

    async def partly_expired_files(
        self, topic_id: TopicId, cutoff: datetime, cap: int
    ) -> tuple[TableFile, ...]:
        """The first `cap` files of the current snapshot of which some records are older than `cutoff`, and as
        many of which some were deleted by a request.
        """
        rows = await self._database.read(
            SQL["partly_expired_files"], topic_id=topic_id, cutoff=cutoff, cap=cap
        )
        return tuple(map(_file, rows))

    async def deleted_to(self, topic_id: TopicId) -> dict[Partition, Offset]:
        """Where requests deleted records: for each partition concerned, the first offset that stays."""
        rows = await self._database.read(SQL["deleted_to"], topic_id=topic_id)
        return {Partition(row.partition): Offset(row.deleted_to) for row in rows}

    async def files_from(
        self, topic_id: TopicId, partition: Partition, from_offset: Offset, cap: int
    ) -> tuple[TableFile, ...]:
        """The first `cap` files of the current snapshot that hold offsets of a partition from one on."""
        rows = await self._database.read(
            SQL["files_from"], topic_id=topic_id, partition=partition, from_offset=from_offset, cap=cap
        )
        return tuple(map(_file, rows))

    async def log_files_from(
        self, topic_id: TopicId, partition: Partition, from_offset: Offset, cap: int
    ) -> tuple[tuple[TableFile, ...], Offset]:
        """As `files_from`, of files that hold all records. The offset is where those begin: below it,
        the files have the last record of each key alone.
        """
        rows = await self._database.read(
            SQL["log_files_from"], topic_id=topic_id, partition=partition, from_offset=from_offset, cap=cap
        )
        files = tuple(_file(row) for row in rows if row.object_key is not None)
        return files, Offset(rows[0].state_to)

    async def first_offsets(
        self, topic_id: TopicId, partitions: Sequence[Partition]
    ) -> dict[Partition, Offset]:
        """Where the history of each of these partitions begins. A partition without history is left out."""
        rows = await self._database.read(SQL["first_offsets"], topic_id=topic_id, partitions=list(partitions))
        return {Partition(row.partition): Offset(row.first_offset) for row in rows}

    async def small_files(
        self, topic_id: TopicId, from_partition: Partition, cap: int
    ) -> tuple[Sequence[TableFile], ...]:
        """Files of the current snapshot that are not full: the first `cap` from a partition on, in groups of
        neighbours of one partition, in the order of their offsets.
        """
        rows = await self._database.read(
            SQL["small_files"], topic_id=topic_id, from_partition=from_partition, cap=cap
        )
        groups: list[list[TableFile]] = []
        for row in rows:
            if row.previous is None or row.follows_full:
                groups.append([])
            groups[-1].append(_file(row))
        return tuple(groups)

    async def _claim(
        self, connection: AsyncConnection[Row], topic_id: TopicId, kind: JobKind, cluster: str, lease_s: float
    ) -> HistoryJob | Busy | NothingToDo:
        await demand_ownership(connection)
        tables = await _rows(connection, "lock_table", topic_id=topic_id)
        if not tables:
            return NothingToDo()
        expired = await _rows(connection, "abandon_expired", topic_id=topic_id)
        await connection.execute(SQL["release_holds"], {"job_ids": [job.job_id for job in expired]})
        running = await _rows(connection, "running_job", topic_id=topic_id, kind=kind)
        if running:
            return Busy(until=running[0].lease_until)
        job_id = uuid4()
        prefix = f"{history_prefix(cluster)}{topic_id}/{job_id}/"
        parameters = {
            "job_id": job_id,
            "topic_id": topic_id,
            "kind": kind,
            "prefix": prefix,
            "lease_s": lease_s,
        }
        await connection.execute(SQL["insert_job"], parameters)
        return HistoryJob(
            job_id=job_id,
            topic_id=topic_id,
            prefix=prefix,
            table=TableVersion(number=tables[0].version, metadata_key=tables[0].metadata_key),
        )

    async def _publish(
        self, connection: AsyncConnection[Row], job: HistoryJob, publication: Publication
    ) -> Published:
        tables = await _rows(connection, "lock_table", topic_id=job.topic_id)
        found = await _rows(connection, "lock_job", job_id=job.job_id)
        if found and found[0].state == "published":
            return Published()  # the response to an earlier attempt was lost
        await demand_ownership(connection)
        if not tables:
            raise _refused("the topic was deleted")
        if not found or found[0].state != "running" or not found[0].held:
            raise _refused("the job's lease has passed")
        if publication.version is not None:
            now = TableVersion(number=tables[0].version, metadata_key=tables[0].metadata_key)
            if now != publication.version.on:
                raise _Refusal(Outrun(table=now))
            await self._move(connection, job, publication, publication.version)
        await self._advance(connection, job, publication)
        await connection.execute(SQL["note_publish"], {"topic_id": job.topic_id})
        await connection.execute(SQL["end_job"], {"job_id": job.job_id, "state": "published"})
        await connection.execute(SQL["release_holds"], {"job_ids": [job.job_id]})
        return Published()

    async def _move(
        self,
        connection: AsyncConnection[Row],
        job: HistoryJob,
        publication: Publication,
        staged: StagedVersion,
    ) -> None:
        """Makes the staged version the current one, with its files and objects."""
        added, removed = publication.added, list(publication.removed)
        topic = {"topic_id": job.topic_id}
        deleted = await _rows(connection, "delete_files", **topic, object_keys=removed)
        if len(deleted) != len(removed):
            raise _refused("another job replaced these files first", is_of_files=True)
        parameters: dict[str, Any] = {
            "object_keys": [file.object_key for file in added],
            "partitions": [file.partition for file in added],
            "first_offsets": [file.first_offset for file in added],
            "last_offsets": [file.last_offset for file in added],
            "row_counts": [file.row_count for file in added],
            "size_bytes": [file.size_bytes for file in added],
            "is_full": [file.is_full for file in added],
            "written_ats": [file.written_at for file in added],
            "oldest": [file.oldest for file in added],
            "newest": [file.newest for file in added],
            "has_untimed": [file.has_untimed for file in added],
            "row_groups": [_row_groups_text(file) for file in added],
        }
        await connection.execute(
            SQL["insert_files"], {**topic, **parameters, "sequence_number": staged.sequence_number}
        )
        written = [*staged.written, *parameters["object_keys"]]
        await connection.execute(SQL["insert_objects"], {**topic, "object_keys": written})
        version = staged.on.number + 1
        await connection.execute(
            SQL["let_objects_go"], {**topic, "version": version, "object_keys": [*staged.let_go, *removed]}
        )
        await connection.execute(
            SQL["unreference_objects"], {**topic, "oldest_version": staged.oldest_version}
        )
        await connection.execute(
            SQL["move_pointer"], {**topic, "version": staged.on.number, "metadata_key": staged.metadata_key}
        )

    async def _advance(
        self, connection: AsyncConnection[Row], job: HistoryJob, publication: Publication
    ) -> None:
        states = [each for each in publication.advances if each.state is not None]
        advances = [each for each in publication.advances if each.state is None]
        if publication.advances:
            topics = await _rows(connection, "policy", topic_id=job.topic_id)
            if not topics:
                raise _refused("the topic was deleted")
            if advances if topics[0].is_compacted else states:
                raise _refused("the topic's cleanup policy has changed")
        await self._advance_states(connection, job, states)
        parameters: dict[str, Any] = {
            "topic_id": job.topic_id,
            "partitions": [advance.partition for advance in advances],
            "from_offsets": [advance.from_offset for advance in advances],
            "to_offsets": [advance.to_offset for advance in advances],
        }
        advanced = await _rows(connection, "advance_partitions", **parameters)
        if len(advanced) != len(advances):
            raise _refused("another job published these offsets first")
        raw = publication.raw_ranges
        parameters = {
            "topic_id": job.topic_id,
            "partitions": [each.partition for each in raw],
            "base_offsets": [each.base_offset for each in raw],
            "last_offsets": [each.last_offset for each in raw],
            "reasons": [each.reason for each in raw],
        }
        await connection.execute(SQL["insert_raw_ranges"], parameters)

    async def _advance_states(
        self, connection: AsyncConnection[Row], job: HistoryJob, advances: Sequence[Advance]
    ) -> None:
        plans = [(each.partition, each.to_offset, each.state) for each in advances if each.state is not None]
        begun_again = {
            "topic_id": job.topic_id,
            "partitions": [partition for partition, _, plan in plans if not plan.is_begun],
        }
        if begun_again["partitions"]:
            # Its files go, so none of them may be the log.
            locked = await _rows(connection, "lock_partitions", **begun_again)
            if any(row.is_in_history for row in locked):
                raise _refused("Parquet has become the log of a partition")
        parameters: dict[str, Any] = {
            "topic_id": job.topic_id,
            "partitions": [partition for partition, _, _ in plans],
            "to_offsets": [to_offset for _, to_offset, _ in plans],
            "gone_to": [plan.tombstones_gone_to for _, _, plan in plans],
            "seen_to": [plan.seen_to for _, _, plan in plans],
            "seen_state_to": [plan.seen_state_to for _, _, plan in plans],
        }
        if len(await _rows(connection, "advance_states", **parameters)) != len(advances):
            raise _refused("another job published these offsets first")
        await connection.execute(SQL["forget_raw_ranges"], begun_again)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The runs of a job, as far as the aborted transactions that overlap them are known."""

    runs: Sequence[RunToCompact]
    aborted: Mapping[Partition, tuple[AbortedTransaction, ...]]
    """Also of a partition without a run: there, an open transaction spans too many aborted ones."""
    states: Mapping[Partition, StatePlan]


def _wanted(ends: Ends) -> dict[str, Any]:
    return {"partitions": list(ends.offsets), "ends": list(ends.offsets.values())}


async def _rows(connection: AsyncConnection[Row], statement: str, **parameters: Any) -> list[Row]:
    cursor = await connection.execute(SQL[statement], parameters)
    return await cursor.fetchall()


async def _runs_to_compact(
    connection: AsyncConnection[Row], ends: Mapping[Partition, Offset], **parameters: Any
) -> _Found:
    """If every partition has too many aborted transactions, the first is read by itself."""
    found = await _runs_of(connection, ends, max(1, _MAX_ABORTED // len(ends)), **parameters)
    if found.aborted and not found.runs:
        first = next(iter(found.aborted))
        found = await _runs_of(connection, {first: ends[first]}, _MAX_ABORTED_OF_ONE, **parameters)
    return found


async def _runs_of(
    connection: AsyncConnection[Row], ends: Mapping[Partition, Offset], max_aborted: int, **parameters: Any
) -> _Found:
    wanted = {"partitions": list(ends), "ends": list(ends.values()), "max_aborted": max_aborted}
    runs: list[RunToCompact] = []
    aborted: dict[Partition, tuple[AbortedTransaction, ...]] = {}
    states: dict[Partition, StatePlan] = {}
    known_to = _NO_END
    for row in await _rows(connection, "runs_to_compact", **parameters, **wanted):
        if row.place == 1:
            states[row.partition] = _state_plan(row)
            entries: Sequence[Sequence[int]] = row.aborted or ()
            aborted[row.partition] = tuple(_aborted(entry) for entry in entries)
            # Later entries begin at or after the last one's stable offset.
            known_to = entries[-1][3] if len(entries) == max_aborted else _NO_END
        run = _run(row, known_to)
        if run.end_offset > run.from_offset:
            runs.append(run)
    return _Found(runs=runs, aborted=aborted, states=states)


def _state_plan(row: Row) -> StatePlan:
    return StatePlan(
        from_offset=Offset(row.from_offset),
        seen_to=row.seen_to,
        seen_state_to=Offset(row.seen_state_to or 0),
        is_begun=row.continues,
        tombstones_gone_to=Offset(row.seen_gone_to if row.continues else row.gone_to),
    )


def _aborted(entry: Sequence[int]) -> AbortedTransaction:
    last_offset, first_offset, producer_id, *_ = entry
    return AbortedTransaction(Offset(last_offset), Offset(first_offset), ProducerId(producer_id))


def _run(row: Row, known_to: int) -> RunToCompact:
    return RunToCompact(
        partition=Partition(row.partition),
        from_offset=Offset(max(row.from_offset, row.base_offset)),
        base_offset=Offset(row.base_offset),
        last_offset=Offset(row.last_offset),
        end_offset=Offset(min(row.end_offset, known_to)),
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
        follows = (
            not kept or kept[-1].partition != run.partition or kept[-1].last_offset + 1 == run.base_offset
        )
        if not follows:
            stopped.add(run.partition)
        if run.partition not in stopped:
            kept.append(run)
    return tuple(kept)


def _table(row: Row) -> HistoryTable:
    return HistoryTable(
        topic_id=TopicId(row.topic_id),
        topic_name=row.topic_name,
        table_name=row.name,
        config=row.config,
        metadata_key=row.metadata_key,
    )


def _file(row: Row) -> TableFile:
    return TableFile(
        object_key=ObjectKey(row.object_key),
        partition=Partition(row.partition),
        first_offset=Offset(row.first_offset),
        last_offset=Offset(row.last_offset),
        row_count=row.row_count,
        size_bytes=row.size_bytes,
        is_full=row.is_full,
        oldest=row.oldest,
        newest=row.newest,
        has_untimed=row.has_untimed,
        row_groups=row_groups_of(row.row_groups),
        written_at=row.written_at,
        sequence_number=row.sequence_number,
    )


def _row_groups_text(file: TableFile) -> str:
    numbers = (
        f"{group.first_offset},{group.position},{group.length},{group.max_timestamp_ms}"
        for group in file.row_groups
    )
    return "{" + ",".join(numbers) + "}"


def row_groups_of(numbers: Sequence[int]) -> tuple[RowGroup, ...]:
    """From `history_files.row_groups`."""
    return tuple(
        RowGroup(
            first_offset=Offset(first_offset),
            position=BytePosition(position),
            length=length,
            max_timestamp_ms=max_timestamp_ms,
        )
        for first_offset, position, length, max_timestamp_ms in zip(*[iter(numbers)] * 4, strict=True)
    )


def _raw_range(row: Row) -> RawRange:
    return RawRange(
        partition=Partition(row.partition),
        base_offset=Offset(row.base_offset),
        last_offset=Offset(row.last_offset),
        reason=row.reason,
    )
