"""History on a standalone Spark cluster of two workers: `tidelog history run` by spark-submit, killed all
over while consumers read.

Parquet is the log of the topic, and its raw runs go at once. So consumers that start at an old offset read
what Spark wrote. Some read the tail while others read old records again and again.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import psutil
import pytest

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from tests.faults.conftest import LEASES, create_topic, wait_until_doctor_finds_nothing
from tests.faults.ledger import Contents, Ledger, ReadRecord
from tests.faults.load import Load, LoadSettings, read_message
from tests.support.seeds import seeds
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tidelog.devstack.stack import Stack

PARTITIONS = 4
PATIENCE_S = 300.0
AGENTS = {
    **LEASES,
    "TIDELOG_RESERVATION_LEASE_S": "15",
    "TIDELOG_DOOMING_INTERVAL_S": "1",
    "TIDELOG_RETENTION_INTERVAL_S": "0.5",
    "TIDELOG_OWNERSHIP_RATCHET_S": "3",
}
LOG_TOPIC = {
    "tidelog.history": "log",
    "local.retention.ms": "0",
    "tidelog.history.freshness.ms": "1000",
}
SERVICE = {
    "TIDELOG_JOB_LEASE_S": "6",
    "TIDELOG_HISTORY_POLL_S": "0.5",
    "TIDELOG_COMPACT_TASK_BYTES": "262144",
    "TIDELOG_PARQUET_ROW_GROUP_BYTES": "65536",
    "TIDELOG_PARQUET_FILE_BYTES": "1048576",
}
_READ_AT_ONCE = 500
_BETWEEN_READS_S = 0.2

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(1200)]


@dataclass
class Service:
    """The driver: `tidelog history run` under spark-submit."""

    cluster: SparkCluster
    stack: Stack
    log_file: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        environment = {**self.stack.addresses.as_environment(), **SERVICE}
        self.process = self.cluster.submit(["history", "run"], environment, self.log_file)

    def kill(self) -> None:
        """SIGKILL: the JVM, and the Python that it runs."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        """SIGTERM: as an orchestrator stops it."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class OldReader:
    """Reads from old offsets over and over, and compares with what a consumer at the tail has read there."""

    servers: str
    topic: str
    first: dict[int, list[ReadRecord]]
    seed: int
    read_count: int = 0
    faults: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        chance = random.Random(self.seed)
        client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        while not self._stopping.is_set():
            partition = chance.randrange(PARTITIONS)
            known = len(self.first[partition])
            if known < 2:
                time.sleep(0.05)
                continue
            start = chance.randrange(known)
            client.assign([confluent_kafka.TopicPartition(self.topic, partition, start)])
            self._read(client, partition, start, min(known, start + _READ_AT_ONCE))
            self._stopping.wait(_BETWEEN_READS_S)  # the machine has other work to do
        client.close()

    def _read(self, client: confluent_kafka.Consumer, partition: int, start: int, end: int) -> None:
        at = start
        while at < end and not self._stopping.is_set():
            for message in client.consume(_READ_AT_ONCE, timeout=0.2):
                if message.error() is not None:
                    self.faults.append(f"{partition} at {at}: {message.error()}")
                    return
                read = read_message(message)
                if read.offset >= end:
                    return
                if read.offset != at or read != self.first[partition][at]:
                    self.faults.append(
                        f"{partition} at {at}: read {read}, first it was {self.first[partition][at]}"
                    )
                    return
                at += 1
                self.read_count += 1

    def stop(self) -> None:
        self._stopping.set()


@contextmanager
def reading_old(stack: Stack, load: Load, topic: str, seed: int) -> Iterator[OldReader]:
    reader = OldReader(stack.addresses.bootstrap, topic, load.consumers[0].log, seed)
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        reader.stop()
        thread.join(60)


@contextmanager
def service_at(
    new_stack: Callable[..., Stack], stack_directory: Path
) -> Iterator[tuple[Stack, SparkCluster, Service]]:
    stack = new_stack(agents=2, agent_environment=AGENTS)
    with spark_cluster(stack_directory / "spark") as cluster:
        service = Service(cluster, stack, stack_directory / "driver.log")
        service.start()
        try:
            yield stack, cluster, service
        except BaseException:
            said = service.log_file.read_text(errors="replace").splitlines()
            telling = [line for line in said if "INFO" not in line]
            print(*(line[:500] for line in telling[-60:]), *said[-20:], sep="\n")
            for log_file in sorted(cluster.directory.glob("*.log")):
                print(f"The end of {log_file.name}:", *log_file.read_text().splitlines()[-25:], sep="\n")
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                service.kill()


async def _in_sequencer(stack: Stack, statement: str) -> int:
    sequencer = await Sequencer.open(stack.addresses.database_url, SequencerSettings())
    try:
        [row] = await sequencer.database.run(statement)
        return int(row.found)
    finally:
        await sequencer.close()


def _asked(stack: Stack, statement: str) -> int:
    return asyncio.run(_in_sequencer(stack, statement))


def compacted(stack: Stack) -> int:
    return _asked(stack, "SELECT coalesce(sum(compacted_to), 0) AS found FROM history_partitions")


def raw_records(stack: Stack) -> int:
    """Records that Kafka consumers still get from uploaded objects."""
    return _asked(stack, "SELECT coalesce(sum(last_offset - base_offset + 1), 0) AS found FROM runs")


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.3)


def wait_for_more_history(stack: Stack) -> None:
    before = compacted(stack)
    wait_for(lambda: compacted(stack) > before, f"history does not go on from {before}")


def wait_until_all_is_parquet(stack: Stack, ledger: Ledger) -> None:
    total = sum(ledger.ends().values())
    wait_for(lambda: compacted(stack) >= total, f"{compacted(stack)} of {total} records are in history")
    wait_for(lambda: raw_records(stack) == 0, f"{raw_records(stack)} records are still raw")


def everything_read(stack: Stack, topic: str, ledger: Ledger) -> dict[int, list[ReadRecord]]:
    """All records, by a consumer that starts at the beginning."""
    ends = ledger.ends()
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": stack.addresses.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    client.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in ends])
    log: dict[int, list[ReadRecord]] = {partition: [] for partition in ends}
    until = time.monotonic() + PATIENCE_S
    while any(len(log[partition]) < end for partition, end in ends.items()):
        assert time.monotonic() < until, f"read { ({p: len(r) for p, r in log.items()}) } of {ends}"
        for message in client.consume(500, timeout=0.5):
            assert message.error() is None, message.error()
            read = read_message(message)
            log[read.partition].append(read)
    client.close()
    return log


def texts_of(process: psutil.Process) -> str:
    """All that a process was started with."""
    return "\n".join([*process.cmdline(), *(f"{name}={value}" for name, value in process.environ().items())])


def test_executors_compact_with_nothing_but_the_bucket(
    new_stack: Callable[..., Stack], stack_directory: Path
) -> None:
    with service_at(new_stack, stack_directory) as (stack, cluster, service):
        topic = create_topic(stack.addresses.bootstrap, PARTITIONS, LOG_TOPIC)
        ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
        settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=50.0)
        started: dict[int, str] = {}
        with Load(settings, ledger) as load:
            load.wait_for_acknowledgements(100, 60.0)
            wait_for_more_history(stack)
            for executor in cluster.executors():
                for process in [executor, *executor.children(recursive=True)]:
                    started[process.pid] = texts_of(process)
            load.finish(90.0)
        wait_until_all_is_parquet(stack, ledger)

        assert not ledger.check_log(everything_read(stack, topic, ledger))
        assert len(cluster.executors()) == 2
        assert any("spark_compaction.worker_daemon" in text for text in started.values())
        secret = stack.addresses.database_url
        assert not [pid for pid, text in started.items() if secret in text or "TIDELOG_DATABASE" in text]
        service.stop()
    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)


@dataclass
class Harms:
    """What is done to the parts while they work. Each returns once the part is back."""

    stack: Stack
    cluster: SparkCluster
    service: Service
    chance: random.Random

    def executor_killed(self) -> None:
        wait_for(lambda: bool(self.cluster.executors()), "no executor runs")
        self.chance.choice(self.cluster.executors()).kill()

    def worker_killed(self) -> None:
        self.cluster.kill_worker("worker-1")
        wait_for_more_history(self.stack)  # by the other worker
        self.cluster.start_worker("worker-1")
        self.cluster.wait_for_workers(2)

    def driver_killed(self) -> None:
        self.service.kill()
        self.service.start()

    def agent_killed(self) -> None:
        self.stack.kill(0)
        self.stack.restart(0)

    def postgres_killed(self) -> None:
        self.stack.postgres.kill()
        time.sleep(2.0)
        self.stack.postgres.start()

    def store_away(self) -> None:
        self.stack.stop_store()
        time.sleep(3.0)
        self.stack.start_store()


OF_SPARK = (Harms.executor_killed, Harms.worker_killed, Harms.driver_killed)
OF_TIDELOG = (Harms.agent_killed, Harms.postgres_killed, Harms.store_away)


@pytest.mark.parametrize("harms", [OF_SPARK, OF_TIDELOG], ids=["spark", "tidelog"])
def test_history_goes_on_after_kills_while_consumers_read(
    harms: Sequence[Callable[[Harms], None]], new_stack: Callable[..., Stack], stack_directory: Path
) -> None:
    [seed] = seeds(1)
    with service_at(new_stack, stack_directory) as (stack, cluster, service):
        topic = create_topic(stack.addresses.bootstrap, PARTITIONS, LOG_TOPIC)
        ledger = Ledger(Contents(seed, PARTITIONS))
        settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=30.0)
        do = Harms(stack, cluster, service, random.Random(seed))
        with Load(settings, ledger) as load, reading_old(stack, load, topic, seed) as old:
            load.wait_for_acknowledgements(50, 60.0)
            wait_for_more_history(stack)
            for harm in harms:
                began_s, read_before = time.monotonic(), old.read_count
                harm(do)
                load.wait_for_acknowledgements(20, 90.0)
                wait_for_more_history(stack)
                wait_for_more_history(stack)
                took_s = time.monotonic() - began_s
                read_count = old.read_count - read_before
                print(f"{harm.__name__}: goes on after {took_s:.1f} s, {read_count} old records read")
                assert read_count > 0
            load.finish(120.0)
        assert not old.faults
        assert service.process is not None
        assert service.process.poll() is None, "the service ended"
        wait_until_all_is_parquet(stack, ledger)
        assert not ledger.check_log(everything_read(stack, topic, ledger))
        service.stop()
    wait_until_doctor_finds_nothing(stack, timeout_s=180.0)
