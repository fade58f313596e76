"""A job on the table of a compacted topic: adds the last record of each key, and takes out those before.

1. Tasks read the new part of the log, and write its keys into key files (`key_tasks.py`).
2. Tasks read it again, and write Parquet of the records that stay (`tasks.py`).
3. Tasks look for replaced rows in the files of the table, and rewrite the files that have any
   (`rewrite_tasks.py`).
4. One publish adds the new files, replaces the rewritten ones and moves the ends of the partitions.

Promises:
- The decision is the one of the agents' cleaning (`storage.arrow.latest_keys`).
- A partition is published as a whole, up to where its keys are known, or not at all.
- Every record that a key task read is a row of a file, or the task that wrote the file has left it out.
- A job that finds the files changed looks for replaced rows once more.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from sequencer.client import Sequencer
from sequencer.history.history_values import (
    HistoryJob,
    Publication,
    Published,
    PublishRefused,
    StatePlan,
    TableFile,
    TableVersion,
)
from spark_compaction.bucket import BucketAddress
from spark_compaction.footers import ExpectedFile
from spark_compaction.iceberg_table import (
    LAST_RECORDS,
    ROWS_PROPERTY,
    AddedFile,
    Change,
    HistoryTableFiles,
    SchemaChange,
)
from spark_compaction.job import publish_staged, run_in_spark
from spark_compaction.manifest import ManifestRow, Stopped, VerifiedManifest
from spark_compaction.planner import PlannedTask
from spark_compaction.rewrite_job import run_rewrite_job
from spark_compaction.rewrite_tasks import Rewrite, RewrittenFile, expected_files
from spark_compaction.settings import CompactionSettings
from spark_compaction.state.key_files import KeyFile, KeyFiles
from spark_compaction.state.key_tasks import (
    NOTED_COLUMNS,
    KeyContext,
    NotedTask,
    noted_tasks,
    run_key_tasks,
)
from spark_compaction.tasks import task_table
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import Offset, Partition, TopicId
from storage.threads import Threads

_FILES_AT_A_TIME = 10_000
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StateJob:
    """What a job on the table of a compacted topic knows besides its tasks."""

    plans: Mapping[Partition, StatePlan]
    secret: bytes
    noted: Mapping[int, NotedTask] = field(default_factory=dict)
    """By task ids, of the tasks that are left."""
    keys: Mapping[Partition, KeyFiles] = field(default_factory=dict)
    stopped: tuple[Stopped, ...] = ()
    failed: tuple[Stopped, ...] = ()


async def note_keys(
    session: SparkSession,
    settings: CompactionSettings,
    tasks: Sequence[tuple[HistoryJob, PlannedTask]],
    secrets: Mapping[TopicId, bytes],
    keyrings: Mapping[TopicId, TopicKeyring],
    on_tasks_done: Callable[[int], None],
) -> dict[int, NotedTask]:
    """What was noted, by task ids. Raises SparkJobFailed."""
    context = KeyContext(
        address=BucketAddress.of(settings.store_url, settings),
        prefetch_runs=settings.compact_prefetch_runs,
        secrets=secrets,
        keyrings=keyrings,
    )
    rows = await run_in_spark(
        session,
        task_table(tasks),
        function=partial(run_key_tasks, context),
        result_columns=NOTED_COLUMNS,
        on_tasks_done=on_tasks_done,
        executor_wait_s=settings.spark_executor_wait_s,
    )
    return noted_tasks(rows)


def with_keys(
    state: StateJob, tasks: Sequence[PlannedTask], noted: Mapping[int, NotedTask], most_keys: int
) -> tuple[StateJob, tuple[PlannedTask, ...]]:
    """The job with its keys, and the tasks that are left: of each partition the first ones, up to one that
    found no keys, and as far as a table of `most_keys` has room. Pure.
    """
    left: list[PlannedTask] = []
    files: dict[Partition, list[KeyFile]] = defaultdict(list)
    stopped: list[Stopped] = []
    failed: list[Stopped] = []
    entries: dict[Partition, int] = defaultdict(int)
    ended: set[Partition] = set()
    for task in tasks:
        partition, own = task.partition, noted.get(task.task_id)
        if partition in ended:
            continue
        if own is None or own.kind != "keys":
            at, why = (task.from_offset, "no answer") if own is None else (Offset(own.reached), own.reason)
            stop = Stopped(partition=partition, offset=at, reason=why)
            (stopped if own is not None and own.kind == "missing" else failed).append(stop)
            ended.add(partition)
        elif files[partition] and entries[partition] + own.entries > most_keys:
            ended.add(partition)
        else:
            entries[partition] += own.entries
            files[partition].append(own.key_file)
            left.append(task)
    keys = {partition: KeyFiles(secret=state.secret, files=own) for partition, own in files.items() if own}
    known = {task.task_id: noted[task.task_id] for task in left}
    changed = replace(state, noted=known, keys=keys, stopped=tuple(stopped), failed=tuple(failed))
    return changed, tuple(left)


def whole_partitions(
    state: StateJob,
    tasks: Sequence[PlannedTask],
    rows: Mapping[int, Sequence[ManifestRow]],
    verified: VerifiedManifest,
) -> VerifiedManifest:
    """Leaves out the partitions of which a task stopped, or did not find the records whose keys are known.
    Pure."""
    failed = {each.partition: each for each in (*verified.failed, *verified.stopped)}
    for task in tasks:
        fault = _difference(state.noted[task.task_id], rows.get(task.task_id, ()))
        if fault:
            stop = Stopped(partition=task.partition, offset=task.from_offset, reason=fault)
            failed.setdefault(task.partition, stop)
    return VerifiedManifest(
        files=tuple(each for each in verified.files if each.partition not in failed),
        advances=tuple(
            replace(each, state=state.plans[each.partition])
            for each in verified.advances
            if each.partition not in failed
        ),
        raw_ranges=tuple(each for each in verified.raw_ranges if each.partition not in failed),
        stopped=state.stopped,
        failed=(*state.failed, *failed.values()),
    )


def _difference(noted: NotedTask, rows: Sequence[ManifestRow]) -> str:
    """Why the rows are not those of the records that were noted; empty if they are."""
    records = sum(row.row_count + row.replaced_rows for row in rows)
    raw_offsets = sum(row.end_offset - row.first_offset for row in rows if row.kind == "raw")
    if (records, raw_offsets) == (noted.records, noted.raw_offsets):
        return ""
    return (
        f"{records} records and {raw_offsets} offsets that do not decode were read, and before "
        f"{noted.records} and {noted.raw_offsets}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What a publish did to the files that the table had."""

    files: int = 0
    written_bytes: int = 0


class StatePublisher:
    """Publishes what the tasks of a job wrote, and takes out of the table what it replaces."""

    def __init__(
        self, settings: CompactionSettings, sequencer: Sequencer, keyring: TopicKeyring | None
    ) -> None:
        """`keyring`: of a topic that is encrypted."""
        self._settings = settings
        self._sequencer = sequencer
        self._keyring = keyring
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("state", 1)
        self.rewritten = Rewritten()
        """By the last publish."""

    async def publish(
        self,
        job: HistoryJob,
        state: StateJob,
        verified: VerifiedManifest,
        added: Sequence[AddedFile],
        schema: SchemaChange | None,
    ) -> Published | PublishRefused:
        """Raises SparkJobFailed, ManifestRefused, KeyUnavailable, and as `publish_staged`."""
        outcome: Published | PublishRefused = PublishRefused(reason="")
        for _ in range(_ATTEMPTS):
            now = await self._sequencer.history.version(job.topic_id)
            if now is None:
                return PublishRefused(reason="the topic was deleted")
            job = replace(job, table=now)
            removed, sources = await self._files(job, verified)
            rewrites = [Rewrite(sources=(file,)) for file in sources]
            rows = [] if not rewrites else await self._look(job, rewrites, state)
            touched = {row.task_id for row in rows if row.expired_rows}
            expected = expected_files(rewrites, rows, file_bytes=self._settings.parquet_file_bytes)
            rewritten = await self._threads.run(self._describe, job, expected)
            removed += [file for number, file in enumerate(sources) if number in touched]
            stage = partial(self._stage, job, verified, [*added, *rewritten], removed, schema)
            outcome = await publish_staged(self._sequencer, job, stage)
            if isinstance(outcome, PublishRefused) and outcome.is_of_files:
                continue
            written_bytes = sum(each.file.size_bytes for each in rewritten)
            self.rewritten = Rewritten(files=len(touched), written_bytes=written_bytes)
            break
        return outcome

    async def _files(
        self, job: HistoryJob, verified: VerifiedManifest
    ) -> tuple[list[TableFile], list[TableFile]]:
        """The files that go as a whole, as the table begins again, and those that may have replaced rows."""
        removed: list[TableFile] = []
        sources: list[TableFile] = []
        for advance in verified.advances:
            assert advance.state is not None, "the topic is compacted by key"
            own, from_offset = sources if advance.state.is_begun else removed, Offset(0)
            while page := await self._sequencer.history.files_from(
                job.topic_id, advance.partition, from_offset, _FILES_AT_A_TIME
            ):
                own += page
                from_offset = Offset(page[-1].last_offset + 1)
        return removed, sources

    async def _look(
        self, job: HistoryJob, rewrites: Sequence[Rewrite], state: StateJob
    ) -> list[RewrittenFile]:
        return await run_rewrite_job(
            self._settings,
            self._threads,
            self._address,
            job,
            rewrites,
            keyring=self._keyring,
            keys=state.keys,
        )

    def _describe(self, job: HistoryJob, expected: Sequence[ExpectedFile]) -> Sequence[AddedFile]:
        if not expected:
            return []
        table = HistoryTableFiles(self._address, self._address.open(), job, job.table)
        return table.describe(expected, self._keyring)

    def _stage(
        self,
        job: HistoryJob,
        verified: VerifiedManifest,
        added: Sequence[AddedFile],
        removed: Sequence[TableFile],
        schema: SchemaChange | None,
        on: TableVersion,
    ) -> Publication:
        if not added and not removed:
            return Publication(version=None, advances=verified.advances, raw_ranges=verified.raw_ranges)
        change = Change(
            added=added,
            removed=removed,
            summary={"tidelog.job-id": str(job.job_id)},
            expire_snapshots_before=datetime.now(UTC)
            - timedelta(seconds=self._settings.history_snapshot_grace_s),
            schema=schema,
            properties={ROWS_PROPERTY: LAST_RECORDS},
        )
        publication = HistoryTableFiles(self._address, self._address.open(), job, on).publication(change)
        return replace(publication, advances=verified.advances, raw_ranges=verified.raw_ranges)
