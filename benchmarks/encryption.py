"""What sealing and opening batches costs, in CPU seconds per GB of the batches that clients send.

`python -m benchmarks.encryption`. One process. Checked batches are sealed into a segment, and the batches of
a run are cut for a fetch, each with and without encryption in turn.

History in the same way: a task of compaction turns a run into Parquet, and one of a merge writes the file
again. Both are what Spark's executors run, in this process and with a directory as bucket. Records are like a
service's events, in batches that zstd compressed; a GB is one of these batches as they are stored.

Log compaction, too: the housekeeper's cleaner in this process, with a Postgres as another one.
"""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from uuid import UUID, uuid4

from kafka.record import MemoryRecordsBuilder
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from agent.read_path.slice_batches import take_batches
from benchmarks.history_reads import batch as batch_of_events
from cache_ring.pages.run_bytes import RunBytes
from compactor.cleaning import Cleaner, CleaningDiscoveryJob
from compactor.metrics import CleaningMetrics
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.commits import SegmentToCommit
from sequencer.commits.coordinates import RunCoordinate
from sequencer.history.history_values import HistoryJob, RunToCompact, TableFile, TableVersion
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from sequencer.topics.topic_key_cache import TopicKeys, keys_for_jobs
from spark_compaction.bucket import BucketAddress
from spark_compaction.history_file import PARQUET_SCHEMA
from spark_compaction.planner import PlannedTask
from spark_compaction.rewrite_tasks import Rewrite, RewriteContext, rewrite_table, run_rewrites
from spark_compaction.tasks import TaskContext, run_tasks, task_table
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import BatchHeader, read_header
from storage.encryption.sealed_batches import TopicKey, key_ids, opened
from storage.encryption.settings import EncryptionSettings
from storage.encryption.topic_keyring import TopicKeyring
from storage.identifiers import BytePosition, KeyId, ObjectKey, Offset, Partition, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import StoreSettings
from tests.support.key_file import key_line
from tests.support.postgres import OWN_FOR_YEARS
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

CLUSTER = "tidelog"
TOPIC = TopicId(UUID(int=1))
PARTITION = Partition(0)
TOTAL_BYTES = 8 << 20
ROUNDS = 9
LIMITS = BatchLimits(max_message_bytes=64 << 20)
SHAPES = ((1, 100), (10, 100), (100, 1_000), (1_000, 1_000))
"""Records per batch, and bytes per record."""
HISTORY_BYTES = 32 << 20
HISTORY_RECORD_BYTES = (200, 1_000)
ROW_GROUP_BYTES, FILE_BYTES = 8 << 20, 256 << 20
_BATCHES_PER_SEGMENT = 16
JOB = HistoryJob(
    job_id=uuid4(), topic_id=TOPIC, prefix="history/", table=TableVersion(number=0, metadata_key=None)
)


def cpu_s_per_gb(work: Callable[[], object], size_bytes: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / size_bytes * 1e9


def checked(data: bytes, key: TopicKey | None, topic_id: TopicId = TOPIC) -> PendingBatch:
    """Checks a batch, and seals it with the key."""
    batch = validate_produced(data, LIMITS)
    if key is not None:
        sealed = memoryview(key.seal(batch.data, PARTITION))
        header: BatchHeader = read_header(sealed)
        batch = type(batch)(
            header=header,
            data=sealed,
            min_timestamp_ms=batch.min_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
        )
    return PendingBatch(topic_id=topic_id, partition=PARTITION, batch=batch)


def produce(batches: Sequence[bytes], key: TopicKey | None) -> int:
    """Checks the batches and lays them out as a segment. Returns its size."""
    pending = [checked(data, key) for data in batches]
    sealed_segment = seal_segment(new_segment_id(), "1", PendingBatches.of(pending))
    return len(b"".join(sealed_segment.chunks))


def fetch(run: RunCoordinate, data: bytes, key: TopicKey | None) -> int:
    """Cuts a run for a fetch, and opens it with the key. Returns the bytes for clients."""
    indexed = RunBytes.of(run, [memoryview(data)])
    assert indexed is not None
    taken = take_batches([indexed], 0, run.last_offset + 1, 1 << 30, first_whatever_its_size=True)
    if key is None:
        return taken.size_bytes
    batches = b"".join(taken.chunks)
    assert key_ids(batches) == {key.key_id}
    return len(opened(batches, PARTITION, {key.key_id: key}))


def a_batch(records: int, record_bytes: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 26)
    for _ in range(records):
        builder.append(timestamp=1_700_000_000_000, key=None, value=os.urandom(record_bytes))
    builder.close()
    return bytes(builder.buffer())


def a_run(data: bytes, records: int) -> RunCoordinate:
    return RunCoordinate(
        topic_id=TOPIC,
        partition=PARTITION,
        base_offset=Offset(0),
        last_offset=Offset(records - 1),
        object_key=segment_key("tidelog", new_segment_id()),
        object_size_bytes=len(data),
        position=BytePosition(0),
        length=len(data),
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


class StoredRun:
    """A run in a bucket, and the file that compaction makes of it. With a key both are encrypted."""

    def __init__(self, folder: Path, batches: Sequence[tuple[bytes, int]], key: TopicKey | None) -> None:
        self._address = BucketAddress.of(f"file://{folder}", StoreSettings())
        self._keyring = None if key is None else TopicKeyring(newest=key, by_id={key.key_id: key}, refused={})
        data = b"".join(batch if key is None else key.seal(batch, PARTITION) for batch, _ in batches)
        end = Offset(sum(count for _, count in batches))
        run = RunToCompact(
            partition=PARTITION,
            from_offset=Offset(0),
            base_offset=Offset(0),
            last_offset=Offset(end - 1),
            end_offset=end,
            segment_id=new_segment_id(),
            object_key=ObjectKey("run"),
            position=BytePosition(0),
            length=len(data),
        )
        self._address.open().put(run.object_key, data)
        self._task = PlannedTask(
            task_id=0, partition=PARTITION, from_offset=Offset(0), end_offset=end, runs=(run,), aborted=()
        )
        self._file_key, self.file_bytes = "", 0

    def compact(self) -> None:
        context = TaskContext(
            address=self._address,
            prefetch_runs=1,
            row_group_bytes=ROW_GROUP_BYTES,
            file_bytes=FILE_BYTES,
            keyrings={} if self._keyring is None else {TOPIC: self._keyring},
        )
        [rows] = run_tasks(context, task_table([(JOB, self._task)]).to_batches())
        [written] = rows.to_pylist()
        assert written["row_count"] == self._task.end_offset
        self._file_key, self.file_bytes = written["object_key"], written["size_bytes"]

    def merge(self) -> None:
        context = RewriteContext(
            address=self._address,
            prefix="history/",
            topic_id=TOPIC,
            cutoff=None,
            row_group_bytes=ROW_GROUP_BYTES,
            file_bytes=FILE_BYTES,
            keyring=self._keyring,
            schema=PARQUET_SCHEMA,
        )
        source = TableFile(
            object_key=ObjectKey(self._file_key),
            partition=PARTITION,
            first_offset=Offset(0),
            last_offset=Offset(self._task.end_offset - 1),
            row_count=self._task.end_offset,
            size_bytes=self.file_bytes,
            is_full=False,
            oldest=None,
            newest=None,
            has_untimed=False,
            row_groups=(),
        )
        rows = list(run_rewrites(context, rewrite_table([Rewrite(sources=(source,))], None).to_batches()))
        assert sum(row["kept_rows"] for each in rows for row in each.to_pylist()) == source.row_count


def events(record_bytes: int) -> list[tuple[bytes, int]]:
    """Batches, each with its number of records: HISTORY_BYTES in all."""
    chance, batches, size, records = random.Random(1), list[tuple[bytes, int]](), 0, 0
    while size < HISTORY_BYTES:
        batches.append(batch_of_events(chance, records, record_bytes))
        size, records = size + len(batches[-1][0]), records + batches[-1][1]
    return batches


def show_history(key: TopicKey) -> Table:
    """With the median of what encryption adds in a round, and its quartiles."""
    table = Table("bytes each", "compact", "encryption adds", "merge", "encryption adds", "bytes added")
    table.title = "History, CPU s per GB of the log"
    for record_bytes in HISTORY_RECORD_BYTES:
        batches = events(record_bytes)
        size = sum(len(batch) for batch, _ in batches)
        with tempfile.TemporaryDirectory() as clear, tempfile.TemporaryDirectory() as encrypted:
            runs = StoredRun(Path(clear), batches, None), StoredRun(Path(encrypted), batches, key)
            works = [work for run in runs for work in (run.compact, run.merge)]
            rounds = [[cpu_s_per_gb(work, size) for work in works] for _ in range(ROUNDS)]
            compact, merge, compact_keyed, merge_keyed = zip(*rounds, strict=True)
            added = runs[1].file_bytes / runs[0].file_bytes - 1
        cells = (
            f"{median(compact):.1f}",
            _added(compact, compact_keyed),
            f"{median(merge):.1f}",
            _added(merge, merge_keyed),
        )
        table.add_row(str(record_bytes), *cells, f"{added:.2%}")
    return table


@dataclass(kw_only=True)
class CompactedTopics:
    sequencer: Sequencer
    store: MemoryStore
    keys: TopicKeys

    async def clean(self, name: str, batches: Sequence[tuple[bytes, int]], *, encrypted: bool) -> float:
        """Writes the batches to a new topic. Returns the CPU seconds of cleaning it."""
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        if encrypted:
            config["tidelog.encryption"] = "on"
        topic_id = (await self.sequencer.topics.create(name, 1, config)).topic_id
        key = await self.keys.to_seal(topic_id) if encrypted else None
        for first in range(0, len(batches), _BATCHES_PER_SEGMENT):
            await self._write(topic_id, [data for data, _ in batches[first:][:_BATCHES_PER_SEGMENT]], key)
        settings = HousekeeperSettings(restore_horizon_s=0)
        await CleaningDiscoveryJob(self.sequencer, settings).step(None)
        metrics = CleaningMetrics(CollectorRegistry())
        cleaner = Cleaner(self.sequencer, self.store, CLUSTER, settings, metrics, keys=self.keys)
        began_s = time.process_time()
        assert await cleaner.clean_once(), "it was due"
        took_s = time.process_time() - began_s
        await self.sequencer.topics.delete(name)
        return took_s

    async def _write(self, topic_id: TopicId, batches: Sequence[bytes], key: TopicKey | None) -> None:
        pending = [checked(data, key, topic_id) for data in batches]
        segment_id = new_segment_id()
        object_key = segment_key(CLUSTER, segment_id)
        segment = seal_segment(segment_id, "1", PendingBatches.of(pending))
        await self.sequencer.reservations.reserve({segment_id: object_key}, 600, "1")
        await self.store.put(object_key, segment.chunks)
        await self.sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=segment.size_bytes, batches=segment.placed)]
        )


@asynccontextmanager
async def compacted_topics(folder: Path) -> AsyncIterator[CompactedTopics]:
    key_file = folder / "keys"
    key_file.write_text(key_line("only"))
    settings = EncryptionSettings(encryption_provider="file", encryption_key=str(key_file))
    postgres = EmbeddedPostgres(folder / "postgres", EmbeddedPostgresSettings(durable=False))
    try:
        url = await asyncio.to_thread(postgres.start)
        await migrate(url, MigrationSettings())
        sequencer, store = await Sequencer.open(url, SequencerSettings()), MemoryStore()
        try:
            await sequencer.database.run(OWN_FOR_YEARS)
            keys = keys_for_jobs(sequencer.topic_keys, store, CLUSTER, settings)
            yield CompactedTopics(sequencer=sequencer, store=store, keys=keys)
        finally:
            await sequencer.close()
    finally:
        await asyncio.to_thread(postgres.stop)


async def show_cleaning() -> Table:
    table = Table("bytes each", "clean", "encryption adds", title="Log compaction, CPU s per GB of the log")
    for record_bytes in HISTORY_RECORD_BYTES:
        batches = events(record_bytes)
        size = sum(len(batch) for batch, _ in batches)
        rounds: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            async with compacted_topics(Path(folder)) as topics:
                for number in range(ROUNDS):
                    clear = await topics.clean(f"clear-{number}", batches, encrypted=False)
                    encrypted = await topics.clean(f"encrypted-{number}", batches, encrypted=True)
                    rounds.append((clear / size * 1e9, encrypted / size * 1e9))
        without, with_encryption = zip(*rounds, strict=True)
        table.add_row(str(record_bytes), f"{median(without):.1f}", _added(without, with_encryption))
    return table


def _added(without: Sequence[float], encrypted: Sequence[float]) -> str:
    low, middle, high = quantiles([b - a for a, b in zip(without, encrypted, strict=True)])
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def main() -> None:
    key = TopicKey(TOPIC, KeyId(1), os.urandom(32))
    table = Table("records", "bytes each", "produce", "sealed", "fetch", "opened", title="CPU s per GB")
    for records, record_bytes in SHAPES:
        batch = a_batch(records, record_bytes)
        batches = [batch] * max(1, TOTAL_BYTES // len(batch))
        size = len(batch) * len(batches)
        plain = b"".join(batches)
        sealed = b"".join(key.seal(one, PARTITION) for one in batches)
        count = records * len(batches)
        works: tuple[Callable[[], object], ...] = (
            partial(produce, batches, None),
            partial(produce, batches, key),
            partial(fetch, a_run(plain, count), plain, None),
            partial(fetch, a_run(sealed, count), sealed, key),
        )
        rounds = [[cpu_s_per_gb(work, size) for work in works] for _ in range(ROUNDS)]
        medians = [median(each) for each in zip(*rounds, strict=True)]
        table.add_row(str(records), str(record_bytes), *(f"{one:.2f}" for one in medians))
    Console().print(table)
    Console().print(show_history(key))
    Console().print(asyncio.run(show_cleaning()))


if __name__ == "__main__":
    main()
