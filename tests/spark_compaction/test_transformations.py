"""Promise P6: whatever is done to a log, all readers read what was written, until retention removes it.

A log of random batches goes through random transformations. After each one, everything that can read it is
compared with what was written: Kafka consumers from the start of each partition, from random offsets and
times, at both isolation levels; Spark's data source; and PyIceberg. One consumer reads all the time. In about
half of the logs, values that are JSON have a column as well.

A transformation is a function of `TRANSFORMATIONS`. One that removes records, apart from the log start, notes
their places in `World.removed`.

TIDELOG_TEST_SEEDS runs other seeds, TIDELOG_TEST_TRANSFORMATIONS more steps of each.
"""

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, TopicPartition
from kafka.record import MemoryRecordsBuilder
from pyspark.sql.types import StructType

from compactor.history_log_jobs import LocalRetentionJob
from compactor.retention_jobs import RetentionJob
from compactor.settings import HousekeeperSettings
from erasure.erase import erase_records
from erasure.report import OnProgress
from erasure.settings import ErasureSettings
from pyspark_tidelog import DefaultSource
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, SegmentToCommit
from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import expire_history
from spark_source.source import Reader
from storage.arrow.erased_batches import ErasedKeys
from storage.batches.batch_validation import (
    LAST_TIMESTAMP_MS,
    NO_TIMESTAMP_MS,
    BatchLimits,
    validate_produced,
)
from storage.batches.record_batch import with_log_append_time
from storage.identifiers import Offset, Partition, TopicId, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.object_store import ObjectStore, StoreSettings
from tests.agent.running import Running, running
from tests.compactor.merging import merge_everything
from tests.erasure.conftest import housekeeping_at_work
from tests.spark_compaction.log import CLUSTER, LEASE_S
from tests.spark_compaction.reading import compact as compact_topics
from tests.spark_compaction.reading import iceberg_table
from tests.support.seeds import seeds

TOPIC = "orders"
PARTITIONS = 3
SEEDS = 2
STEPS = int(os.environ.get("TIDELOG_TEST_TRANSFORMATIONS", "9"))
JOBS = HousekeeperSettings(retention_runs_per_step=64, retention_partitions_at_once=4)
FIRST_MS = 1_700_000_000_000
_POLL_S = 30.0

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(1200)]

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A record and its place. Times are in milliseconds, so that all of Kafka's fit."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass
class World:
    """A log, who reads it, and what they must find."""

    chance: random.Random
    sequencer: Sequencer
    store: ObjectStore
    settings: CompactionSettings
    source: Mapping[str, str]
    agent: Running
    topic_id: TopicId
    topic: str = TOPIC
    written: dict[int, list[Row]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    """By partition: what was written, in the order of offsets."""
    removed: set[tuple[int, int]] = field(default_factory=set)
    """Partitions and offsets of records that a transformation took out above the log start."""
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    """By producer and partition: the next sequence number."""
    erasures: list[asyncio.Task[None]] = field(default_factory=list)
    """Those that may still be at work."""
    has_table: bool = False

    def rows(self, partition: int, start: int = 0) -> list[Row]:
        """What a reader from `start` on gets."""
        return [
            row
            for row in self.written[partition]
            if row.offset >= start and (partition, row.offset) not in self.removed
        ]

    async def log_starts(self) -> dict[int, int]:
        keys = [(self.topic_id, Partition(partition)) for partition in range(PARTITIONS)]
        bounds = await self.sequencer.coordinates.bounds(keys)
        return {partition: bounds[self.topic_id, partition].log_start_offset for _, partition in keys}


# --- what is written


def random_headers(chance: random.Random) -> Headers:
    names = chance.choices(("a", "a", "b", "größe", ""), k=chance.choice((0, 0, 0, 1, 4)))
    return tuple((name, chance.choice((None, b"", chance.randbytes(6)))) for name in names)


def random_time(chance: random.Random) -> int:
    usual = FIRST_MS + chance.randrange(10_000_000)
    return chance.choice((usual, usual, usual, 0, NO_TIMESTAMP_MS, LAST_TIMESTAMP_MS))


def random_row(chance: random.Random) -> Row:
    large = chance.random() < 0.01
    number = b'{"n": %d}' % chance.randrange(1000)
    bytes_ = chance.randbytes(200_000 if large else chance.randrange(300))
    value = chance.choice((None, b"", b"same", number, bytes_))
    key = chance.choice((None, b"", b"%d" % chance.randrange(20), chance.randbytes(20)))
    return Row(0, random_time(chance), 0, key, value, random_headers(chance))


def a_batch(world: World, partition: int) -> tuple[list[Row], PendingBatch]:
    chance = world.chance
    rows = [random_row(chance) for _ in range(chance.choice((1, 2, 10, 60)))]
    builder = MemoryRecordsBuilder(magic=2, compression_type=chance.randrange(5), batch_size=1 << 30)
    producer = chance.choice((None, 1000, 1001))
    if producer is not None:
        sequence = world.sequences.get((producer, partition), 0)
        builder.set_producer_state(producer, 0, sequence, False)
        world.sequences[producer, partition] = sequence + len(rows)
    for row in rows:
        assert builder.append(row.timestamp_ms, row.key, row.value, list(row.headers)) is not None
    builder.close()
    valid = validate_produced(bytes(builder.buffer()), BatchLimits())
    if chance.random() < 0.2:
        appended_ms = FIRST_MS + chance.randrange(1_000_000)
        valid = with_log_append_time(valid, appended_ms)
        rows = [Row(0, appended_ms, 1, row.key, row.value, row.headers) for row in rows]
    return rows, PendingBatch(topic_id=world.topic_id, partition=Partition(partition), batch=valid)


async def write(world: World) -> None:
    """Some segments of some batches each, as an agent writes them."""
    for _ in range(world.chance.randint(1, 6)):
        batches = []
        for _ in range(world.chance.randint(1, 5)):
            partition = world.chance.randrange(PARTITIONS)
            batches.append((partition, *a_batch(world, partition)))
        segment_id = new_segment_id()
        key = segment_key(CLUSTER, segment_id)
        await world.sequencer.reservations.reserve({segment_id: key}, LEASE_S, "test")
        sealed = seal_segment(segment_id, "test", PendingBatches.of([pending for _, _, pending in batches]))
        await world.store.put(key, sealed.chunks)
        [committed] = await world.sequencer.commits.commit(
            [SegmentToCommit(segment_id=segment_id, size_bytes=sealed.size_bytes, batches=sealed.placed)]
        )
        assert isinstance(committed, Committed)
        for position, outcome in zip(sealed.order, committed.outcomes, strict=True):
            assert isinstance(outcome, Assigned)
            partition, rows, _ = batches[position]
            for number, row in enumerate(rows):
                placed = Row(outcome.base_offset + number, *_but_offset(row))
                world.written[partition].append(placed)
    for rows in world.written.values():
        assert [row.offset for row in rows] == list(range(len(rows)))


def _but_offset(row: Row) -> tuple[Any, ...]:
    return row.timestamp_ms, row.timestamp_type, row.key, row.value, row.headers


# --- what is done to it


async def compact(world: World) -> None:
    """Also makes files grow: small neighbours become one."""
    sizes = {
        "compact_task_bytes": world.chance.choice((1, 4096, 1 << 20)),
        "parquet_row_group_bytes": world.chance.choice((512, 8192, 1 << 20)),
        "parquet_file_bytes": world.chance.choice((1, 16_384, 1 << 22)),
        "parquet_merge_files": world.chance.choice((2, 8)),
    }
    for report in (await compact_topics(world.settings.model_copy(update=sizes), world.topic)).topics:
        assert (report.failed, report.stopped, report.raw_ranges) == ((), (), ())
        world.has_table = world.has_table or report.files > 0


async def merge_segments(world: World) -> None:
    await merge_everything(world.sequencer, world.store)


async def drop_raw_runs(world: World) -> None:
    """What is in history leaves the uploaded objects, where Parquet is the log."""
    job, progress = LocalRetentionJob(world.sequencer, JOBS), None
    while True:
        step = await job.step(progress)
        progress = step.progress
        if not step.more:
            return


async def delete_records(world: World) -> None:
    partition = world.chance.randrange(PARTITIONS)
    start = (await world.log_starts())[partition]
    end = world.written[partition][-1].offset + 1 if world.written[partition] else 0
    before = min(end, start + world.chance.randrange(40))
    await world.sequencer.retention.delete_records(world.topic_id, Partition(partition), Offset(before))


async def retention_runs(world: World) -> None:
    """Nothing has expired. Runs below the log start go."""
    job, progress = RetentionJob(world.sequencer, JOBS), None
    for _ in range(100):
        step = await job.step(progress)
        progress = step.progress
        if not step.more:
            return


async def ttl(world: World) -> None:
    await asyncio.to_thread(expire_history, world.settings, [world.topic])


async def change_policy(world: World) -> None:
    policy = world.chance.choice(("off", "table", "log", "log", "log"))
    local_ms = world.chance.choice(("0", "-1"))
    config = {"tidelog.history": policy, "local.retention.ms": local_ms}
    await world.sequencer.topics.alter_config(world.topic, config)


async def erase(world: World) -> None:
    """Takes the records of some keys out of the log, the table and old objects. Batches get gaps."""
    keys: list[bytes | None] = [None, b"", *(b"%d" % number for number in range(20))]
    chosen = world.chance.sample(keys, world.chance.choice((1, 3, 3, len(keys))))
    await erase_keys(world, chosen)


async def erase_keys(
    world: World, keys: Sequence[bytes | None], on_progress: OnProgress = lambda _: None
) -> None:
    world.removed |= {
        (partition, row.offset)
        for partition, rows in world.written.items()
        for row in rows
        if row.key in keys
    }
    settings = ErasureSettings.model_validate(
        {
            **world.settings.model_dump(),
            "erase_poll_s": 0.05,
            "erase_timeout_s": 120,
            "erase_page_rows": world.chance.choice((3, 500)),
            "erase_object_bytes": world.chance.choice((4096, 1 << 20)),
            "erase_files_per_job": world.chance.choice((2, 1000)),
        }
    )
    async with housekeeping_at_work(world.sequencer, world.store):
        await asyncio.to_thread(erase_records, settings, world.topic, ErasedKeys(keys), on_progress)


Transformation = Callable[[World], Awaitable[None]]
TRANSFORMATIONS: Mapping[Transformation, int] = {
    write: 4,
    compact: 5,
    merge_segments: 2,
    drop_raw_runs: 3,
    delete_records: 1,
    retention_runs: 1,
    ttl: 1,
    change_policy: 2,
    erase: 3,
}
"""With how often each is chosen."""


# --- what is read


def consumer(agent: Running, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )


def row_of(message: Any) -> Row:
    kind, timestamp_ms = message.timestamp()
    return Row(
        message.offset(),
        timestamp_ms if kind else NO_TIMESTAMP_MS,
        1 if kind == TIMESTAMP_LOG_APPEND_TIME else 0,
        message.key(),
        message.value(),
        tuple((name, value) for name, value in message.headers() or ()),
    )


def read_from(world: World, client: Consumer, partition: int, wanted: Sequence[Row], start: int) -> None:
    """Reads the records of `wanted`, from offset `start` on, and compares each."""
    client.assign([TopicPartition(world.topic, partition, start)])
    at, until = 0, time.monotonic() + _POLL_S
    while at < len(wanted):
        assert time.monotonic() < until, f"nothing at {wanted[at].offset} of {partition} in {_POLL_S:.0f} s"
        for message in client.consume(min(1000, len(wanted) - at), timeout=1.0):
            assert message.error() is None, f"{partition} at {wanted[at].offset}: {message.error()}"
            assert row_of(message) == wanted[at], f"partition {partition}, read from {start}"
            at += 1


def consumers_read(world: World, starts: Mapping[int, int], agent: Running) -> None:
    chance = world.chance
    client = consumer(agent, chance.choice(("read_committed", "read_uncommitted")))
    for partition, start in starts.items():
        rows = world.rows(partition, start)
        end = len(world.written[partition])
        assert client.get_watermark_offsets(TopicPartition(world.topic, partition), 30) == (start, end)
        read_from(world, client, partition, rows, start)
        for _ in range(3):
            if rows:
                at = chance.randint(start, rows[-1].offset)
                after = [row for row in rows if row.offset >= at]
                read_from(world, client, partition, after[: chance.choice((1, 20))], at)
                time_is_found(world, client, partition, rows, chance.choice(rows).timestamp_ms)
        time_is_found(world, client, partition, rows, random_time(chance))
    client.close()


def time_is_found(
    world: World, client: Consumer, partition: int, rows: Sequence[Row], timestamp_ms: int
) -> None:
    if timestamp_ms < 0:
        return  # it would name a special offset
    [found] = client.offsets_for_times([TopicPartition(world.topic, partition, timestamp_ms)], 30)
    assert found.error is None, found.error
    first = next((row.offset for row in rows if row.timestamp_ms >= timestamp_ms), -1)
    assert found.offset == first, f"time {timestamp_ms} of partition {partition}"


def rows_of(table: pa.Table) -> dict[int, list[Row]]:
    """By partition, in the order of offsets."""
    found: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
    times = table.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    columns = ("partition", "offset", "timestamp_type", "key", "value", "headers")
    lists = [table.column(name).to_pylist() for name in columns]
    for timestamp, partition, offset, kind, key, value, headers in zip(times, *lists, strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        timestamp_ms = NO_TIMESTAMP_MS if timestamp is None else timestamp
        found[partition].append(Row(offset, timestamp_ms, kind, key, value, pairs))
    return {partition: sorted(rows, key=lambda row: row.offset) for partition, rows in found.items()}


def compare(world: World, partition: int, start: int, found: Sequence[Row], end: int) -> None:
    """All records of `[start, end)` are there. Below the log start are those that TTL has not taken yet."""
    wanted = [row for row in world.rows(partition) if row.offset < end]
    kept = [row for row in wanted if row.offset >= start]
    assert [row for row in found if row.offset >= start] == kept, f"partition {partition} from {start}"
    below = {row.offset for row in found if row.offset < start}
    assert [row for row in found if row.offset < start] == [row for row in wanted if row.offset in below]


def source_reads(world: World, starts: Mapping[int, int]) -> None:
    """Spark's data source, which reads raw and Parquet alike; without Spark's own part."""
    source = DefaultSource(dict(world.source))
    schema = StructType.fromDDL(source.schema())
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    assert isinstance(reader, Reader)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    found = rows_of(pa.Table.from_batches(batches)) if batches else {}
    for partition, start in starts.items():
        compare(world, partition, start, found.get(partition, []), len(world.written[partition]))


async def the_table_reads(world: World, starts: Mapping[int, int]) -> None:
    table = await iceberg_table(world.settings, world.topic)
    found = rows_of(table)
    if "n" in table.column_names:
        values = table.column("value").to_pylist()
        numbers = [json.loads(value)["n"] if value and value[:5] == b'{"n":' else None for value in values]
        assert table.column("n").to_pylist() == numbers
    compacted = await world.sequencer.database.run(
        "SELECT partition, compacted_to FROM history_partitions WHERE topic_id = %(topic_id)s",
        topic_id=world.topic_id,
    )
    ends = {row.partition: row.compacted_to for row in compacted}
    for partition, start in starts.items():
        compare(world, partition, start, found[partition], ends.get(partition, 0))


@dataclass
class SteadyReader:
    """A consumer that reads all the time, from random offsets. It compares with what was written."""

    world: World
    read_count: int = 0
    fault: str | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        chance = random.Random(self.world.chance.random())
        client = consumer(self.world.agent, "read_committed")
        while not self._stopping.wait(0.02) and self.fault is None:
            partition = chance.randrange(PARTITIONS)
            rows = list(self.world.written[partition])
            if rows:
                self._read(client, partition, rows, chance.randrange(len(rows)))
        client.close()

    def _read(self, client: Consumer, partition: int, rows: Sequence[Row], start: int) -> None:
        client.assign([TopicPartition(self.world.topic, partition, start)])
        at, until = start, time.monotonic() + _POLL_S
        while self._is_left(partition, at, len(rows)) and not self._stopping.is_set():
            if time.monotonic() > until:
                self.fault = f"nothing at {at} of partition {partition}"
                return
            for message in client.consume(200, timeout=0.2):
                error = message.error()
                if error is not None:
                    # The start was deleted, which this reader does not know.
                    if error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                        self.fault = f"partition {partition} at {at}: {error}"
                    return
                row = row_of(message)
                while at < row.offset and (partition, at) in self.world.removed:
                    at += 1
                if row.offset >= len(rows):
                    return
                if row.offset != at or row != rows[at]:
                    self.fault = f"partition {partition} at {at}: read {row}, wrote {rows[at]}"
                    return
                at += 1
                self.read_count += 1

    def _is_left(self, partition: int, at: int, end: int) -> bool:
        """True if a record of these offsets is there for good."""
        return any((partition, offset) not in self.world.removed for offset in range(at, end))

    def stop(self) -> None:
        self._stopping.set()


@contextmanager
def reading_all_the_time(world: World) -> Iterator[SteadyReader]:
    reader = SteadyReader(world)
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        reader.stop()
        thread.join(60)


async def everyone_reads(world: World, agent: Running | None = None) -> None:
    starts = await world.log_starts()
    await asyncio.to_thread(consumers_read, world, starts, agent or world.agent)
    await asyncio.to_thread(source_reads, world, starts)
    if world.has_table:
        await the_table_reads(world, starts)


# --- the test


@pytest.mark.parametrize("number", range(SEEDS))
async def test_all_readers_read_what_was_written_after_every_transformation(
    number: int,
    settings: CompactionSettings,
    sequencer: Sequencer,
    store: ObjectStore,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    chosen = seeds(SEEDS)
    if number >= len(chosen):
        pytest.skip("TIDELOG_TEST_SEEDS asks for fewer")
    started = partial(running, database_url, store_url, store_settings=store_settings)
    for seed in chosen[number::SEEDS]:
        chance = random.Random(seed)
        form = chance.choice(("", "json"))
        config = {"retention.ms": "-1", "tidelog.value.format": form}
        topic = await sequencer.topics.create(TOPIC, PARTITIONS, config)
        async with started() as agent:
            world = World(
                chance=chance,
                sequencer=sequencer,
                store=store,
                settings=settings,
                source=source_options(TOPIC, agent, store_url, store_settings),
                agent=agent,
                topic_id=topic.topic_id,
            )
            await _go_through(world, seed)
        async with started() as fresh:  # whose caches are empty
            world.source = source_options(TOPIC, fresh, store_url, store_settings)
            await everyone_reads(world, fresh)
        await sequencer.topics.delete(TOPIC)


async def _go_through(world: World, seed: int) -> None:
    beginning: list[Transformation] = [write, change_policy, compact, drop_raw_runs]
    others = world.chance.choices(list(TRANSFORMATIONS), list(TRANSFORMATIONS.values()), k=STEPS)
    done: list[str] = []
    with reading_all_the_time(world) as steady:
        for step in (*beginning, *others):
            done.append(step.__name__)
            print(f"seed {seed}: {done[-1]}", flush=True)
            try:
                await step(world)
                await everyone_reads(world)
                assert steady.fault is None, steady.fault
            except BaseException as error:
                error.add_note(f"seed {seed}, after {done}")
                raise
    assert steady.read_count > 0


def source_options(
    topic: str, agent: Running, store_url: str, store_settings: StoreSettings
) -> dict[str, str]:
    assert store_settings.s3_access_key is not None
    assert store_settings.s3_secret_key is not None
    return {
        "topic": topic,
        "servers": f"http://127.0.0.1:{agent.app.http_port}",
        "storeUrl": store_url,
        "s3AccessKey": store_settings.s3_access_key,
        "s3SecretKey": store_settings.s3_secret_key.get_secret_value(),
    }
