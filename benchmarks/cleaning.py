"""Log compaction, compared with Kafka's log cleaner: `python -m benchmarks.cleaning`.

A topic of one partition gets updates of a million keys, with the cleaning held back by
`min.cleanable.dirty.ratio=1`. Then the ratio is lowered. Measured are the seconds and the CPU of the system's
processes until the log is clean, and meanwhile the time from produce to consume of another topic, which
is measured before as well. Tidelog runs with MinIO, whose CPU is left out; Kafka with its local disk. Both
have their defaults, except for how often they look for work: every half second. Kafka's active segment is
rolled first.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
import confluent_kafka.admin
from rich.console import Console
from rich.table import Table

from benchmarks.endpoints import minio
from benchmarks.systems.meters import cpu_s, scrape, total
from benchmarks.systems.tidelog import tidelog
from tests.support.apache_kafka import apache_kafka

_HELD_BACK: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
_DUE: Final = "0.01"
_PATIENCE_S: Final = 300.0
_TAIL_S: Final = 10.0
_TAIL_RECORDS_S: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A running system. `is_clean`: whether it has cleaned the topic."""

    name: str
    bootstrap: str
    pids: tuple[int, ...]
    config: dict[str, str]
    is_clean: Callable[[], bool]

    def cpu_s(self) -> float:
        return sum(map(cpu_s, self.pids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    seconds: float
    cpu_s: float
    left: int
    quiet_ms: list[float]
    busy_ms: list[float]


@contextmanager
def _tidelog(directory: Path) -> Iterator[Subject]:
    environment = {"TIDELOG_CLEAN_INTERVAL_S": "0.5"}
    with (
        minio(directory / "minio") as endpoint,
        tidelog(directory / "stack", endpoint, environment=environment) as system,
    ):
        assert system.stack is not None
        [http_url] = system.stack.addresses.http_urls
        pids = system.meters.pids
        yield Subject(
            name="tidelog",
            bootstrap=system.stack.addresses.bootstrap,
            pids=(pids["a"], pids["postgres"]),
            config=_HELD_BACK,
            is_clean=lambda: total(scrape(f"{http_url}/metrics"), "tidelog_cleanings_total") >= 1,
        )


@contextmanager
def _kafka(directory: Path) -> Iterator[Subject]:
    settings = {"log.cleaner.backoff.ms": "500", "log.initial.task.delay.ms": "500"}
    checkpoint = directory / "data" / "cleaner-offset-checkpoint"

    def is_clean() -> bool:
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        return any(line.startswith("cleaned ") for line in lines)

    with apache_kafka(directory, settings) as broker:
        yield Subject(
            name="kafka",
            bootstrap=broker.bootstrap,
            pids=(broker.pid,),
            config={**_HELD_BACK, "segment.bytes": str(64 << 20)},
            is_clean=is_clean,
        )


def measure(subject: Subject, records: int, keys: int, value_bytes: int) -> Result:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": subject.bootstrap})
    for name, config in (("cleaned", subject.config), ("tail", {})):
        topic = confluent_kafka.admin.NewTopic(name, 1, 1, config=config)
        admin.create_topics([topic])[name].result(60)
    _write(subject, records, keys, value_bytes)
    with _tail(subject.bootstrap) as quiet:
        time.sleep(_TAIL_S)
    with _tail(subject.bootstrap) as busy:
        began_s, began_cpu_s = time.monotonic(), subject.cpu_s()
        _configure(admin, "min.cleanable.dirty.ratio", _DUE)
        while not subject.is_clean():
            assert time.monotonic() - began_s < _PATIENCE_S, "it is not clean in time"
            time.sleep(0.1)
        seconds, cpu = time.monotonic() - began_s, subject.cpu_s() - began_cpu_s
    return Result(
        name=subject.name,
        seconds=seconds,
        cpu_s=cpu - seconds * _idle_cpu(subject),
        left=_count(subject),
        quiet_ms=quiet,
        busy_ms=busy,
    )


def _idle_cpu(subject: Subject) -> float:
    """CPU seconds per second of the system with the tail alone."""
    with _tail(subject.bootstrap):
        began_s, began_cpu_s = time.monotonic(), subject.cpu_s()
        time.sleep(_TAIL_S)
        return (subject.cpu_s() - began_cpu_s) / (time.monotonic() - began_s)


def _configure(admin: confluent_kafka.admin.AdminClient, name: str, value: str) -> None:
    entry = confluent_kafka.admin.ConfigEntry(
        name, value, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    kind = confluent_kafka.admin.ResourceType.TOPIC
    resource = confluent_kafka.admin.ConfigResource(kind, "cleaned", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def _write(subject: Subject, records: int, keys: int, value_bytes: int) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": subject.bootstrap,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(500)]
    values = [" ".join(chance.choices(words, k=value_bytes // 7)).encode() for _ in range(2000)]
    for number in range(records):
        key = b"user-%d" % (number if number < keys else chance.randrange(keys))
        while True:
            try:
                producer.produce("cleaned", key=key, value=values[number % len(values)])
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0
    if subject.name == "kafka":  # ends the active segment, which is never cleaned
        producer.produce("cleaned", key=b"the last", value=bytes(1 << 19), timestamp=int(time.time() * 1000))
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": subject.bootstrap})
        _configure(admin, "segment.ms", "100")
        producer.flush(60)
        time.sleep(1.0)
        producer.produce("cleaned", key=b"the last", value=b"")
        assert producer.flush(60) == 0


@contextmanager
def _tail(bootstrap: str) -> Iterator[list[float]]:
    """Produces to another topic, and collects the milliseconds until a consumer has each record."""
    found: list[float] = []
    stop = threading.Event()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "tail", "fetch.wait.max.ms": 100}
    )
    end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("tail", 0), 30)[1]
    consumer.assign([confluent_kafka.TopicPartition("tail", 0, end)])

    def read() -> None:
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append((time.monotonic() - float(message.value() or b"0")) * 1000)

    def write() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        while not stop.wait(1 / _TAIL_RECORDS_S):
            producer.produce("tail", value=b"%f" % time.monotonic())
            producer.poll(0)
        producer.flush(30)

    threads = [threading.Thread(target=each) for each in (read, write)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        consumer.close()


def _count(subject: Subject) -> int:
    """The records that are left."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": subject.bootstrap, "group.id": "count", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition("cleaned", 0, 0)])
    count = 0
    while True:
        for message in consumer.consume(10_000, timeout=30):
            if message.error() is not None:
                consumer.close()
                return count
            count += 1


def show(results: list[Result], records: int, keys: int, log_mb: float) -> Table:
    title = f"{records:,} records of {keys:,} keys, {log_mb:.0f} MB before compression"
    table = Table(title=title, title_justify="left")
    for name in (
        *("", "s", "CPU s", "MB/s", "MB/CPU s", "records/CPU s", "records left"),
        *("tail p50, ms", "tail p99, ms", "while cleaning p50", "p99"),
    ):
        table.add_column(name, justify="left" if not name else "right")
    for each in results:
        table.add_row(
            each.name,
            f"{each.seconds:.1f}",
            f"{each.cpu_s:.1f}",
            f"{log_mb / each.seconds:.0f}",
            f"{log_mb / each.cpu_s:.0f}",
            f"{records / each.cpu_s:,.0f}",
            f"{each.left:,}",
            *(f"{_share(each.quiet_ms, share):.0f}" for share in (0.5, 0.99)),
            *(f"{_share(each.busy_ms, share):.0f}" for share in (0.5, 0.99)),
        )
    return table


def _share(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100)[round(share * 100) - 1] if len(values) > 1 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning", description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    given = parser.parse_args()
    results = []
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        for system in (_tidelog, _kafka):
            with system(directory / system.__name__) as subject:
                results.append(measure(subject, given.records, given.keys, given.value_bytes))
    log_mb = given.records * (given.value_bytes + 10) / 1e6
    Console(width=150).print(show(results, given.records, given.keys, log_mb))


if __name__ == "__main__":
    main()
