"""Flink's Kafka source and sink, exactly once, on the unchanged artefacts of Flink and its connector.

A job of two subtasks counts the records of each key, from a topic to a topic, with a checkpoint each second.
While records are written, a task fails, an agent dies, Flink's process dies between a checkpoint and the
commits of the transactions that it covers, and the other agent dies while a new process goes on from that
checkpoint.

Promises that a wrong result cannot come from the test's own timing:

- Transactions outlive the test. A reader of committed records reaches the end only if the new process has
  committed each transaction of its checkpoint, by its producer id and epoch, and has aborted all later ones.
- Each record has a number, and the count of its key. A lost record, a doubled one, one of an aborted
  transaction, or a state that does not fit the output is seen whenever it happens.
"""

import shutil
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix, ToolchainAbsent
from tests.support import java as support
from tests.support.child import child
from tests.support.java import Java, classpath_of, jars_of
from tests.support.messages import place_of, value_of
from tests.support.seeds import seeds
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_NAME = "flink"
_MODULES = Path(support.__file__).with_name("flink.xml")
_SOURCE = Path(__file__).with_name("FlinkCounts.java")
_PARTITIONS = 3
_KEYS = 20
_FAILS_AFTER = 60
"""Records of a subtask until it fails, once."""
_MORE = 150
_PATIENCE_S = 150.0
_HALTED = 3
"""The exit status of a process that `FlinkCounts` ends."""
_AGENTS = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "5",
    "TIDELOG_MEMBERSHIP_RENEW_S": "0.5",
    "TIDELOG_MEMBERSHIP_MARGIN_S": "0.5",
}
_FLINK = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "state.backend.type": "hashmap",
    "execution.checkpointing.interval": "1s",
    "execution.checkpointing.min-pause": "200ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.tolerable-failed-checkpoints": "100",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "200ms",
}
_AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)


class Writer:
    """Writes numbered records in transactions, and aborts every fourth. One thread writes."""

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        self.committed: set[str] = set()
        """Key and number of each record. Ask for them after the end."""
        self.ends: dict[int, int] = {}
        """Of each partition: the offset after the last of these records."""
        self._topic = topic
        self._chance = Random(seed)
        self._transactions = self._records = 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                # Not with the prefix of Flink's ids: it would take it for one of them.
                "transactional.id": f"writer-of-{topic}",
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(_PATIENCE_S)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps writing during the block. Raises what it raised."""
        ending = threading.Event()

        def write() -> None:
            while not ending.wait(0.1):
                self.write(8)

        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(write)
            try:
                yield
            finally:
                ending.set()
            written.result(_PATIENCE_S + 10)

    def write(self, records: int) -> None:
        """One transaction."""
        values: list[str] = []
        places: list[tuple[int, int]] = []
        self._producer.begin_transaction()
        for _ in range(records):
            values.append(f"key{self._chance.randrange(_KEYS)} {self._records}")
            self._producer.produce(
                self._topic, value=values[-1], partition=self._records % _PARTITIONS,
                on_delivery=lambda error, message: None if error else places.append(place_of(message)),
            )  # fmt: skip
            self._records += 1
        self._transactions += 1
        if self._transactions % 4 != 0 and _is_done(self._producer.commit_transaction):
            self.committed.update(values)
            self.ends.update({partition: offset + 1 for partition, offset in places})
        else:
            assert _is_done(self._producer.abort_transaction)


def _is_done(step: Callable[[float], None]) -> bool:
    """Ends a transaction, and asks again if need be. Returns False if it must be aborted."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            step(_PATIENCE_S)
        except KafkaException as failed:
            error = failed.args[0]
            if error.txn_requires_abort():
                return False
            assert error.retriable(), error
            assert time.monotonic() < until, error
        else:
            return True


class Counts:
    """Follows the output as a consumer of committed records. Values of a key are in their order."""

    def __init__(self, servers: str, topic: str) -> None:
        self.values: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(_PARTITIONS)])

    def numbered(self) -> list[str]:
        """Key and number of each."""
        return [value.rsplit(" ", 1)[0] for value in self.values]

    def by_key(self) -> dict[str, list[int]]:
        """The counts of each key."""
        found: dict[str, list[int]] = {}
        for value in self.values:
            key, _, count = value.split(" ")
            found.setdefault(key, []).append(int(count))
        return found

    def read(self) -> None:
        """What arrives within a moment."""
        for message in self._consumer.consume(500, 0.2):
            error = message.error()
            if error is None:
                self.values.append(value_of(message).decode())
            else:
                assert error.retriable() or error.code() in _AWAY, error

    def wait_for_more(self, records: int, job: "Job") -> None:
        wanted, until = len(self.values) + records, time.monotonic() + _PATIENCE_S
        while len(self.values) < wanted:
            assert time.monotonic() < until, f"{len(self.values)} of {wanted} arrived: {job.said()[-4000:]}"
            assert job.exit_status() is None, job.said()[-4000:]
            self.read()

    def close(self) -> None:
        self._consumer.close()


class Job:
    """One process of Flink."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_file: Path) -> None:
        self._process = process
        self._log_file = log_file

    def said(self) -> str:
        return self._log_file.read_text(errors="replace")

    def exit_status(self) -> int | None:
        return self._process.poll()

    def wait_until_it_says(self, *lines: str) -> None:
        wait_until(lambda: set(lines) <= set(self.said().splitlines()), _PATIENCE_S)

    def wait_until_halted(self) -> None:
        assert self._process.wait(_PATIENCE_S) == _HALTED, self.said()[-4000:]


class Application:
    """The topics and the processes of one run."""

    def __init__(self, flink: Java, stack: Stack, directory: Path, naming: str, started: ExitStack) -> None:
        self.stack = stack
        self.servers = ",".join(agent.address.bootstrap for agent in stack.agents)
        self.name = f"counts-{uuid.uuid4().hex[:8]}"
        self.input, self.output = f"{self.name}-input", f"{self.name}-output"
        self.halt = directory / "halt"
        """Flink's process ends at its next checkpoint when this file is there."""
        self._flink = flink
        self._directory = directory
        self._naming = naming
        self._started = started
        directory.mkdir(parents=True)
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        topics = [NewTopic(topic, _PARTITIONS, 1) for topic in (self.input, self.output)]
        for made in self._admin.create_topics(topics, request_timeout=60).values():
            made.result(90)

    def start(self, name: str, *, fail_after: int = 0) -> Job:
        """Goes on from the last checkpoint, if there is one."""
        settings = {**_FLINK, "execution.checkpointing.dir": f"file://{self._directory}/checkpoints"}
        found = self._directory.glob("checkpoints/*/chk-*/_metadata")
        last = max(found, key=lambda file: file.stat().st_mtime_ns, default=None)
        if last is not None:
            settings["execution.state-recovery.path"] = f"file://{last.parent}"
        arguments = [self.servers, self.name, self.input, self.output, self._naming, str(fail_after)]
        arguments += [str(self.halt), *(f"{key}={value}" for key, value in settings.items())]
        command = self._flink.command("FlinkCounts", arguments)
        log_file = self._directory / f"{name}.log"
        return Job(self._started.enter_context(child(command, log_file, {})), log_file)

    def group_offsets(self) -> dict[int, int]:
        """The offset that the job's group has committed in each partition."""
        asked = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.name)], request_timeout=30
        )
        found = asked[self.name].result(60).topic_partitions or []
        return {place.partition: place.offset for place in found}


@pytest.fixture(scope="module")
def flink(request: pytest.FixtureRequest, matrix: Matrix) -> Java:
    """`FlinkCounts.java`, compiled."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise ToolchainAbsent(_NAME, tool)
    java: Java = request.getfixturevalue("java")
    versions = {
        each.attrib["name"]: each.attrib["rev"] for each in ElementTree.parse(_MODULES).iter("dependency")
    }
    matrix.note_version(_NAME, versions["flink-streaming-java"])
    return replace(java, classpath=classpath_of(jars_of(_MODULES))).compiled(_SOURCE)


@pytest.fixture
def start_application(
    flink: Java, new_stack: Callable[..., Stack], stack_directory: Path
) -> Iterator[Callable[[str], Application]]:
    """Two agents, and nothing that runs on them yet."""
    stack = new_stack(agents=2, agent_environment=_AGENTS)
    directory = stack_directory / "flink"
    with ExitStack() as started:
        yield lambda naming: Application(flink, stack, directory, naming, started)
    for log in sorted(directory.glob("*.log")):
        print(f"{log.name}:\n{log.read_text(errors='replace')}")


@tried(
    _NAME,
    "source: committed records",
    "source: offsets of its group",
    "sink: exactly once",
    "a task fails",
    "its process dies before it commits",
    "an agent dies",
)
@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"])
def test_each_record_is_counted_once_although_tasks_processes_and_agents_die(
    naming: str, start_application: Callable[[str], Application]
) -> None:
    """`INCREMENTING` finds transactions to abort by trying their ids, `POOLING` by listing them."""
    [seed] = seeds(1)
    chance = Random(seed)
    application = start_application(naming)
    stack, victim = application.stack, chance.randrange(2)
    writer = Writer(application.servers, application.input, seed)
    first = application.start("first", fail_after=_FAILS_AFTER)
    with closing(Counts(application.servers, application.output)) as counts:
        with writer.writing():
            counts.wait_for_more(_MORE, first)
            first.wait_until_it_says("fails", "attempt 1")
            time.sleep(chance.uniform(0, 1.5))
            stack.kill(victim)
            counts.wait_for_more(_MORE, first)
            stack.restart(victim)
            counts.wait_for_more(_MORE, first)

            time.sleep(chance.uniform(0, 1.5))
            application.halt.touch()
            first.wait_until_halted()
            application.halt.unlink()
            second = application.start("second")
            time.sleep(chance.uniform(0, 6))
            stack.kill(1 - victim)
            counts.wait_for_more(_MORE, second)
            stack.restart(1 - victim)
            counts.wait_for_more(_MORE, second)
        counts.wait_for_more(len(writer.committed) - len(counts.values), second)
        # A duplicate would come with a later transaction.
        with writer.writing():
            counts.wait_for_more(_MORE, second)
        counts.wait_for_more(len(writer.committed) - len(counts.values), second)
        wait_until(lambda: application.group_offsets() == writer.ends, _PATIENCE_S)
        counts.read()

    print(f"{len(writer.committed)} records")
    assert Counter(counts.numbered()) == Counter(writer.committed)
    for key, of_key in counts.by_key().items():
        assert of_key == list(range(1, len(of_key) + 1)), key
