"""Drops expired records from history, by a topic's `retention.ms`: `tidelog ttl`.

The result is exact at the moment of the run: whole files go by metadata alone, and partly expired files are
rewritten in Spark (see `expiry`).

Promises: no object is deleted; what only expired snapshots name is recorded as unreferenced, for the garbage
collector. The raw log is not touched. `retention.bytes` limits only the raw log.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import IntegerType, LongType, PrimitiveType

from sequencer.client import Sequencer
from sequencer.history.history_values import Busy, HistoryJob, NothingToDo, Publication, PublishRefused
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topics import Topic
from spark_compaction.bucket import BucketAddress
from spark_compaction.compact import chosen_topics
from spark_compaction.expiry import ExpiryPlan, HistoryFileAge, plan_expiry
from spark_compaction.footers import ExpectedFile
from spark_compaction.iceberg_table import Change, HistoryTableFiles, publication_of
from spark_compaction.job import kept_lease, publish_until_known, run_in_spark
from spark_compaction.manifest import ManifestRefused
from spark_compaction.open_log import open_log
from spark_compaction.rewrite_tasks import (
    REWRITTEN_COLUMNS,
    RewriteContext,
    RewrittenFile,
    rewrite_table,
    run_rewrites,
)
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from storage.identifiers import ObjectKey, Partition
from storage.threads import Threads

_DROPPED_AT_A_TIME = 100
_PARTITION, _OFFSET, _TIMESTAMP = 1, 2, 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicExpiry:
    """What a call did for one topic."""

    topic: str
    rows_expired: int = 0
    files_dropped: int = 0
    files_rewritten: int = 0
    files_deferred: int = 0
    """Partly expired files beyond `ttl_rewrite_bytes`. The next pass takes them."""
    busy: bool = False
    """True: a compaction or another TTL was working on this topic, so this call left it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlReport:
    topics: tuple[TopicExpiry, ...]

    @property
    def rows_expired(self) -> int:
        return sum(topic.rows_expired for topic in self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlProgress:
    topic: str
    stage: Literal["planning", "rewriting", "publishing", "done"]
    tasks_done: int = 0
    tasks_total: int = 0


OnProgress = Callable[[TtlProgress], None]


def expire_history(
    settings: CompactionSettings,
    topics: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
    now: datetime | None = None,
) -> TtlReport:
    """Applies TTL to the history of the named topics, or of all, as of `now`. Do not call it from a
    coroutine. Raises as `compact_topics`.
    """
    return asyncio.run(_expire_history(settings, topics, on_progress or (lambda _: None), now or datetime.now(UTC)))


async def _expire_history(
    settings: CompactionSettings, names: Sequence[str] | None, on_progress: OnProgress, now: datetime
) -> TtlReport:
    async with open_log(settings) as sequencer:
        await sequencer.history.garbage.drop_deleted(_DROPPED_AT_A_TIME)
        chosen = await chosen_topics(sequencer, names)
        done = [await _TopicExpirer(settings, sequencer, topic, on_progress, now).run() for topic in chosen]
        return TtlReport(topics=tuple(done))


class _TopicExpirer:
    def __init__(
        self,
        settings: CompactionSettings,
        sequencer: Sequencer,
        topic: Topic,
        on_progress: OnProgress,
        now: datetime,
    ) -> None:
        self._settings = settings
        self._sequencer = sequencer
        self._topic = topic
        self._on_progress = on_progress
        self._readers_since = now - timedelta(seconds=settings.history_snapshot_grace_s)
        self._cutoff = _cutoff(now, TopicConfig.of(topic.config).retention_ms)
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("spark", 1)

    async def run(self) -> TopicExpiry:
        settings = self._settings
        self._tell("planning")
        job = await self._sequencer.history.begin_expiry(
            self._topic.topic_id, cluster=settings.cluster, lease_s=settings.job_lease_s
        )
        if isinstance(job, Busy):
            return TopicExpiry(topic=self._topic.name, busy=True)
        if isinstance(job, NothingToDo):
            return TopicExpiry(topic=self._topic.name)
        async with kept_lease(self._sequencer, job, settings.job_lease_s):
            report = await self._expire(job)
        self._tell("done")
        return report

    async def _expire(self, job: HistoryJob) -> TopicExpiry:
        table = await self._threads.run(HistoryTableFiles, self._address, self._address.open(), job, self._topic.name)
        data_files = {table.key_of(file): file for file in await self._threads.run(table.data_files)}
        live = await self._sequencer.history.live_objects(job.topic_id)
        ages = [_age(key, file, live[key]) for key, file in data_files.items()]
        plan = plan_expiry(ages, self._cutoff, rewrite_bytes=self._settings.ttl_rewrite_bytes)
        if not plan.dropped and not plan.rewritten and not table.has_snapshots_before(self._readers_since):
            await self._sequencer.history.abandon(job.job_id)
            return TopicExpiry(topic=self._topic.name, files_deferred=len(plan.deferred))
        rewritten = await self._rewrite(job, plan)
        self._tell("publishing")
        publication = await self._threads.run(self._stage, table, data_files, plan, rewritten, live)
        outcome = await publish_until_known(self._sequencer, job, publication)
        if isinstance(outcome, PublishRefused):
            await self._sequencer.history.abandon(job.job_id)
            return TopicExpiry(topic=self._topic.name, busy=True)
        whole = sum(file.row_count for file in plan.dropped)
        return TopicExpiry(
            topic=self._topic.name,
            rows_expired=whole + sum(file.expired_rows for file in rewritten),
            files_dropped=len(plan.dropped),
            files_rewritten=len(rewritten),
            files_deferred=len(plan.deferred),
        )

    async def _rewrite(self, job: HistoryJob, plan: ExpiryPlan) -> list[RewrittenFile]:
        if not plan.rewritten:
            return []
        total = len(plan.rewritten)
        self._tell("rewriting", total=total)
        context = RewriteContext(
            address=self._address,
            prefix=job.prefix,
            topic_id=job.topic_id,
            cutoff=self._cutoff,
            row_group_bytes=self._settings.parquet_row_group_bytes,
        )
        rows = await run_in_spark(
            await self._threads.run(spark_session, self._settings),
            rewrite_table(plan.rewritten, self._cutoff),
            function=partial(run_rewrites, context),
            result_columns=REWRITTEN_COLUMNS,
            on_tasks_done=lambda done: self._tell("rewriting", done=done, total=total),
        )
        rewritten = [RewrittenFile(**row) for row in rows]
        counts = {file.object_key: file.row_count for file in plan.rewritten}
        if {file.source_key: file.kept_rows + file.expired_rows for file in rewritten} != counts:
            raise ManifestRefused("the rewritten files do not account for every row of their sources")
        return rewritten

    def _stage(
        self,
        table: HistoryTableFiles,
        data_files: dict[ObjectKey, DataFile],
        plan: ExpiryPlan,
        rewritten: Sequence[RewrittenFile],
        live: dict[ObjectKey, datetime],
    ) -> Publication:
        sources = {file.object_key: file for file in plan.rewritten}
        kept = [file for file in rewritten if file.object_key]
        added = table.describe([_expected(file, sources[ObjectKey(file.source_key)]) for file in kept])
        staged = table.stage(
            Change(
                added=added,
                removed=[data_files[file.object_key] for file in (*plan.dropped, *plan.rewritten)],
                summary={"tidelog.expired-before": self._cutoff.isoformat()},
                expire_snapshots_before=self._readers_since,
            )
        )
        data_keys = {ObjectKey(file.object_key): live[ObjectKey(file.source_key)] for file in kept}
        return publication_of(staged, data_keys, frozenset(live))

    def _tell(
        self, stage: Literal["planning", "rewriting", "publishing", "done"], done: int = 0, total: int = 0
    ) -> None:
        self._on_progress(TtlProgress(topic=self._topic.name, stage=stage, tasks_done=done, tasks_total=total))


def _cutoff(now: datetime, retention_ms: int) -> datetime:
    """Returns the time before which records have expired. Without a limit, or with one before any timestamp,
    none have."""
    if retention_ms < 0:
        return _EPOCH
    since_epoch_ms = (now - _EPOCH) // timedelta(milliseconds=1)
    return now - timedelta(milliseconds=min(retention_ms, since_epoch_ms))


def _age(key: ObjectKey, file: DataFile, written_at: datetime) -> HistoryFileAge:
    untimed = (file.null_value_counts or {}).get(_TIMESTAMP, 0)
    return HistoryFileAge(
        object_key=key,
        partition=Partition(_bound(file.lower_bounds, _PARTITION, IntegerType())),
        first_offset=_bound(file.lower_bounds, _OFFSET, LongType()),
        row_count=file.record_count,
        size_bytes=file.file_size_in_bytes,
        written_at=written_at,
        oldest=_time(file.lower_bounds),
        newest=_time(file.upper_bounds),
        has_untimed=untimed > 0,
    )


def _bound(bounds: dict[int, bytes] | None, field_id: int, kind: PrimitiveType) -> Any:
    return from_bytes(kind, bounds[field_id]) if bounds and field_id in bounds else None


def _time(bounds: dict[int, bytes] | None) -> datetime | None:
    microseconds = _bound(bounds, _TIMESTAMP, LongType())
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def _expected(file: RewrittenFile, source: HistoryFileAge) -> ExpectedFile:
    return ExpectedFile(
        object_key=ObjectKey(file.object_key),
        partition=source.partition,
        row_count=file.kept_rows,
        size_bytes=file.size_bytes,
        footer_crc32c=file.footer_crc32c,
        first_offset=file.first_offset,
        contiguous=False,
    )
