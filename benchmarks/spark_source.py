"""Scans of a topic by Spark, in one run: `python -m benchmarks.spark_source`.

Spark's own Kafka source beside the data source `tidelog`, which reads uploaded segments and Parquet.

A stack of two agents on this machine holds one topic of four partitions. Each scan reads all columns of every
record into Spark's `noop` sink; the last reads offsets alone. The scans take turns, after one round that does
not count, in one Spark session with as many threads as the machine has cores. Everything shares the machine.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import confluent_kafka
import confluent_kafka.admin
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from spark_compaction.compact import compact_topics
from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from tests.support.spark_kafka import add_kafka_source
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

_TOPIC: Final = "scanned"
_PARTITIONS: Final = 4
_MOST_IN_FLIGHT: Final = 100_000


def _fill(bootstrap: str, records: int, record_bytes: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    topic = confluent_kafka.admin.NewTopic(_TOPIC, _PARTITIONS, config={"retention.ms": "-1"})
    admin.create_topics([topic])[_TOPIC].result(60)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 50,
            "batch.size": 1 << 20,
        }
    )
    bits = random.Random(0)
    # Half of a value is random, so that it compresses as logs do.
    values = [bits.randbytes(record_bytes // 4).hex() + "x" * (record_bytes // 2) for _ in range(1000)]
    for number in range(records):
        producer.produce(
            _TOPIC, key=f"key-{number % 10_000}", value=values[number % 1000], partition=number % _PARTITIONS
        )
        if number % _MOST_IN_FLIGHT == _MOST_IN_FLIGHT - 1:
            producer.flush(300)
    assert producer.flush(300) == 0


def _seconds(scan: Callable[[], DataFrame]) -> float:
    start = time.perf_counter()
    scan().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def _rounds(scans: Mapping[str, Callable[[], DataFrame]], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in scans}
    for number in range(rounds + 1):
        for name, scan in scans.items():
            seconds = _seconds(scan)
            if number:
                found[name].append(seconds)
    return found


def _run(stack: Stack, records: int, record_bytes: int, rounds: int) -> Table:
    environment = Environment.of_process().with_variables(stack.addresses.as_environment())
    settings = environment.read(CompactionSettings)
    _fill(stack.addresses.bootstrap, records, record_bytes)
    session = spark_session(settings)
    add_kafka_source(session)
    assert settings.s3_access_key is not None
    assert settings.s3_secret_key is not None
    options = {
        "topic": _TOPIC,
        "servers": settings.http_url,
        "storeUrl": settings.store_url,
        "s3AccessKey": settings.s3_access_key,
        "s3SecretKey": settings.s3_secret_key.get_secret_value(),
    }

    def kafka() -> DataFrame:
        reader = session.read.format("kafka").option("kafka.bootstrap.servers", stack.addresses.bootstrap)
        return reader.options(subscribe=_TOPIC, includeHeaders="true").load()

    def tidelog(**more: str) -> DataFrame:
        return session.read.format("tidelog").options(**{**options, **more}).load()

    assert kafka().count() == tidelog().count() == records
    seconds = _rounds({"Spark's Kafka source": kafka, "tidelog, raw": tidelog}, rounds)
    compact_topics(settings, [_TOPIC])
    assert tidelog().count() == records
    seconds |= _rounds(
        {
            "Spark's Kafka source, after compaction": kafka,
            "tidelog, Parquet": tidelog,
            "tidelog, Parquet, offsets alone": lambda: tidelog(columns="offset"),
        },
        rounds,
    )
    table = Table(title=f"{records:,} records of {record_bytes} bytes, median of {rounds} rounds")
    for name in ("scan", "s", "least", "most", "records/s", "MB/s of values"):
        table.add_column(name, justify="left" if name == "scan" else "right")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        table.add_row(
            name,
            *(f"{value:.2f}" for value in (median, min(taken), max(taken))),
            f"{records / median:,.0f}",
            f"{records * record_bytes / median / 1e6:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_source", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--record-bytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        Stack(
            StackSettings(environment=Environment.of_process(), data_dir=Path(directory) / "stack")
        ) as stack,
    ):
        try:
            table = _run(stack, asked.records, asked.record_bytes, asked.rounds)
        finally:
            stop_spark()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
