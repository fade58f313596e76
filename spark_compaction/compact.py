"""Compacts topics into their history: `tidelog compact`.

For each topic: claim and plan (sequencer), decode and write (Spark), verify the manifest, stage the Iceberg
metadata, publish.

Promises:
- It may be killed anywhere, run twice, or run at the same time as another compaction. No record is in history
  twice or left out.
- A topic without new records costs one query and starts no Spark.
- What does not decode stays in the raw log and is reported. The rest goes on.
- A topic whose keys cannot be had waits, with all of its records. Other topics go on.
- The Kafka side keeps serving the raw runs: publishing here changes none of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from secrets import token_bytes
from typing import Literal

from pyspark.sql import SparkSession

from sequencer.client import Sequencer
from sequencer.history.history_values import (
    Begun,
    Busy,
    Ends,
    HistoryJob,
    Publication,
    PublishRefused,
    RawRange,
    TableVersion,
)
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topics import Topic, UnknownTopic
from spark_compaction.bucket import BucketAddress
from spark_compaction.footers import ExpectedFile, is_full
from spark_compaction.iceberg_table import (
    ALL_RECORDS,
    ROWS_PROPERTY,
    AddedFile,
    Change,
    HistoryTableFiles,
    SchemaChange,
)
from spark_compaction.job import SparkJobFailed, kept_lease, publish_staged, run_in_spark
from spark_compaction.job_keys import JobKeys, open_job_keys
from spark_compaction.manifest import (
    MANIFEST_COLUMNS,
    ManifestRefused,
    ManifestRow,
    Stopped,
    VerifiedFile,
    VerifiedManifest,
    verify_manifest,
)
from spark_compaction.merge_files import FileMerger
from spark_compaction.open_log import open_log
from spark_compaction.planner import PlannedTask, plan_tasks
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_compaction.state.key_tasks import NotedTask
from spark_compaction.state.state_job import (
    Rewritten,
    StateJob,
    StatePublisher,
    note_keys,
    whole_partitions,
    with_keys,
)
from spark_compaction.tasks import TaskContext, manifest_rows, run_tasks, task_table
from spark_compaction.typed.decoding import Unplanned
from spark_compaction.typed.topic_typing import TopicTyping, TopicWaits, TypedPlanner, has_format
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import TopicId
from storage.threads import Threads

_DROPPED_AT_A_TIME = 100
_PUBLISHED_AT_ONCE = 8
_PLANNED_AGAIN = 2
"""How often tasks run again because of columns or schemas that they met. The last time they meet none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCompaction:
    """What a call did for one topic."""

    topic: str
    rows: int = 0
    files: int = 0
    parquet_bytes: int = 0
    raw_bytes: int = 0
    """Bytes of the runs that were read."""
    raw_ranges: tuple[RawRange, ...] = ()
    """Ranges found now that would not decode."""
    merged_files: int = 0
    """Small files that went into larger ones."""
    rewritten_files: int = 0
    """Files of a compacted topic that had rows which newer ones replace."""
    rewritten_bytes: int = 0
    """Of the files that took their place."""
    advanced: bool = False
    """Some records came into history, or are known not to."""
    stopped: tuple[Stopped, ...] = ()
    """Partitions whose history cannot go on: an object of theirs is missing."""
    failed: tuple[Stopped, ...] = ()
    """Partitions for which a task failed; the next call tries again."""
    waits: str = ""
    """Why the topic's records cannot be read, or cannot become columns, now; the next call tries again."""
    refused: tuple[str, ...] = ()
    """Why publishes of its jobs, merges among them, were refused. The next call plans again."""
    busy: bool = False
    """True: another compaction or TTL was working on this topic, so this call left it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    topics: tuple[TopicCompaction, ...]

    @property
    def rows(self) -> int:
        return sum(topic.rows for topic in self.topics)

    @property
    def files(self) -> int:
        return sum(topic.files for topic in self.topics)

    @property
    def parquet_bytes(self) -> int:
        return sum(topic.parquet_bytes for topic in self.topics)


Stage = Literal["starting spark", "reading keys", "writing", "publishing", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionProgress:
    topics: tuple[str, ...]
    """Of this round."""
    stage: Stage
    tasks_done: int = 0
    tasks_total: int = 0


OnProgress = Callable[[CompactionProgress], None]


def compact_topics(
    settings: CompactionSettings, topics: Sequence[str] | None = None, on_progress: OnProgress | None = None
) -> CompactionReport:
    """Compacts the named topics, or all. Do not call it from a coroutine.

    Raises UnknownTopic, WrongStore, SequencerUnavailable, StoreUnavailable, JavaMissing, SparkUnavailable,
    SparkJobFailed or ManifestRefused. Topics that were finished before stay compacted."""
    return asyncio.run(_compact_topics(settings, topics, on_progress or (lambda _: None)))


async def _compact_topics(
    settings: CompactionSettings, names: Sequence[str] | None, on_progress: OnProgress
) -> CompactionReport:
    async with open_log(settings) as sequencer, open_job_keys(settings, sequencer) as keys:
        await sequencer.history.garbage.drop_deleted(_DROPPED_AT_A_TIME)
        chosen = [topic for topic in await chosen_topics(sequencer, names) if _has_history(topic)]
        compaction = Compaction(settings, sequencer, keys, on_progress)
        compactors = [TopicCompactor(settings, sequencer, topic, keys) for topic in chosen]
        at_work = deque(compactors)
        while at_work:
            some = [at_work.popleft() for _ in range(min(len(at_work), settings.compact_round_topics))]
            at_work += await compaction.run_round(some)
        return CompactionReport(topics=tuple(compactor.done for compactor in compactors))


def _has_history(topic: Topic) -> bool:
    return TopicConfig.of(topic.config).history != "off"


async def chosen_topics(sequencer: Sequencer, names: Sequence[str] | None) -> Sequence[Topic]:
    """Returns the named topics in the given order, or all. Raises UnknownTopic."""
    if names is None:
        return await sequencer.topics.list()
    found = await sequencer.topics.by_name(names)
    for name in names:
        if name not in found:
            raise UnknownTopic(f"There is no topic '{name}'.")
    return [found[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A topic's part of a round."""

    compactor: "TopicCompactor"
    job: HistoryJob
    tasks: Sequence[PlannedTask]
    typing: TopicTyping | None
    """None: the topic has no format."""
    state: StateJob | None
    """Not None: the topic is compacted by key."""
    keyring: TopicKeyring | None
    """Not None: the topic is encrypted."""


class Compaction:
    """Runs rounds."""

    def __init__(
        self, settings: CompactionSettings, sequencer: Sequencer, keys: JobKeys, on_progress: OnProgress
    ) -> None:
        self._settings = settings
        self._sequencer = sequencer
        self._keys = keys
        self._on_progress = on_progress
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("spark", 1)
        self._planner = TypedPlanner(settings)

    async def run_round(self, compactors: Sequence["TopicCompactor"]) -> Sequence["TopicCompactor"]:
        """One job of each topic. Returns the topics that may have more to do; files of the others are
        merged.
        """
        jobs: list[_Job] = []
        async with AsyncExitStack() as leases:
            for compactor in compactors:
                begun = await compactor.begin()
                if begun is not None:
                    await leases.enter_async_context(
                        kept_lease(self._sequencer, begun.job, self._settings.job_lease_s)
                    )
                    planned = await self._planned(compactor, begun, len(compactors), jobs)
                    jobs += [] if planned is None else [planned]
            advanced = await self._run(jobs) if jobs else []
        await self._merge_files([compactor for compactor in compactors if compactor not in advanced])
        return advanced

    async def _merge_files(self, compactors: Sequence["TopicCompactor"]) -> None:
        """Raises the first failure, once all topics that can be merged are."""
        failures: list[Exception] = []
        for compactor in compactors:
            try:
                await compactor.merge_files()
            except (SparkJobFailed, ManifestRefused) as failed:
                failures.append(failed)
            self._tell("done", [compactor])
        if failures:
            raise failures[0]

    async def _planned(
        self, compactor: "TopicCompactor", begun: Begun, topics: int, before: Sequence[_Job]
    ) -> _Job | None:
        """None if the topic waits."""
        settings = self._settings
        try:
            keyring = await self._keys.of(compactor.topic)
            typing = await self._threads.run(compactor.typing, begun.job, self._planner)
        except (KeyUnavailable, TopicWaits) as waits:
            await compactor.wait(begun.job, waits)
            return None
        tasks = plan_tasks(
            begun.runs,
            begun.aborted,
            task_bytes=settings.compact_task_bytes,
            job_bytes=max(1, settings.compact_job_bytes // topics),
            first_task_id=sum(len(job.tasks) for job in before),
        )
        state = StateJob(plans=begun.states, secret=token_bytes(16)) if compactor.is_state else None
        return _Job(
            compactor=compactor, job=begun.job, tasks=tasks, typing=typing, state=state, keyring=keyring
        )

    async def _run(self, jobs: Sequence[_Job]) -> list["TopicCompactor"]:
        compactors = [job.compactor for job in jobs]
        total = sum(len(job.tasks) for job in jobs)
        self._tell("starting spark", compactors, total=total)
        session = await self._threads.run(spark_session, self._settings)
        jobs = await self._with_keys(session, jobs)
        jobs, rows = await self._write_typed(session, jobs, total)
        self._tell("publishing", compactors, done=total, total=total)
        gate = asyncio.Semaphore(_PUBLISHED_AT_ONCE)

        async def finish(job: _Job) -> bool:
            async with gate:
                return await job.compactor.finish(job, rows)

        finished = await asyncio.gather(*map(finish, jobs), return_exceptions=True)
        for outcome in finished:  # once all topics that could be published are
            if isinstance(outcome, BaseException):
                raise outcome
        return [job.compactor for job, more in zip(jobs, finished, strict=True) if more]

    async def _with_keys(self, session: SparkSession, jobs: Sequence[_Job]) -> Sequence[_Job]:
        """The jobs, those of compacted topics with the keys that their tasks have to know."""
        states = {job.job.topic_id: job.state for job in jobs if job.state is not None}
        tasks = [(job.job, task) for job in jobs if job.state is not None for task in job.tasks]
        if not tasks:
            return jobs
        compactors = [job.compactor for job in jobs if job.state is not None]
        noted = await note_keys(
            session,
            self._settings,
            tasks,
            {topic_id: state.secret for topic_id, state in states.items()},
            _keyrings(jobs),
            lambda done: self._tell("reading keys", compactors, done=done, total=len(tasks)),
        )
        return [self._cut(job, job.state, noted) if job.state is not None else job for job in jobs]

    def _cut(self, job: _Job, state: StateJob, noted: Mapping[int, NotedTask]) -> _Job:
        known, tasks = with_keys(state, job.tasks, noted, self._settings.compact_state_keys)
        return replace(job, tasks=tasks, state=known)

    async def _write_typed(
        self, session: SparkSession, jobs: Sequence[_Job], total: int
    ) -> tuple[Sequence[_Job], Mapping[int, Sequence[ManifestRow]]]:
        """What became of each task, and the jobs as they were in the end. Tasks that met columns or schemas
        which they were not given run again with them. Jobs of topics that wait are left out.
        """
        rows = dict(await self._write(session, jobs, total))
        for attempt in range(1, _PLANNED_AGAIN + 1):
            again = {
                job.job.job_id: [task for task in job.tasks if _unplanned(rows.get(task.task_id, ()))]
                for job in jobs
            }
            if not any(again.values()):
                break
            replanned = [
                await self._replanned(job, again[job.job.job_id], rows, is_last=attempt == _PLANNED_AGAIN)
                for job in jobs
            ]
            jobs = [job for job in replanned if job is not None]
            some = [replace(job, tasks=again[job.job.job_id]) for job in jobs if again[job.job.job_id]]
            if some:
                rows |= await self._write(session, some, total)
        return jobs, rows

    async def _replanned(
        self,
        job: _Job,
        again: Sequence[PlannedTask],
        rows: Mapping[int, Sequence[ManifestRow]],
        *,
        is_last: bool,
    ) -> _Job | None:
        if job.typing is None or not again:
            return job
        found = [_unplanned(rows[task.task_id]) for task in again]
        whole = reduce(Unplanned.with_those_of, [each for each in found if each is not None])
        try:
            evolved = partial(self._planner.evolved, job.typing, whole, is_last=is_last)
            return replace(job, typing=await self._threads.run(evolved))
        except TopicWaits as waits:
            await job.compactor.wait(job.job, waits)
            return None

    async def _write(
        self, session: SparkSession, jobs: Sequence[_Job], total: int
    ) -> Mapping[int, Sequence[ManifestRow]]:
        """What became of each task."""
        settings = self._settings
        context = TaskContext(
            address=self._address,
            prefetch_runs=settings.compact_prefetch_runs,
            row_group_bytes=settings.parquet_row_group_bytes,
            file_bytes=settings.parquet_file_bytes,
            typed={job.job.topic_id: job.typing.plan for job in jobs if job.typing is not None},
            keys={
                (job.job.topic_id, partition): keys
                for job in jobs
                if job.state is not None
                for partition, keys in job.state.keys.items()
            },
            keyrings=_keyrings(jobs),
        )
        compactors = [job.compactor for job in jobs]
        if not any(job.tasks for job in jobs):
            return {}
        rows = await run_in_spark(
            session,
            task_table([(job.job, task) for job in jobs for task in job.tasks]),
            function=partial(run_tasks, context),
            result_columns=MANIFEST_COLUMNS,
            on_tasks_done=lambda done: self._tell("writing", compactors, done=done, total=total),
            executor_wait_s=settings.spark_executor_wait_s,
        )
        by_task: dict[int, list[ManifestRow]] = {}
        for row in manifest_rows(rows):
            by_task.setdefault(row.task_id, []).append(row)
        return by_task

    def _tell(
        self, stage: Stage, compactors: Sequence["TopicCompactor"], done: int = 0, total: int = 0
    ) -> None:
        topics = tuple(compactor.done.topic for compactor in compactors)
        self._on_progress(CompactionProgress(topics=topics, stage=stage, tasks_done=done, tasks_total=total))


def _unplanned(rows: Sequence[ManifestRow]) -> Unplanned | None:
    """What a task met that it was not given."""
    return next((Unplanned.of_text(row.unplanned) for row in rows if row.kind == "unplanned"), None)


def _keyrings(jobs: Sequence[_Job]) -> dict[TopicId, TopicKeyring]:
    return {job.job.topic_id: job.keyring for job in jobs if job.keyring is not None}


class TopicCompactor:
    """A topic's side of the rounds: what is claimed for it, and what is published."""

    def __init__(
        self, settings: CompactionSettings, sequencer: Sequencer, topic: Topic, keys: JobKeys
    ) -> None:
        self._settings = settings
        self._sequencer = sequencer
        self.topic = topic
        self._keys = keys
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("publish", 1)
        self.is_state = TopicConfig.of(topic.config).is_compacted
        """Its history is its state: the last record of each key."""
        self._ends: Ends | None = None
        """What this call compacts: the log's ends when the topic's first job began."""
        self.done = TopicCompaction(topic=topic.name)

    async def begin(self) -> Begun | None:
        """Claims the topic's next job; None if there is nothing to do, or another one is at it."""
        settings, history = self._settings, self._sequencer.history
        if self._ends is None:
            self._ends = await history.ends(self.topic.topic_id, is_state=self.is_state)
        begun = await history.begin_compaction(
            self.topic.topic_id,
            self._ends,
            cluster=settings.cluster,
            lease_s=settings.job_lease_s,
            runs_per_partition=max(1, settings.compact_job_runs // self.topic.partition_count),
            is_state=self.is_state,
        )
        if isinstance(begun, Busy):
            self.done = replace(self.done, busy=True)
        return begun if isinstance(begun, Begun) else None

    def typing(self, job: HistoryJob, planner: TypedPlanner) -> TopicTyping | None:
        """How the topic's records become columns; None if it has no format. Raises TopicWaits."""
        if not has_format(self.topic.config):
            return None
        table = HistoryTableFiles(self._address, self._address.open(), job, job.table)
        return planner.plan(self.topic.config, table.metadata)

    async def wait(self, job: HistoryJob, waits: TopicWaits | KeyUnavailable) -> None:
        """Ends the job with nothing published."""
        await self._sequencer.history.abandon(job.job_id)
        await self._note_wait(waits)

    async def _note_wait(self, waits: TopicWaits | KeyUnavailable) -> None:
        await self._sequencer.history.note_wait(self.topic.topic_id, str(waits))
        self.done = replace(self.done, waits=str(waits))

    async def merge_files(self) -> None:
        """Merges the topic's small files until none are left to merge, or until a key is missing."""
        merger = FileMerger(self._settings, self._sequencer, self.topic, self._keys)
        try:
            while (merged := await merger.run_job()) is not None:
                self.done = replace(self.done, merged_files=self.done.merged_files + merged)
            if self.done.merged_files and not self.done.waits:
                await self._sequencer.history.note_wait(self.topic.topic_id, None)
        except KeyUnavailable as missing:
            await self._note_wait(missing)
        if merger.refused:
            self.done = replace(self.done, refused=(*self.done.refused, merger.refused))

    async def finish(self, done: _Job, rows: Mapping[int, Sequence[ManifestRow]]) -> bool:
        """Publishes what the tasks wrote. Whether history advanced, so that there may be more to do."""
        try:
            return await self._finish(done, rows)
        except KeyUnavailable as missing:
            await self.wait(done.job, missing)
            return False

    async def _finish(self, done: _Job, rows: Mapping[int, Sequence[ManifestRow]]) -> bool:
        job, tasks, typing, state = done.job, done.tasks, done.typing, done.state
        verified = verify_manifest(tasks, [row for task in tasks for row in rows.get(task.task_id, ())])
        if state is not None:
            verified = whole_partitions(state, tasks, rows, verified)
        if verified.advances:
            schema = None if typing is None else typing.change()
            added = await self._threads.run(self._describe, done, verified, schema)
            if state is None:
                stage = partial(self._stage, job, verified, added, schema)
                outcome = await publish_staged(self._sequencer, job, stage)
            else:
                publisher = StatePublisher(self._settings, self._sequencer, done.keyring)
                outcome = await publisher.publish(job, state, verified, added, schema)
                self._add_rewritten(publisher.rewritten)
            if isinstance(outcome, PublishRefused):
                await self._sequencer.history.abandon(job.job_id)
                self.done = replace(self.done, busy=True, refused=(*self.done.refused, outcome.reason))
                return False
        else:
            await self._sequencer.history.abandon(job.job_id)
        if typing is not None or done.keyring is not None:
            await self._sequencer.history.note_wait(self.topic.topic_id, None)
        self._add(tasks, verified)
        assert self._ends is not None, "a job was begun"
        is_complete = await self._sequencer.history.is_complete(
            self.topic.topic_id, self._ends, is_state=self.is_state
        )
        return bool(verified.advances) and not verified.failed and not is_complete

    def _add_rewritten(self, rewritten: Rewritten) -> None:
        before = self.done
        self.done = replace(
            before,
            rewritten_files=before.rewritten_files + rewritten.files,
            rewritten_bytes=before.rewritten_bytes + rewritten.written_bytes,
        )

    def _describe(
        self, done: _Job, verified: VerifiedManifest, schema: SchemaChange | None
    ) -> Sequence[AddedFile]:
        table = HistoryTableFiles(self._address, self._address.open(), done.job, done.job.table)
        return table.describe(
            [expected_file(file, self._settings.parquet_file_bytes) for file in verified.files],
            done.keyring,
            None if schema is None else schema.schema,
        )

    def _stage(
        self,
        job: HistoryJob,
        verified: VerifiedManifest,
        added: Sequence[AddedFile],
        schema: SchemaChange | None,
        on: TableVersion,
    ) -> Publication:
        if not added:
            return Publication(version=None, advances=verified.advances, raw_ranges=verified.raw_ranges)
        change = Change(
            added=added,
            properties={ROWS_PROPERTY: ALL_RECORDS},
            summary={"tidelog.job-id": str(job.job_id)},
            expire_snapshots_before=datetime.now(UTC)
            - timedelta(seconds=self._settings.history_snapshot_grace_s),
            schema=schema,
        )
        publication = HistoryTableFiles(self._address, self._address.open(), job, on).publication(change)
        return replace(publication, advances=verified.advances, raw_ranges=verified.raw_ranges)

    def _add(self, tasks: Sequence[PlannedTask], verified: VerifiedManifest) -> None:
        before = self.done
        self.done = replace(
            before,
            rows=before.rows + sum(file.row.row_count for file in verified.files),
            files=before.files + len(verified.files),
            parquet_bytes=before.parquet_bytes + sum(file.row.size_bytes for file in verified.files),
            raw_bytes=before.raw_bytes + sum(task.size_bytes for task in tasks),
            raw_ranges=before.raw_ranges + verified.raw_ranges,
            advanced=before.advanced or bool(verified.advances),
            stopped=verified.stopped,
            failed=before.failed + verified.failed,
        )


def expected_file(file: VerifiedFile, file_bytes: int) -> ExpectedFile:
    """What the bucket must hold for a file of the manifest."""
    return ExpectedFile(
        object_key=file.row.object_key,
        partition=file.partition,
        row_count=file.row.row_count,
        size_bytes=file.row.size_bytes,
        footer_crc32c=file.row.footer_crc32c,
        first_offset=file.row.first_offset,
        is_full=is_full(file.row.size_bytes, file_bytes),
        contiguous=not file.row.empty_offsets,
    )
