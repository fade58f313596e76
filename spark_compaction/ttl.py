"""Drops records from history that have expired, by a topic's `tidelog.history.retention.ms`, or that were
deleted by DeleteRecords: `tidelog ttl`.

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
from typing import Literal

from sequencer.client import Sequencer
from sequencer.history.history_values import (
    Busy,
    HistoryJob,
    NothingToDo,
    Publication,
    PublishRefused,
    TableFile,
    TableVersion,
)
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topics import Topic
from spark_compaction.bucket import BucketAddress
from spark_compaction.compact import chosen_topics
from spark_compaction.iceberg_table import AddedFile, Change, HistoryTableFiles
from spark_compaction.job import kept_lease, publish_staged
from spark_compaction.job_keys import JobKeys, open_job_keys
from spark_compaction.open_log import open_log
from spark_compaction.rewrite_job import run_rewrite_job
from spark_compaction.rewrite_tasks import (
    Rewrite,
    RewrittenFile,
    expected_files,
)
from spark_compaction.settings import CompactionSettings
from storage.encryption.key_wrapping import KeyUnavailable
from storage.threads import Threads

_DROPPED_AT_A_TIME = 100
_FILES_AT_A_TIME = 10_000
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
    waits: str = ""
    """Why no file was rewritten: a key of the topic is missing. Whole files go without one."""
    refused: str = ""
    """Why the publish was refused. The next pass plans again."""
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
    return asyncio.run(
        _expire_history(settings, topics, on_progress or (lambda _: None), now or datetime.now(UTC))
    )


async def _expire_history(
    settings: CompactionSettings, names: Sequence[str] | None, on_progress: OnProgress, now: datetime
) -> TtlReport:
    async with open_log(settings) as sequencer, open_job_keys(settings, sequencer) as keys:
        await sequencer.history.garbage.drop_deleted(_DROPPED_AT_A_TIME)
        chosen = await chosen_topics(sequencer, names)
        done = [
            await TopicExpirer(settings, sequencer, topic, keys, on_progress, now).run() for topic in chosen
        ]
        return TtlReport(topics=tuple(done))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expiry:
    removed: Sequence[TableFile]
    added: Sequence[AddedFile]


class TopicExpirer:
    def __init__(
        self,
        settings: CompactionSettings,
        sequencer: Sequencer,
        topic: Topic,
        keys: JobKeys,
        on_progress: OnProgress = lambda _: None,
        now: datetime | None = None,
    ) -> None:
        now = now or datetime.now(UTC)
        self._settings = settings
        self._sequencer = sequencer
        self._topic = topic
        self._keys = keys
        self._on_progress = on_progress
        self._readers_since = now - timedelta(seconds=settings.history_snapshot_grace_s)
        self._cutoff = _cutoff(now, TopicConfig.of(topic.config).history_retention_ms)
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("spark", 1)

    async def run(self) -> TopicExpiry:
        settings = self._settings
        self._tell("planning")
        job = await self._sequencer.history.begin(
            self._topic.topic_id, "expire", cluster=settings.cluster, lease_s=settings.job_lease_s
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
        table = await self._threads.run(
            HistoryTableFiles, self._address, self._address.open(), job, job.table
        )
        history, topic_id = self._sequencer.history, job.topic_id
        dropped = await history.expired_files(topic_id, self._cutoff, _FILES_AT_A_TIME)
        partly = await history.partly_expired_files(topic_id, self._cutoff, _FILES_AT_A_TIME)
        due, deferred = first_bytes(partly, self._settings.ttl_rewrite_bytes)
        if not dropped and not due and not table.has_snapshots_before(self._readers_since):
            await history.abandon(job.job_id)
            return TopicExpiry(topic=self._topic.name, files_deferred=len(deferred))
        waits, rewritten, added = "", list[RewrittenFile](), list[AddedFile]()
        try:
            rewritten, added = await self._rewrite(job, table, due)
        except KeyUnavailable as missing:
            waits, due, deferred = str(missing), (), partly
            if not dropped and not table.has_snapshots_before(self._readers_since):
                await history.abandon(job.job_id)
                return TopicExpiry(topic=self._topic.name, files_deferred=len(deferred), waits=waits)
        self._tell("publishing")
        change = _Expiry(removed=(*dropped, *due), added=added)
        outcome = await publish_staged(self._sequencer, job, partial(self._stage, job, change))
        if isinstance(outcome, PublishRefused):
            await history.abandon(job.job_id)
            return TopicExpiry(topic=self._topic.name, busy=True, waits=waits, refused=outcome.reason)
        return TopicExpiry(
            topic=self._topic.name,
            rows_expired=sum(file.row_count for file in dropped)
            + sum(file.expired_rows for file in rewritten),
            files_dropped=len(dropped),
            files_rewritten=len(due),
            files_deferred=len(deferred),
            waits=waits,
        )

    async def _rewrite(
        self, job: HistoryJob, table: HistoryTableFiles, due: Sequence[TableFile]
    ) -> tuple[list[RewrittenFile], list[AddedFile]]:
        """What the tasks did, and the new files. Raises KeyUnavailable."""
        if not due:
            return [], []
        rewrites = [Rewrite(sources=(file,)) for file in due]
        keyring = await self._keys.of(self._topic)
        self._tell("rewriting", total=len(rewrites))
        rewritten = await run_rewrite_job(
            self._settings,
            self._threads,
            self._address,
            job,
            rewrites,
            keyring=keyring,
            cutoff=self._cutoff,
            deleted_to=await self._sequencer.history.deleted_to(job.topic_id),
            on_tasks_done=lambda done: self._tell("rewriting", done=done, total=len(rewrites)),
        )
        expected = expected_files(rewrites, rewritten, file_bytes=self._settings.parquet_file_bytes)
        return rewritten, await self._threads.run(table.describe, expected, keyring)

    def _stage(self, job: HistoryJob, expiry: "_Expiry", on: TableVersion) -> Publication:
        change = Change(
            added=expiry.added,
            removed=expiry.removed,
            summary={"tidelog.expired-before": self._cutoff.isoformat()},
            expire_snapshots_before=self._readers_since,
        )
        return HistoryTableFiles(self._address, self._address.open(), job, on).publication(change)

    def _tell(
        self, stage: Literal["planning", "rewriting", "publishing", "done"], done: int = 0, total: int = 0
    ) -> None:
        self._on_progress(
            TtlProgress(topic=self._topic.name, stage=stage, tasks_done=done, tasks_total=total)
        )


def _cutoff(now: datetime, retention_ms: int) -> datetime:
    """Returns the time before which records have expired. Without a limit, or with one before any timestamp,
    none have."""
    if retention_ms < 0:
        return _EPOCH
    since_epoch_ms = (now - _EPOCH) // timedelta(milliseconds=1)
    return now - timedelta(milliseconds=min(retention_ms, since_epoch_ms))


def first_bytes(files: Sequence[TableFile], limit: int) -> tuple[Sequence[TableFile], Sequence[TableFile]]:
    """The first files up to `limit` bytes together, and the rest."""
    total = 0
    for taken, file in enumerate(files):
        total += file.size_bytes
        if total > limit:
            return files[:taken], files[taken:]
    return files, ()
