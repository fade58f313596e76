"""Erases records of some keys from a topic's history files (docs/design/erasure.md#history).

Spark looks into every file that begins below the ends of the erasure, reading offsets and keys alone. It
rewrites those that hold a record to erase, with the verification of TTL and merging. Each job is published by
one transaction. At the end no other snapshot than the current one is left in the table.

Promises:
- A job that another one outruns is planned again. The last round finds nothing.
- Files of an encrypted topic are opened to look into them, and new ones are encrypted with its newest key.
- Where Parquet is the log, the coordinates of row groups change with the publish.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial

from erasure.report import ErasureFailed, ErasureProgress, ErasureReport, OnProgress
from erasure.settings import ErasureSettings
from sequencer.client import Sequencer
from sequencer.history.history_values import (
    Busy,
    HistoryJob,
    NothingToDo,
    Publication,
    Published,
    TableFile,
    TableVersion,
)
from sequencer.housekeeping.erasures import ErasureScope
from sequencer.topics.topics import Topic
from spark_compaction.bucket import BucketAddress
from spark_compaction.footers import ExpectedFile
from spark_compaction.iceberg_table import AddedFile, Change, HistoryTableFiles
from spark_compaction.java import JavaMissing
from spark_compaction.job import SparkJobFailed, kept_lease, publish_staged
from spark_compaction.job_keys import JobKeys
from spark_compaction.manifest import ManifestRefused
from spark_compaction.rewrite_job import run_rewrite_job
from spark_compaction.rewrite_tasks import (
    Rewrite,
    RewrittenFile,
    expected_files,
)
from spark_compaction.session import SparkUnavailable
from storage.arrow.erased_batches import ErasedKeys
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import Offset
from storage.threads import Threads

_MOST_PASSES = 20


class HistoryEraser:
    """Erases from the history of one topic. `report` counts what it does."""

    def __init__(
        self,
        sequencer: Sequencer,
        settings: ErasureSettings,
        topic: Topic,
        keys: ErasedKeys,
        job_keys: JobKeys,
        scope: ErasureScope,
        report: ErasureReport,
        on_progress: OnProgress,
    ) -> None:
        self._sequencer = sequencer
        self._settings = settings
        self._topic = topic
        self._keys = keys
        self._job_keys = job_keys
        self._scope = scope
        self._ends = {end.partition: end.end_offset for end in scope.partitions}
        self._report = report
        self._on_progress = on_progress
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("spark", 1)

    async def run(self) -> None:
        """Raises ErasureFailed, KeyUnavailable and what the sequencer and the store raise."""
        try:
            await self._run()
        except (SparkJobFailed, SparkUnavailable, JavaMissing, ManifestRefused) as failed:
            raise ErasureFailed(str(failed)) from failed

    async def _run(self) -> None:
        for _ in range(_MOST_PASSES):
            if not await self._pass():
                return await self._expire_snapshots()
        raise ErasureFailed(
            f"the history changed during each of {_MOST_PASSES} passes. Run the command again"
        )

    async def _pass(self) -> bool:
        """True if a file held a record to erase, or a job was outrun."""
        found_any = False
        done = 0
        async for files in self._files():
            found_any = await self._job(files, done) or found_any
            done += len(files)
        return found_any

    async def _files(self) -> AsyncIterator[Sequence[TableFile]]:
        """The files to look into, as many as one job takes."""
        cap = self._settings.erase_files_per_job
        files: list[TableFile] = []
        for end in self._scope.partitions:
            from_offset = Offset(0)
            while page := await self._sequencer.history.files_from(
                self._topic.topic_id, end.partition, from_offset, cap
            ):
                files += [file for file in page if file.first_offset < end.end_offset]
                from_offset = Offset(page[-1].last_offset + 1)
                while len(files) >= cap:
                    yield files[:cap]
                    files = files[cap:]
                if from_offset >= end.end_offset:
                    break
        if files:
            yield files

    async def _job(self, files: Sequence[TableFile], done_before: int) -> bool:
        job = await self._begin()
        async with kept_lease(self._sequencer, job, self._settings.job_lease_s):
            rewrites = [Rewrite(sources=(file,)) for file in files]
            keyring = await self._job_keys.of(self._topic)
            rows = await self._look(job, rewrites, keyring, done_before)
            self._report.files_read += len(files)
            touched_ids = {row.task_id for row in rows if row.expired_rows}
            touched = [rewrite for number, rewrite in enumerate(rewrites) if number in touched_ids]
            if not touched:
                await self._sequencer.history.abandon(job.job_id)
                return False
            expected = expected_files(rewrites, rows, file_bytes=self._settings.parquet_file_bytes)
            added = await self._threads.run(self._describe, job, expected, keyring)
            removed = [file for rewrite in touched for file in rewrite.sources]
            outcome = await publish_staged(self._sequencer, job, partial(self._stage, job, added, removed))
            if isinstance(outcome, Published):
                self._report.history_records += sum(row.expired_rows for row in rows)
                self._report.files_rewritten += len(touched)
            else:
                await self._sequencer.history.abandon(job.job_id)
        return True

    async def _begin(self) -> HistoryJob:
        """Waits while another erasure works on the topic."""
        ends_s = time.monotonic() + self._settings.erase_timeout_s
        while time.monotonic() < ends_s:
            job = await self._sequencer.history.begin(
                self._topic.topic_id,
                "erase",
                cluster=self._settings.cluster,
                lease_s=self._settings.job_lease_s,
            )
            if isinstance(job, NothingToDo):
                raise ErasureFailed(f"topic '{self._topic.name}' was deleted meanwhile")
            if not isinstance(job, Busy):
                return job
            self._on_progress(ErasureProgress(stage="waiting for other jobs"))
            await asyncio.sleep(self._settings.erase_poll_s)
        raise ErasureFailed("another erasure works on this topic. Run the command again when it has ended")

    async def _look(
        self, job: HistoryJob, rewrites: Sequence[Rewrite], keyring: TopicKeyring | None, done_before: int
    ) -> list[RewrittenFile]:
        return await run_rewrite_job(
            self._settings,
            self._threads,
            self._address,
            job,
            rewrites,
            keyring=keyring,
            erased_keys=self._keys.keys,
            erased_to=self._ends,
            on_tasks_done=lambda done: self._on_progress(
                ErasureProgress(
                    stage="reading the history",
                    done=done_before + done,
                    total=done_before + len(rewrites),
                )
            ),
        )

    def _describe(
        self, job: HistoryJob, expected: Sequence[ExpectedFile], keyring: TopicKeyring | None
    ) -> Sequence[AddedFile]:
        table = HistoryTableFiles(self._address, self._address.open(), job, job.table)
        return table.describe(expected, keyring)

    def _stage(
        self, job: HistoryJob, added: Sequence[AddedFile], removed: Sequence[TableFile], on: TableVersion
    ) -> Publication:
        change = Change(
            added=added,
            removed=removed,
            summary={"tidelog.erased-files": str(len(removed))},
            expire_snapshots_before=datetime.now(UTC),
        )
        return HistoryTableFiles(self._address, self._address.open(), job, on).publication(change)

    async def _expire_snapshots(self) -> None:
        """Leaves the current snapshot alone in the table: others may name files that held these records."""
        for _ in range(_MOST_PASSES):
            job = await self._begin()
            async with kept_lease(self._sequencer, job, self._settings.job_lease_s):
                if not await self._threads.run(self._has_old_snapshots, job):
                    return await self._sequencer.history.abandon(job.job_id)
                outcome = await publish_staged(self._sequencer, job, partial(self._stage, job, (), ()))
                if isinstance(outcome, Published):
                    return None
                await self._sequencer.history.abandon(job.job_id)
        raise ErasureFailed("other jobs changed the history's table all the time. Run the command again")

    def _has_old_snapshots(self, job: HistoryJob) -> bool:
        table = HistoryTableFiles(self._address, self._address.open(), job, job.table)
        return table.has_snapshots_before(datetime.now(UTC))
