"""Compaction of a topic, beside Spark's own Kafka source that writes Parquet from the same log:
`python -m benchmarks.compaction`.

One agent, its Postgres, and MinIO where `make bench-setup` has built it, else the development stack's S3
endpoint. Records like a service's events, in batches that zstd compressed. Everything shares the machine.

- Stages: the runs of one topic are read, decoded, written and read back in this process, on one core, without
  Spark. A row group needs no sort: a run has its records in the order of their offsets.
- Jobs: rounds take turns, `tidelog compact` of a topic and Spark's Kafka source of the same topic, in one
  Spark. The source writes zstd Parquet into a local folder, with its option `max.poll.records` raised, which
  suits it. CPU is that of Spark with its Python workers, and of the agent; the store's is left out.
- Fresh: from the produce of a record until Spark SQL returns it, with the service at work.

MB are 10^6 bytes of the log as it is stored, in brackets of the records before compression.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import confluent_kafka
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.endpoints import Endpoint, NoEndpoint, minio, minio_binary
from benchmarks.history_reads import write_log
from benchmarks.systems.tidelog import tidelog
from sequencer.client import Sequencer
from sequencer.history.history_values import Begun, RunToCompact
from sequencer.settings import SequencerSettings
from spark_compaction.bucket import BucketAddress
from spark_compaction.compact import compact_topics
from spark_compaction.history_file import FRESH_ZSTD_LEVEL, HistoryFile, RecordDigest, record_batches
from spark_compaction.service import run_service
from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from spark_compaction.tasks import DecodedRows, decode_run
from storage.arrow.aborted_batches import columns_of
from storage.identifiers import ObjectKey, TopicId
from tests.support.spark_kafka import add_kafka_source
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

_STAGES: Final = ("read the log", "decode", "write Parquet", "read back and compare", "put")
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A stack at work, and where it is."""

    stack: Stack
    endpoint: Endpoint
    settings: CompactionSettings


@contextmanager
def running(directory: Path) -> Iterator[Log]:
    cluster = f"compaction-{uuid4().hex}"
    environment = {"TIDELOG_MERGE_TIERS": "0", "TIDELOG_CLUSTER": cluster}
    with ExitStack() as opened:
        try:
            minio_binary()
        except NoEndpoint:
            own = StackSettings(
                environment=Environment.of_process(),
                data_dir=directory / "stack",
                agents=1,
                zones=("a",),
                agent_environment=environment,
            )
            stack = opened.enter_context(Stack(own))
            keys = stack.addresses.s3_access_key, stack.addresses.s3_secret_key
            assert keys[0] is not None
            assert keys[1] is not None
            endpoint = Endpoint(
                name="rclone",
                store_url=stack.addresses.store_url,
                access_key=keys[0],
                secret_key=keys[1],
                pid=0,
            )
        else:
            endpoint = opened.enter_context(minio(directory / "store"))
            system = opened.enter_context(tidelog(directory / "stack", endpoint, environment=environment))
            assert system.stack is not None
            stack = system.stack
        settings = CompactionSettings(
            **endpoint.settings().model_dump(),
            database_url=stack.addresses.database_url,
            store_url=endpoint.store_url,
            http_url=stack.addresses.http_urls[0],
            cluster=cluster,
        )
        yield Log(stack=stack, endpoint=endpoint, settings=settings)


# --- stages


@dataclass(slots=True)
class Stages:
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STAGES, 0.0))
    raw_bytes: int = 0
    plain_bytes: int = 0
    parquet_bytes: int = 0
    records: int = 0

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - began_s


class _Nowhere:
    """Takes the bytes, so that writing is measured without the store."""

    def __init__(self) -> None:
        self.data = b""

    def put(self, _: ObjectKey, data: memoryview) -> None:
        self.data = bytes(data)


async def planned(log: Log, topic: str) -> tuple[TopicId, tuple[RunToCompact, ...]]:
    """The topic's runs, of a job that is given up at once."""
    sequencer = await Sequencer.open(log.settings.database_url, SequencerSettings())
    try:
        topic_id = (await sequencer.topics.by_name([topic]))[topic].topic_id
        begun = await sequencer.history.begin_compaction(
            topic_id,
            await sequencer.history.ends(topic_id),
            cluster=log.settings.cluster,
            lease_s=60.0,
            runs_per_partition=100_000,
        )
        assert isinstance(begun, Begun)
        await sequencer.history.abandon(begun.job.job_id)
        return topic_id, tuple(begun.runs)
    finally:
        await sequencer.close()


def measure_stages(log: Log, topic: str) -> Stages:
    """A file per partition; one core."""
    topic_id, runs = asyncio.run(planned(log, topic))
    none = columns_of(())
    bucket = BucketAddress.of(log.settings.store_url, log.settings).open()
    done = Stages()
    for partition in sorted({run.partition for run in runs}):
        nowhere = _Nowhere()
        file = HistoryFile(
            nowhere,  # type: ignore[arg-type]
            "benchmark/",
            topic_id,
            partition,
            row_group_bytes=log.settings.parquet_row_group_bytes,
            zstd_level=FRESH_ZSTD_LEVEL,
        )
        for run in (run for run in runs if run.partition == partition):
            with done.timed("read the log"):
                data = bucket.get(run.object_key, run.position, run.position + run.length)
            with done.timed("decode"):
                decoded = list(decode_run(run, data, lambda start, end: data[start:end], none))  # noqa: B023
            done.raw_bytes += run.length
            for rows in decoded:
                assert isinstance(rows, DecodedRows)
                done.records += rows.rows.num_rows
                done.plain_bytes += rows.rows.nbytes
                with done.timed("write Parquet"):
                    file.add(rows.rows)
        began_s = time.perf_counter()
        file.close()
        closing_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        again = RecordDigest()
        for batch in record_batches(pq.ParquetFile(pa.BufferReader(nowhere.data)), partition):
            again.add(batch)
        compared_s = time.perf_counter() - began_s  # `close` has done the same
        done.seconds["read back and compare"] += compared_s
        done.seconds["write Parquet"] += max(0.0, closing_s - compared_s)
        with done.timed("put"):
            bucket.put(ObjectKey(f"{log.settings.cluster}/benchmark/{uuid4().hex}"), nowhere.data)
        done.parquet_bytes += len(nowhere.data)
    return done


def show_stages(done: Stages) -> Table:
    table = Table(title=f"Stages on one core, {done.records:,} records, {done.raw_bytes / 1e6:.0f} MB of log")
    for name in ("stage", "s", "share", "MB/s of log", "MB/s of records", "records/s"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    total_s = sum(done.seconds.values())
    for stage, seconds in (*done.seconds.items(), ("all", total_s)):
        table.add_row(
            stage,
            f"{seconds:.2f}",
            f"{seconds / total_s:.0%}",
            f"{done.raw_bytes / seconds / 1e6:.0f}",
            f"{done.plain_bytes / seconds / 1e6:.0f}",
            f"{done.records / seconds:,.0f}",
        )
    table.caption = f"Parquet has {done.parquet_bytes / done.raw_bytes:.2f} of the log's bytes"
    return table


# --- jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    seconds: float
    spark_cpu_s: float
    agent_cpu_s: float
    written_bytes: int


def _cpu_s(processes: Iterable[psutil.Process]) -> float:
    """With their children that have ended."""
    total = 0.0
    for each in processes:
        try:
            total += sum(each.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def _spark() -> Iterator[psutil.Process]:
    """This process, Spark's JVM, and Spark's Python workers."""
    here = psutil.Process()
    yield here
    for child in here.children():
        if "java" in child.name():
            yield child
            yield from child.children(recursive=True)


def measured(log: Log, work: Callable[[], int]) -> Job:
    agent = psutil.Process(log.stack.agents[0].pid)
    began_s, spark_s, agent_s = time.perf_counter(), _cpu_s(_spark()), _cpu_s([agent])
    written = work()
    return Job(
        seconds=time.perf_counter() - began_s,
        spark_cpu_s=_cpu_s(_spark()) - spark_s,
        agent_cpu_s=_cpu_s([agent]) - agent_s,
        written_bytes=written,
    )


def by_kafka_source(session: SparkSession, log: Log, topic: str, folder: Path) -> int:
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", log.stack.addresses.bootstrap)
    rows = reader.options(**{"kafka.max.poll.records": "10000"}).options(
        subscribe=topic, startingOffsets="earliest", includeHeaders="true"
    )
    target = folder / uuid4().hex
    columns = ("partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
    rows.load().select(*columns).write.option("compression", "zstd").parquet(target.as_uri())
    return sum(file.stat().st_size for file in target.glob("*.parquet"))


def show_jobs(jobs: Mapping[str, list[Job]], records: int, raw_bytes: int) -> Table:
    rounds = len(next(iter(jobs.values())))
    table = Table(title=f"Jobs of {records:,} records, {raw_bytes / 1e6:.0f} MB, median of {rounds}")
    names = ("by", "s", "each, s", "CPU s", "agent, CPU s", "records/CPU s", "MB/CPU s", "Parquet / log")
    for name in names:
        table.add_column(name, justify="left" if name == "by" else "right")
    for name, done in jobs.items():
        seconds = statistics.median(job.seconds for job in done)
        cpu_s = statistics.median(job.spark_cpu_s for job in done)
        agent_cpu_s = statistics.median(job.agent_cpu_s for job in done)
        table.add_row(
            name,
            f"{seconds:.1f}",
            ", ".join(f"{job.seconds:.1f}" for job in done),
            f"{cpu_s:.1f}",
            f"{agent_cpu_s:.1f}",
            f"{records / (cpu_s + agent_cpu_s):,.0f}",
            f"{raw_bytes / (cpu_s + agent_cpu_s) / 1e6:.1f}",
            f"{done[-1].written_bytes / raw_bytes:.2f}",
        )
    return table


# --- fresh


async def time_to_sql(log: Log, samples: int) -> list[float]:
    """Seconds from each produce until Spark SQL has the record, while the service works."""
    topic = "fresh"
    quick = log.settings.model_copy(update={"history_poll_s": 0.2})
    sequencer = await Sequencer.open(log.settings.database_url, SequencerSettings())
    config = {"retention.ms": "-1", "tidelog.history.freshness.ms": "1"}
    await sequencer.topics.create(topic, 1, config)
    await sequencer.close()
    stop = asyncio.Event()
    service = asyncio.create_task(run_service(quick, CollectorRegistry(), stop))
    try:
        producer = confluent_kafka.Producer({"bootstrap.servers": log.stack.addresses.bootstrap})
        found = []
        for number in range(samples + 1):
            began_s = time.perf_counter()
            await asyncio.to_thread(_send, producer, topic, str(number))
            await asyncio.wait_for(_in_sql(log, topic, number + 1), _PATIENCE_S)
            found.append(time.perf_counter() - began_s)
        return found[1:]  # the first makes the table, and Spark loads its classes
    finally:
        stop.set()
        await service


def _send(producer: confluent_kafka.Producer, topic: str, value: str) -> None:
    producer.produce(topic, value=value)
    assert producer.flush(60) == 0


async def _in_sql(log: Log, topic: str, count: int) -> None:
    sequencer = await Sequencer.open(log.settings.database_url, SequencerSettings())
    try:
        while await sequencer.history.table(topic) is None:  # noqa: ASYNC110 - a publish sets no event here
            await asyncio.sleep(0.05)
    finally:
        await sequencer.close()
    while True:
        answer = await asyncio.to_thread(query, log.settings, f"SELECT count(*) FROM topics.{topic}")
        if answer.rows == ((count,),):
            return
        await asyncio.sleep(0.05)


def _run(log: Log, given: argparse.Namespace, directory: Path) -> list[Table]:
    topics = [f"events-{number}" for number in range(given.rounds + 1)]  # the first does not count
    for topic in topics:
        write = write_log(
            log.settings.database_url,
            log.endpoint,
            log.settings.cluster,
            given.megabytes * 1_000_000,
            given.record_bytes,
            given.partitions,
            topic,
        )
        records = asyncio.run(write)
    stages = measure_stages(log, topics[0])  # compiles, and counts below
    stages = measure_stages(log, topics[0])
    settings = log.settings.model_copy(update={"spark_master": f"local[{given.cores}]"})
    session = spark_session(settings)
    add_kafka_source(session)
    jobs: dict[str, list[Job]] = {"tidelog compact": [], "Spark's Kafka source": []}
    for topic in topics:
        jobs["Spark's Kafka source"].append(
            measured(log, lambda: by_kafka_source(session, log, topic, directory))  # noqa: B023
        )
        jobs["tidelog compact"].append(
            measured(log, lambda: compact_topics(settings, [topic]).parquet_bytes)  # noqa: B023
        )
    counted = {name: done[1:] for name, done in jobs.items()}
    tables = [show_stages(stages), show_jobs(counted, records, stages.raw_bytes)]
    fresh = asyncio.run(time_to_sql(log, given.samples))
    table = Table("from produce to Spark SQL", "s")
    for name, value in (
        ("least", min(fresh)),
        ("median", statistics.median(fresh)),
        ("most", max(fresh)),
    ):
        table.add_row(name, f"{value:.1f}")
    return [*tables, table]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="of records, before compression")
    parser.add_argument("--record-bytes", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2, help="threads of Spark")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5, help="records followed until SQL has them")
    parser.add_argument("--quick", action="store_true", help="20 MB, one round, one sample")
    given = parser.parse_args()
    if given.quick:
        given.megabytes, given.rounds, given.samples = 20, 1, 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        with running(Path(directory)) as log:
            try:
                tables = _run(log, given, Path(directory))
            finally:
                stop_spark()
        store = log.endpoint.name
    console = Console(width=130)
    console.print(f"Store: {store}")
    for table in tables:
        console.print(table)


if __name__ == "__main__":
    main()
