"""Kafka consumers that read a topic from its Parquet files, and the same topic from uploaded objects:
`python -m benchmarks.history_reads`. It starts its own Postgres and MinIO.

The records are like a service's events, in zstd batches as clients send them. A cold agent serves
one librdkafka consumer that reads all of it, round by round. Then Spark compacts the topic, its raw runs are
dropped, and cold agents serve the same from row groups.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.catch_up import read_all
from benchmarks.endpoints import Endpoint, minio
from benchmarks.figures import Figures
from benchmarks.systems.system import System
from benchmarks.systems.tidelog import tidelog
from compactor.history_log_jobs import LocalRetentionJob
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.commits import SegmentToCommit
from sequencer.settings import SequencerSettings
from spark_compaction.compact import compact_topics
from spark_compaction.settings import CompactionSettings
from storage.arrow.arrow_columns import RECORD_SCHEMA, encode_batch
from storage.batches.batch_validation import BatchLimits, validate_produced
from storage.batches.record_batch import Compression
from storage.identifiers import Partition, new_segment_id
from storage.segments.keys import segment_key
from storage.segments.segment import seal_segment
from storage.segments.segment_batches import PendingBatch, PendingBatches
from storage.stores.open_store import open_store

_TOPIC: Final = "events"
_SEGMENT_BYTES: Final = 8 << 20
_BATCH_BYTES: Final = 256 << 10
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def batch(chance: random.Random, first: int, record_bytes: int) -> tuple[bytes, int]:
    """A batch of events, and its number of events."""
    count = _BATCH_BYTES // record_bytes
    values = []
    for _ in range(first, first + count):
        event = {
            "id": f"{chance.getrandbits(64):016x}",
            "user": chance.randrange(100_000),
            "page": f"/products/{chance.randrange(5_000)}",
            "took_ms": round(chance.expovariate(1 / 80), 2),
            "note": "",
        }
        lacking = record_bytes - len(json.dumps(event))
        event["note"] = " ".join(chance.choice(_WORDS) for _ in range(max(0, lacking) // 7))
        values.append(json.dumps(event).encode())
    columns = {
        "offset": range(count),
        "timestamp": [_BEGAN + timedelta(milliseconds=number) for number in range(first, first + count)],
        "timestamp_type": [0] * count,
        "key": [f"user-{chance.randrange(100_000)}".encode() for _ in range(count)],
        "value": values,
        "headers": [[]] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORD_SCHEMA]
    return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA), Compression.ZSTD), count


_WORDS: Final = [
    "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=6)) for seed in range(500)
]


async def write_log(
    database_url: str,
    endpoint: Endpoint,
    cluster: str,
    log_bytes: int,
    record_bytes: int,
    partitions: int,
    topic: str = _TOPIC,
) -> int:
    """Returns the records written."""
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    store = await open_store(endpoint.store_url, endpoint.settings())
    chance, records, written = random.Random(1), 0, 0
    try:
        created = await sequencer.topics.create(topic, partitions, {"retention.ms": "-1"})
        while written < log_bytes:
            batches: list[PendingBatch] = []
            size = 0
            while size < _SEGMENT_BYTES // 4:  # compressed
                data, count = batch(chance, records, record_bytes)
                partition = Partition(len(batches) % partitions)
                valid = validate_produced(data, BatchLimits())
                batches.append(PendingBatch(topic_id=created.topic_id, partition=partition, batch=valid))
                records, size, written = records + count, size + len(data), written + _BATCH_BYTES
            segment_id = new_segment_id()
            key = segment_key(cluster, segment_id)
            await sequencer.reservations.reserve({segment_id: key}, 900.0, "benchmark")
            sealed = seal_segment(segment_id, "benchmark", PendingBatches.of(batches))
            await store.put(key, sealed.chunks)
            await sequencer.commits.commit(
                [SegmentToCommit(segment_id=segment_id, size_bytes=sealed.size_bytes, batches=sealed.placed)]
            )
        return records
    finally:
        await store.close()
        await sequencer.close()


async def let_parquet_be_the_log(database_url: str) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        wanted = {"tidelog.history": "log", "local.retention.ms": "0"}
        await sequencer.topics.alter_config(_TOPIC, wanted)
        job, progress = LocalRetentionJob(sequencer, HousekeeperSettings()), None
        while True:
            step = await job.step(progress)
            if not step.more:
                return
            progress = step.progress
    finally:
        await sequencer.close()


@contextmanager
def _agent(directory: Path, endpoint: Endpoint, cluster: str) -> Iterator[System]:
    environment = {"TIDELOG_MERGE_TIERS": "0", "TIDELOG_CLUSTER": cluster}
    with tidelog(directory, endpoint, environment=environment) as system:
        yield system


def main() -> None:
    given = _arguments()
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        endpoint = opened.enter_context(minio(directory / "store"))
        cluster = f"reads-{uuid4().hex}"
        done: dict[str, list[Figures]] = {"uploaded objects": [], "Parquet": []}
        with _agent(directory / "stack", endpoint, cluster) as system:
            assert system.database_url is not None
            records = asyncio.run(
                write_log(
                    system.database_url,
                    endpoint,
                    cluster,
                    given.megabytes * 1_000_000,
                    given.record_bytes,
                    given.partitions,
                )
            )
        for _ in range(given.rounds):
            with _agent(directory / "stack", endpoint, cluster) as system:
                done["uploaded objects"].append(read_all(system, _TOPIC, given.partitions, records))
        with _agent(directory / "stack", endpoint, cluster) as system:
            assert system.database_url is not None
            settings = CompactionSettings(
                **endpoint.settings().model_dump(),
                database_url=system.database_url,
                store_url=endpoint.store_url,
                cluster=cluster,
            )
            began_s = time.monotonic()
            compact_topics(settings, [_TOPIC])
            compacted_s = time.monotonic() - began_s
            asyncio.run(let_parquet_be_the_log(system.database_url))
        for _ in range(given.rounds):
            with _agent(directory / "stack", endpoint, cluster) as system:
                done["Parquet"].append(read_all(system, _TOPIC, given.partitions, records))
        _print(done, compacted_s)


def _print(done: Mapping[str, Sequence[Figures]], compacted_s: float) -> None:
    table = Table("read from", "MB/s", "each round, s", "agent, CPU s/GB", "client, CPU s/GB", "GETs")
    for name, rounds in done.items():
        middle = {figure: statistics.median(one[figure] for one in rounds) for figure in rounds[0]}
        gb = middle["size_mb"] / 1e3
        table.add_row(
            name,
            f"{middle['mb_per_s']:.0f}",
            ", ".join(f"{one['seconds']:.1f}" for one in rounds),
            f"{middle['agent_cpu_s'] / gb:.2f}",
            f"{middle['client_cpu_s'] / gb:.2f}",
            f"{middle['gets']:.0f}",
        )
    Console().print(table)
    print(f"compaction, with Spark's start: {compacted_s:.1f} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_reads", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000, help="of records, before compression")
    parser.add_argument("--record-bytes", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
