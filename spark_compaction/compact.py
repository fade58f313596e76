"""Compacts topics into their history: `tidelog compact`.

For each topic: claim and plan (sequencer), decode and write (Spark), verify the manifest, stage the Iceberg
metadata, publish.

Promises:
- It may be killed anywhere, run twice, or run at the same time as another compaction. No record is in history
  twice or left out.
- A topic without new records costs one query and starts no Spark.
- What does not decode stays in the raw log and is reported. The rest goes on.
- The Kafka side keeps serving the raw runs: publishing here changes none of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

from pyspark.sql import SparkSession

from sequencer.client import Sequencer
from sequencer.history.history_values import Begun, Busy, HistoryJob, Publication, PublishRefused, RawRange
from sequencer.topics.topics import Topic, UnknownTopic
from spark_compaction.bucket import BucketAddress
from spark_compaction.footers import ExpectedFile
from spark_compaction.iceberg_table import Change, HistoryTableFiles, publication_of
from spark_compaction.job import kept_lease, publish_until_known, run_in_spark
from spark_compaction.manifest import MANIFEST_COLUMNS, Stopped, VerifiedFile, VerifiedManifest, verify_manifest
from spark_compaction.open_log import open_log
from spark_compaction.planner import PlannedTask, plan_tasks
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_compaction.tasks import TaskContext, manifest_rows, run_tasks, task_table
from storage.identifiers import ObjectKey
from storage.threads import Threads

_DROPPED_AT_A_TIME = 100


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
    """Ranges that did not decode, found by this call."""
    stopped: tuple[Stopped, ...] = ()
    """Partitions whose history cannot continue: one of their objects is missing."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionProgress:
    topic: str
    stage: Literal["starting spark", "writing", "publishing", "done"]
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
    async with open_log(settings) as sequencer:
        await sequencer.history.garbage.drop_deleted(_DROPPED_AT_A_TIME)
        chosen = await chosen_topics(sequencer, names)
        done = [await _TopicCompactor(settings, sequencer, topic, on_progress).run() for topic in chosen]
        return CompactionReport(topics=tuple(done))


async def chosen_topics(sequencer: Sequencer, names: Sequence[str] | None) -> Sequence[Topic]:
    """Returns the named topics in the given order, or all. Raises UnknownTopic."""
    if names is None:
        return await sequencer.topics.list()
    found = await sequencer.topics.by_name(names)
    for name in names:
        if name not in found:
            raise UnknownTopic(f"There is no topic '{name}'.")
    return [found[name] for name in dict.fromkeys(names)]


class _TopicCompactor:
    def __init__(
        self, settings: CompactionSettings, sequencer: Sequencer, topic: Topic, on_progress: OnProgress
    ) -> None:
        self._settings = settings
        self._sequencer = sequencer
        self._topic = topic
        self._on_progress = on_progress
        self._address = BucketAddress.of(settings.store_url, settings)
        self._done = TopicCompaction(topic=topic.name)
        self._threads = Threads("spark", 1)

    async def run(self) -> TopicCompaction:
        """Runs jobs until the topic has nothing new."""
        settings = self._settings
        while True:
            begun = await self._sequencer.history.begin_compaction(
                self._topic.topic_id,
                cluster=settings.cluster,
                lease_s=settings.job_lease_s,
                runs_per_partition=max(1, settings.compact_job_runs // self._topic.partition_count),
            )
            if isinstance(begun, Busy):
                self._done = replace(self._done, busy=True)
            if not isinstance(begun, Begun):
                break
            advanced = await self._run_job(begun)
            if not advanced:
                break
        self._tell("done")
        return self._done

    async def _run_job(self, begun: Begun) -> bool:
        """True if history advanced, so that there may be more to do."""
        settings, job = self._settings, begun.job
        tasks = plan_tasks(begun.runs, task_bytes=settings.compact_task_bytes, job_bytes=settings.compact_job_bytes)
        async with kept_lease(self._sequencer, job, settings.job_lease_s):
            self._tell("starting spark", total=len(tasks))
            session = await self._threads.run(spark_session, settings)
            verified = await self._write(session, job, tasks)
            if not verified.advances:
                await self._sequencer.history.abandon(job.job_id)
                self._add(tasks, verified)
                return False
            self._tell("publishing", done=len(tasks), total=len(tasks))
            publication = await self._threads.run(self._stage, job, verified, await self._live_objects(job))
            outcome = await publish_until_known(self._sequencer, job, publication)
            if isinstance(outcome, PublishRefused):
                await self._sequencer.history.abandon(job.job_id)
                self._done = replace(self._done, busy=True)
                return False
        self._add(tasks, verified)
        return True

    async def _write(self, session: SparkSession, job: HistoryJob, tasks: Sequence[PlannedTask]) -> VerifiedManifest:
        settings = self._settings
        context = TaskContext(
            address=self._address,
            prefix=job.prefix,
            topic_id=job.topic_id,
            prefetch_runs=settings.compact_prefetch_runs,
            row_group_bytes=settings.parquet_row_group_bytes,
            file_bytes=settings.parquet_file_bytes,
        )
        rows = await run_in_spark(
            session,
            task_table(tasks),
            function=partial(run_tasks, context),
            result_columns=MANIFEST_COLUMNS,
            on_tasks_done=lambda done: self._tell("writing", done=done, total=len(tasks)),
        )
        return verify_manifest(tasks, manifest_rows(rows))

    async def _live_objects(self, job: HistoryJob) -> frozenset[ObjectKey]:
        return frozenset(await self._sequencer.history.live_objects(job.topic_id))

    def _stage(self, job: HistoryJob, verified: VerifiedManifest, live: frozenset[ObjectKey]) -> Publication:
        if not verified.files:
            return Publication(metadata_key=None, added={}, advances=verified.advances, raw_ranges=verified.raw_ranges)
        table = HistoryTableFiles(self._address, self._address.open(), job, self._topic.name)
        added = table.describe([expected_file(file) for file in verified.files])
        staged = table.stage(
            Change(
                added=added,
                summary={"tidelog.job-id": str(job.job_id)},
                expire_snapshots_before=datetime.now(UTC) - timedelta(seconds=self._settings.history_snapshot_grace_s),
            )
        )
        data_keys = {file.row.object_key: None for file in verified.files}
        return publication_of(staged, data_keys, live, advances=verified.advances, raw_ranges=verified.raw_ranges)

    def _add(self, tasks: Sequence[PlannedTask], verified: VerifiedManifest) -> None:
        before = self._done
        self._done = replace(
            before,
            rows=before.rows + sum(file.row.row_count for file in verified.files),
            files=before.files + len(verified.files),
            parquet_bytes=before.parquet_bytes + sum(file.row.size_bytes for file in verified.files),
            raw_bytes=before.raw_bytes + sum(task.size_bytes for task in tasks),
            raw_ranges=before.raw_ranges + verified.raw_ranges,
            stopped=verified.stopped,
        )

    def _tell(
        self, stage: Literal["starting spark", "writing", "publishing", "done"], done: int = 0, total: int = 0
    ) -> None:
        self._on_progress(CompactionProgress(topic=self._topic.name, stage=stage, tasks_done=done, tasks_total=total))


def expected_file(file: VerifiedFile) -> ExpectedFile:
    """Returns what the bucket must hold for a file of the manifest."""
    return ExpectedFile(
        object_key=file.row.object_key,
        partition=file.partition,
        row_count=file.row.row_count,
        size_bytes=file.row.size_bytes,
        footer_crc32c=file.row.footer_crc32c,
        first_offset=file.row.first_offset,
        contiguous=True,
    )
