"""Kafka Streams, compared with Kafka: `python -m benchmarks.streams`. Tidelog runs with MinIO, Kafka with its
local disk.

An application of two threads (WordCount.java) counts the words of sentences that are there before it starts.
They go through a repartition topic into a store in memory, which has a changelog. It runs with
at_least_once and with exactly_once_v2. It commits every 100 ms in both cases, otherwise with the defaults of
Streams. The rate is that of the words that a reader of committed data sees counted, after the first fifth.
"""

import argparse
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import confluent_kafka
from rich.console import Console
from rich.table import Table

from benchmarks.endpoints import minio
from benchmarks.systems.kafka import kafka
from benchmarks.systems.system import System
from benchmarks.systems.tidelog import tidelog
from tests.support import java
from tests.support.child import child

_GUARANTEES: Final = ("at_least_once", "exactly_once_v2")
_PARTITIONS: Final = 6
_WORDS: Final = 10_000
_WORDS_PER_SENTENCE: Final = 10
_UNMEASURED: Final = 0.2
_TIMEOUT_S: Final = 600.0
_SERDE: Final = "org.apache.kafka.common.serialization.Serdes$StringSerde"
_IN_MEMORY: Final = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
_MODULES: Final = Path(java.__file__).with_name("kafka_streams.xml")
_SOURCE: Final = Path(__file__).with_name("WordCount.java")


def words_per_s(system: System, guarantee: str, sentences: int, classpath: str, folder: Path) -> float:
    source, counts = system.create_topic(_PARTITIONS), system.create_topic(_PARTITIONS)
    servers = f"{system.target.host}:{system.target.port}"
    _write(servers, source, sentences)
    settings = {
        "application.id": f"{source}-count",
        "bootstrap.servers": servers,
        "processing.guarantee": guarantee,
        "num.stream.threads": 2,
        "commit.interval.ms": 100,  # with at_least_once it would be 30 s, and counts are sent when it commits
        "state.dir": folder / f"{source}-state",
        "default.key.serde": _SERDE,
        "default.value.serde": _SERDE,
        # RocksDB's jar has 70 MB.
        "dsl.store.suppliers.class": _IN_MEMORY,
    }
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", classpath, "WordCount", source, counts]
    command += [f"{name}={value}" for name, value in settings.items()]
    with child(command, folder / f"{source}.log", {}):
        return _rate_of_counts(servers, counts, sentences * _WORDS_PER_SENTENCE)


def _write(servers: str, topic: str, sentences: int) -> None:
    chance = random.Random(1)
    words = [f"word{number}" for number in range(_WORDS)]
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 50})
    for number in range(sentences):
        sentence = " ".join(chance.choices(words, k=_WORDS_PER_SENTENCE))
        while True:
            try:
                producer.produce(topic, sentence.encode(), partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(_TIMEOUT_S):
        raise RuntimeError("sentences were not acknowledged")


def _rate_of_counts(servers: str, topic: str, words: int) -> float:
    """Words per second, from when `_UNMEASURED` of them are counted until all are."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(_PARTITIONS)])
    last: dict[bytes, int] = {}
    counted = first = 0
    first_s, until_s = 0.0, time.monotonic() + _TIMEOUT_S
    while counted < words:
        if time.monotonic() > until_s:
            raise RuntimeError(f"{counted} of {words} words were counted in {_TIMEOUT_S} s")
        for message in consumer.consume(10_000, 0.05):
            key, value = message.key(), message.value()
            if message.error() is None and isinstance(key, bytes) and isinstance(value, bytes):
                counted += int(value) - last.get(key, 0)
                last[key] = int(value)
        if not first and counted >= words * _UNMEASURED:
            first, first_s = counted, time.monotonic()
    consumer.close()
    if counted > words:
        raise RuntimeError(f"{counted} words were counted, and {words} were written")
    return (words - first) / (time.monotonic() - first_s)


def _compiled(folder: Path) -> str:
    """The class path of WordCount."""
    classpath = java.classpath_of(java.jars_of(_MODULES))
    subprocess.run(
        ["javac", "-cp", classpath, "-d", str(folder), str(_SOURCE)], check=True, timeout=_TIMEOUT_S
    )
    return f"{classpath}:{folder}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--sentences", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3, help="The median is shown.")
    given = parser.parse_args(arguments)
    table = Table(title="Words counted per second", title_justify="left")
    for name in ("system", *_GUARANTEES, "ratio"):
        table.add_column(name, justify="left" if name == "system" else "right")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        classpath = _compiled(folder / "classes")
        endpoint = opened.enter_context(minio(folder / "minio"))
        systems = [
            opened.enter_context(tidelog(folder / "tidelog", endpoint)),
            opened.enter_context(kafka(folder / "kafka")),
        ]
        for system in systems:
            rounds = [
                [words_per_s(system, each, given.sentences, classpath, folder) for each in _GUARANTEES]
                for _ in range(given.rounds)
            ]
            rates = [statistics.median(column) for column in zip(*rounds, strict=True)]
            ratio = statistics.median(exactly / at_least for at_least, exactly in rounds)
            table.add_row(system.name, *(f"{rate:,.0f}" for rate in rates), f"{ratio:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
