"""Merges small Parquet files, so that a table's files follow its bytes and not the time.

Compaction that keeps a topic fresh writes small files. Eight small neighbours become one file of the next
size, eight of those one of the size after it, up to `parquet_file_bytes`. So a byte is rewritten a few times
in all, and a partition has a few small files at its end and large ones before. Offsets do not move: the new
file has the rows of its sources, which the executors check by checksum, and the publish puts it in their
place or fails if another job replaced one of them first.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from sequencer.client import Sequencer
from sequencer.history.history_values import HistoryJob, Publication, Published, TableFile, TableVersion
from sequencer.topics.topics import Topic
from spark_compaction.bucket import BucketAddress
from spark_compaction.footers import ExpectedFile
from spark_compaction.iceberg_table import AddedFile, Change, HistoryTableFiles
from spark_compaction.job import kept_lease, publish_staged
from spark_compaction.job_keys import JobKeys
from spark_compaction.rewrite_job import run_rewrite_job
from spark_compaction.rewrite_tasks import (
    Rewrite,
    expected_files,
)
from spark_compaction.settings import CompactionSettings
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import Partition
from storage.threads import Threads

_LOOKED_AT = 10_000
_SMALLEST_BYTES = 1 << 20


class FileMerger:
    """Merges one topic's small files."""

    def __init__(
        self, settings: CompactionSettings, sequencer: Sequencer, topic: Topic, keys: JobKeys
    ) -> None:
        self._settings = settings
        self._sequencer = sequencer
        self._topic = topic
        self._keys = keys
        self._topic_id = topic.topic_id
        self._address = BucketAddress.of(settings.store_url, settings)
        self._threads = Threads("spark", 1)
        self._from_partition = Partition(0)
        self.refused = ""
        """Why the last job's publish was refused."""

    async def run_job(self) -> int | None:
        """Merges the next groups of neighbours. Returns how many files went; None once there is nothing to
        merge. Raises KeyUnavailable.
        """
        rewrites = await self._plan()
        if not rewrites:
            return None
        settings = self._settings
        job = await self._sequencer.history.begin(
            self._topic_id, "merge", cluster=settings.cluster, lease_s=settings.job_lease_s
        )
        if not isinstance(job, HistoryJob):
            return None  # another one is at it
        async with kept_lease(self._sequencer, job, settings.job_lease_s):
            added = await self._merge(job, rewrites, await self._keys.of(self._topic))
            removed = [file for rewrite in rewrites for file in rewrite.sources]
            outcome = await publish_staged(self._sequencer, job, partial(self._stage, job, added, removed))
            if not isinstance(outcome, Published):
                self.refused = outcome.reason
                await self._sequencer.history.abandon(job.job_id)
                return None
        return len(removed)

    async def _plan(self) -> list[Rewrite]:
        """Looks at pages of small files until one has something to merge."""
        settings = self._settings
        while True:
            groups = await self._sequencer.history.small_files(
                self._topic_id, self._from_partition, _LOOKED_AT
            )
            planned = list(
                first_rewrites(
                    groups,
                    files=settings.parquet_merge_files,
                    file_bytes=settings.parquet_file_bytes,
                    job_bytes=settings.parquet_merge_job_bytes,
                )
            )
            if planned or sum(map(len, groups)) < _LOOKED_AT:
                return planned
            last = groups[-1][-1].partition
            self._from_partition = Partition(max(last, self._from_partition + 1))

    async def _merge(
        self, job: HistoryJob, rewrites: Sequence[Rewrite], keyring: TopicKeyring | None
    ) -> Sequence[AddedFile]:
        written = await run_rewrite_job(
            self._settings, self._threads, self._address, job, rewrites, keyring=keyring
        )
        expected = expected_files(rewrites, written, file_bytes=self._settings.parquet_file_bytes)
        return await self._threads.run(self._describe, job, expected, keyring)

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
            summary={"tidelog.merged-files": str(len(removed))},
            expire_snapshots_before=datetime.now(UTC)
            - timedelta(seconds=self._settings.history_snapshot_grace_s),
        )
        return HistoryTableFiles(self._address, self._address.open(), job, on).publication(change)


def first_rewrites(
    groups: Sequence[Sequence[TableFile]], *, files: int, file_bytes: int, job_bytes: int
) -> Iterator[Rewrite]:
    """What to merge: neighbours of one size, the smallest sizes first, up to `job_bytes` together. `groups`
    are neighbours in the order of their offsets.
    """
    total, taken = 0, set[str]()
    for size_bytes in _sizes(file_bytes):
        for group in groups:
            for run in _runs_below(group, size_bytes, taken):
                if len(run) < files:
                    continue
                for some in _cut(run, file_bytes):
                    if len(some) < files:
                        continue
                    total += sum(file.size_bytes for file in some)
                    if taken and total > job_bytes:
                        return
                    taken |= {file.object_key for file in some}
                    yield Rewrite(sources=tuple(some))


def _sizes(file_bytes: int) -> Iterator[int]:
    size_bytes = min(_SMALLEST_BYTES, file_bytes)
    while size_bytes < file_bytes:
        yield size_bytes
        size_bytes *= 8
    yield file_bytes


def _runs_below(group: Sequence[TableFile], size_bytes: int, taken: set[str]) -> Iterator[list[TableFile]]:
    """Neighbours smaller than `size_bytes` that are not taken."""
    run: list[TableFile] = []
    for file in group:
        if file.size_bytes < size_bytes and file.object_key not in taken:
            run.append(file)
        else:
            yield run
            run = []
    yield run


def _cut(run: Sequence[TableFile], file_bytes: int) -> Iterator[list[TableFile]]:
    """Pieces that make about one full file each. The last may be smaller."""
    piece: list[TableFile] = []
    piece_bytes = 0
    for file in run:
        piece.append(file)
        piece_bytes += file.size_bytes
        if piece_bytes >= file_bytes:
            yield piece
            piece, piece_bytes = [], 0
    yield piece
