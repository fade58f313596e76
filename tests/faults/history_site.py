"""History on a standalone Spark cluster of two workers, with consumers that read all the time, and what kills
its parts at named points.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import psutil

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from tests.faults.conftest import LEASES, create_topic
from tests.faults.fault_points import FOLDER_VARIABLE, POINTS, FaultPoint, FaultPoints
from tests.faults.ledger import Contents, Ledger, ReadRecord
from tests.faults.load import Load, LoadSettings, read_message
from tests.support.spark_cluster import ROOT, SparkCluster, spark_cluster
from tidelog.devstack.stack import Stack

PARTITIONS = 4
PATIENCE_S = 300.0
AGENTS: Mapping[str, str] = {
    **LEASES,
    "TIDELOG_RESERVATION_LEASE_S": "15",
    "TIDELOG_DOOMING_INTERVAL_S": "1",
    "TIDELOG_RETENTION_INTERVAL_S": "0.5",
    "TIDELOG_OWNERSHIP_RATCHET_S": "1",
}
LOG_TOPIC: Mapping[str, str] = {
    "tidelog.history": "log",
    "local.retention.ms": "0",
    "tidelog.history.freshness.ms": "1000",
}
SERVICE: Mapping[str, str] = {
    "TIDELOG_JOB_LEASE_S": "6",
    "TIDELOG_HISTORY_POLL_S": "0.5",
    "TIDELOG_COMPACT_TASK_BYTES": "262144",
    "TIDELOG_PARQUET_ROW_GROUP_BYTES": "65536",
    "TIDELOG_PARQUET_FILE_BYTES": "1048576",
    "TIDELOG_PARQUET_MERGE_FILES": "4",
}
_READ_AT_ONCE = 500
_BETWEEN_READS_S = 0.2
_DATABASE_AWAY_S = 2.0
_STORE_AWAY_S = 3.0


@dataclass
class Service:
    """The driver: `tidelog history run` under spark-submit. `halting`: it may wait at the named points."""

    cluster: SparkCluster
    stack: Stack
    log_file: Path
    points: FaultPoints
    halting: bool
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        environment = {**self.stack.addresses.as_environment(), **SERVICE}
        if not self.halting:
            self.process = self.cluster.submit(["history", "run"], environment, self.log_file)
            return
        folder = str(self.points.folder)
        self.process = self.cluster.submit(
            ["history", "run"],
            {**environment, FOLDER_VARIABLE: folder},
            self.log_file,
            script=ROOT / "tests" / "faults" / "halting_driver.py",
            conf={
                "spark.python.daemon.module": "tests.faults.halting_worker",
                f"spark.executorEnv.{FOLDER_VARIABLE}": folder,
            },
        )

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
def service_on(stack: Stack, directory: Path, *, halting: bool = False) -> Iterator[Service]:
    """The cluster and the service. After a failure it prints what they logged."""
    folder = directory / "points"
    folder.mkdir()
    with spark_cluster(directory / "spark") as cluster:
        service = Service(cluster, stack, directory / "driver.log", FaultPoints(folder), halting)
        service.start()
        try:
            yield service
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


@dataclass
class Victims:
    """Each kills one part, and mends it when its context ends. `at`: the process that waits at the point."""

    service: Service
    chance: random.Random

    @contextmanager
    def driver(self, at: int) -> Iterator[None]:  # noqa: ARG002 - the driver is one, wherever the point is
        self.service.kill()
        yield
        self.service.start()

    @contextmanager
    def executor(self, at: int) -> Iterator[None]:
        """Its JVM. Its Python may go on for a moment, and put a file that no job knows."""
        cluster = self.service.cluster
        wait_for(lambda: bool(cluster.executors()), "no executor runs")
        found = cluster.executors()
        [*halted] = [executor for executor in found if at in _below(executor)]
        self.chance.choice(halted or found).kill()
        yield

    @contextmanager
    def worker(self, at: int) -> Iterator[None]:
        """With its executors: a machine that is lost."""
        cluster = self.service.cluster
        [*halted] = [
            name for name in cluster.workers if at in _below(psutil.Process(cluster.processes[name].pid))
        ]
        name = self.chance.choice(halted or cluster.workers)
        cluster.kill_worker(name)
        yield
        wait_for_more_history(self.service.stack)  # by the other worker
        cluster.start_worker(name)
        cluster.wait_for_workers(2)

    @contextmanager
    def agent(self, at: int) -> Iterator[None]:  # noqa: ARG002 - both serve reads
        index = self.chance.randrange(len(self.service.stack.agents))
        self.service.stack.kill(index)
        yield
        self.service.stack.restart(index)

    @contextmanager
    def postgres(self, at: int) -> Iterator[None]:  # noqa: ARG002
        self.service.stack.postgres.kill()
        yield
        time.sleep(_DATABASE_AWAY_S)  # the job goes on without it
        self.service.stack.postgres.start()

    @contextmanager
    def store(self, at: int) -> Iterator[None]:  # noqa: ARG002
        self.service.stack.stop_store()
        yield
        time.sleep(_STORE_AWAY_S)
        self.service.stack.start_store()


Victim = Callable[[Victims, int], AbstractContextManager[None]]
VICTIMS: Sequence[Victim] = (
    Victims.driver,
    Victims.executor,
    Victims.worker,
    Victims.agent,
    Victims.postgres,
    Victims.store,
)
Kill = tuple[FaultPoint, Victim]


def kills_of_each_point(chance: random.Random) -> list[Kill]:
    """Each point once, in any order, and each victim at least once."""
    points, victims = list(POINTS), [*VICTIMS]
    chance.shuffle(points)
    chance.shuffle(victims)
    return [(point, victims[number % len(victims)]) for number, point in enumerate(points)]


def all_kills(chance: random.Random) -> list[Kill]:
    """Each victim at each point, in any order."""
    kills = [(point, victim) for point in POINTS for victim in VICTIMS]
    chance.shuffle(kills)
    return kills


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    point: str
    victim: str
    goes_on_after_s: float
    """From the kill until there was more history, and more records were acknowledged."""
    old_records: int
    """Read from old offsets meanwhile, and compared."""

    def __str__(self) -> str:
        return (
            f"{self.victim} killed at '{self.point}': goes on after {self.goes_on_after_s:.1f} s, "
            f"{self.old_records} old records read"
        )


def kill_while_consumers_read(
    service: Service, kills: Callable[[random.Random], Iterable[Kill]], seed: int
) -> Iterator[Outcome]:
    """Does the kills one after the other. Then compares all that was written with what is read, by consumers
    that read it before, meanwhile and after. Raises AssertionError or TimeoutError.
    """
    stack, chance = service.stack, random.Random(seed)
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS, LOG_TOPIC)
    ledger = Ledger(Contents(seed, PARTITIONS))
    settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=30.0)
    victims = Victims(service, chance)
    with Load(settings, ledger) as load, reading_old(stack, load, topic, seed) as old:
        load.wait_for_acknowledgements(50, 60.0)
        wait_for_more_history(stack)
        for point, victim in kills(chance):
            at = service.points.wait_until_reached(point, PATIENCE_S)
            began_s, read_before = time.monotonic(), old.read_count
            with victim(victims, at):
                service.points.disarm()
            load.wait_for_acknowledgements(20, 90.0)
            wait_for_more_history(stack)
            outcome = Outcome(
                point=point.name,
                victim=getattr(victim, "__name__", ""),
                goes_on_after_s=time.monotonic() - began_s,
                old_records=old.read_count - read_before,
            )
            assert not old.faults, outcome
            assert outcome.old_records > 0, outcome
            yield outcome
        load.finish(120.0)
    assert not old.faults
    assert service.process is not None
    assert service.process.poll() is None, "the service ended"
    wait_until_all_is_parquet(stack, ledger)
    faults = ledger.check_log(everything_read(stack, topic, ledger))
    assert not faults, faults[:5]


def _below(process: psutil.Process) -> set[int]:
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in process.children(recursive=True)}
    return set()
