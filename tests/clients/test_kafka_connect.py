"""Kafka Connect, distributed: workers against two agents. An agent is killed, and workers are stopped.

Connect creates the topics that hold its own state, and asks for `cleanup.policy=compact`. A worker
that starts later reads what compaction has left of them. Lines go from a file through a topic into another
file at least once: a line may arrive twice, but none may be missing. With exactly-once support for sources
(KIP-618) consumers of committed data read each line once, in order.
"""

import asyncio
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.agent.read_path.wire import ask, request
from tests.clients.adapters import DEADLINE_S, Confluent
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix, ToolchainAbsent
from tests.clients.transactional import Confluent as TransactionalConfluent
from tests.support.kafka_connect import KafkaConnect, Worker, connect_jars, workers
from tests.support.messages import value_of
from tests.support.stack import HERE
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack, StackSettings

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

_NAME = "kafka-connect"
_WORKER = {
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "offset.flush.interval.ms": "1000",
    # A worker that leaves is not waited for. The default is five minutes.
    "scheduled.rebalance.max.delay.ms": "1000",
}
_CLEANINGS = {
    "TIDELOG_CLEAN_INTERVAL_S": "0.5",
    "TIDELOG_CLEAN_LEASE_S": "10",
}
"""Compaction that is seen within the test, also after the death of the agent that was at it."""
_TOPIC = "lines"
_MORE_LINES = 1_000
_PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Two agents, and workers that know both."""

    stack: Stack
    start: Callable[[int], Sequence[Worker]]
    """Starts workers of one group."""

    @property
    def servers(self) -> str:
        return self.stack.addresses.bootstrap


@contextmanager
def _cluster(
    directory: Path, matrix: Matrix, agent_environment: Mapping[str, str], **worker_settings: str
) -> Iterator[Cluster]:
    """Raises `ToolchainAbsent` without Java."""
    if shutil.which("java") is None:
        raise ToolchainAbsent(_NAME, "java")
    connect: KafkaConnect = connect_jars()
    matrix.note_version(_NAME, connect.version)
    settings = StackSettings(
        environment=HERE, data_dir=directory / "stack", agent_environment=agent_environment
    )
    with ExitStack() as running:
        stack = running.enter_context(Stack(settings))
        others = {name.replace("_", "."): value for name, value in worker_settings.items()}
        given = {"bootstrap.servers": stack.addresses.bootstrap, **_WORKER, **others}

        def start(count: int) -> Sequence[Worker]:
            workers_directory = directory / f"connect-{uuid.uuid4().hex[:8]}"
            return running.enter_context(workers(connect, workers_directory, count, given))

        yield Cluster(stack=stack, start=start)


@pytest.fixture
def cluster(module_directory: Path, matrix: Matrix) -> Iterator[Cluster]:
    with _cluster(module_directory / "cleaned", matrix, _CLEANINGS) as running:
        yield running


@pytest.fixture
def exactly_once_cluster(module_directory: Path, matrix: Matrix) -> Iterator[Cluster]:
    exactly_once = {"exactly_once_source_support": "enabled"}
    with _cluster(module_directory / "once", matrix, _CLEANINGS, **exactly_once) as running:
        yield running


class Feeder:
    """Appends numbered lines to a file until it is left."""

    def __init__(self, file: Path) -> None:
        self.written = 0
        self._file = file
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write)

    @property
    def lines(self) -> set[str]:
        """All that were written. Ask after the end."""
        return {f"line {number}" for number in range(self.written)}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _write(self) -> None:
        with self._file.open("a") as file:
            while not self._done.wait(0.02):
                for number in range(self.written, self.written + 10):
                    file.write(f"line {number}\n")
                file.flush()
                self.written += 10


@tried(_NAME, "creates its compacted topics", "file source and sink", "an agent dies", "a worker leaves")
def test_every_line_arrives_although_an_agent_is_killed_and_a_worker_stops(
    cluster: Cluster, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.touch()
    first, second = cluster.start(2)
    first.put_connector(
        "source",
        {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(source),
            "topic": _TOPIC,
            "topic.creation.default.partitions": "4",
            "topic.creation.default.replication.factor": "-1",
        },
    )
    second.put_connector(
        "sink",
        {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "file": str(sink),
            "topics": _TOPIC,
            "tasks.max": "2",
            "consumer.override.auto.offset.reset": "earliest",
        },
    )
    _wait_until_runs(second, "source", tasks=1)
    _wait_until_runs(first, "sink", tasks=2)

    with Feeder(source) as feeder:
        _wait_until_more_arrives(feeder, sink)
        victim = _coordinator(cluster)
        cluster.stack.kill(victim)
        _wait_until_more_arrives(feeder, sink)
        cluster.stack.restart(victim)

        _wait_until_runs(first, "source", tasks=1)
        worker_of_source = first.status("source")["tasks"][0]["worker_id"]
        left, stays = (first, second) if worker_of_source == first.name else (second, first)
        left.stop()
        _wait_until_runs(stays, "source", tasks=1, only_at=stays)
        _wait_until_runs(stays, "sink", tasks=2, only_at=stays)
        _wait_until_more_arrives(feeder, sink)

        # A worker that starts now finds what compaction has left.
        wait_until(lambda: _is_cleaned(cluster.servers, "connect-offsets"), _PATIENCE_S)
        (last,) = cluster.start(1)
        stays.stop()
        _wait_until_runs(last, "source", tasks=1, only_at=last)
        _wait_until_runs(last, "sink", tasks=2, only_at=last)
        _wait_until_more_arrives(feeder, sink)

    wait_until(lambda: len(_arrived(sink)) >= feeder.written, _PATIENCE_S)
    assert _arrived(sink).keys() == feeder.lines
    wait_until(lambda: _moved_to(last, source), _PATIENCE_S)
    stored = Counter(
        (record.value or b"").decode()
        for records in Confluent().consume(cluster.servers, [_TOPIC]).values()
        for record in records
    )
    assert stored.keys() == feeder.lines
    assert stored["line 0"] == 1, "no task began again at the start of the file"
    twice = [sum(count > 1 for count in counts.values()) for counts in (stored, _arrived(sink))]
    print(
        f"{feeder.written} lines, of which {twice[0]} are twice in the topic, {twice[1]} in the sink's file"
    )
    for topic in ("connect-configs", "connect-offsets", "connect-status"):
        assert _config(cluster.servers, topic)["cleanup.policy"] == "compact"


@tried(_NAME, "exactly-once sources")
def test_each_line_is_read_once_although_an_agent_and_workers_die_or_hang(
    exactly_once_cluster: Cluster, tmp_path: Path
) -> None:
    cluster, source = exactly_once_cluster, tmp_path / "source.txt"
    source.touch()
    both = cluster.start(2)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.servers})
    asked = confluent_kafka.admin.NewTopic(_TOPIC, 1, 1)
    admin.create_topics([asked], request_timeout=60)[_TOPIC].result(DEADLINE_S)
    both[0].put_connector(
        "source",
        {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(source),
            "topic": _TOPIC,
            "exactly.once.support": "required",
        },
    )
    _wait_until_runs(both[1], "source", tasks=1)

    with Feeder(source) as feeder, closing(CommittedLines(cluster.servers)) as read:
        read.until(feeder.written + _MORE_LINES)
        victim = _coordinator(cluster)
        cluster.stack.kill(victim)
        read.until(feeder.written + _MORE_LINES)
        cluster.stack.restart(victim)

        _wait_until_runs(both[0], "source", tasks=1)
        zombie, other = _with_the_task_first(both)
        with zombie.paused():
            _wait_until_runs(other, "source", tasks=1, only_at=other)
            read.until(feeder.written + _MORE_LINES)
        read.until(feeder.written + _MORE_LINES)
        wait_until(zombie.is_ready, _PATIENCE_S)
        read.until(feeder.written + _MORE_LINES)

        killed, stays = _with_the_task_first(both)
        killed.kill()
        _wait_until_runs(stays, "source", tasks=1, only_at=stays)
        read.until(feeder.written + _MORE_LINES)

    wait_until(lambda: _moved_to(stays, source), _PATIENCE_S)
    (lines,) = TransactionalConfluent().read(cluster.servers, _TOPIC, [0], committed=True).values()
    assert lines == [f"line {number}" for number in range(feeder.written)]
    (every,) = TransactionalConfluent().read(cluster.servers, _TOPIC, [0], committed=False).values()
    print(f"{len(lines)} lines, and {len(every) - len(lines)} of aborted transactions")


class CommittedLines:
    """What a consumer of committed data reads of the topic."""

    def __init__(self, servers: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
        self._consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed"})
        self._consumer.assign([confluent_kafka.TopicPartition(_TOPIC, 0, 0)])
        self._lines: list[str] = []

    def until(self, count: int) -> None:
        """Reads on until there are as many lines."""
        until = time.monotonic() + _PATIENCE_S
        while len(self._lines) < count:
            assert time.monotonic() < until, f"{len(self._lines)} of {count} lines came"
            for message in self._consumer.consume(1000, timeout=1.0):
                error = message.error()
                if error is None:
                    self._lines.append(value_of(message).decode())

    def close(self) -> None:
        self._consumer.close()


def _with_the_task_first(both: Sequence[Worker]) -> tuple[Worker, Worker]:
    """The worker that runs the source's task, and the other one."""
    first, second = both
    found: list[str] = []

    def is_known() -> bool:
        tasks = first.status("source").get("tasks", [])
        found[:] = [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]
        return len(found) == 1

    wait_until(is_known, _PATIENCE_S)
    return (first, second) if found == [first.name] else (second, first)


def _arrived(sink: Path) -> Counter[str]:
    """How often each whole line is in the sink's file."""
    text = sink.read_text() if sink.exists() else ""
    return Counter(text[: text.rfind("\n") + 1].splitlines())


def _wait_until_more_arrives(feeder: Feeder, sink: Path) -> None:
    """Waits for lines that are written after the call."""
    last = f"\nline {feeder.written + _MORE_LINES}\n"
    wait_until(lambda: sink.exists() and last in sink.read_text(), _PATIENCE_S)


def _wait_until_runs(worker: Worker, connector: str, tasks: int, only_at: Worker | None = None) -> None:
    """The connector and all its tasks run, on any worker or `only_at` one."""

    def runs() -> bool:
        status = worker.status(connector)
        parts = [status["connector"], *status["tasks"]] if status else []
        failed = [part["trace"] for part in parts if part["state"] == "FAILED"]
        assert not failed, failed
        return len(parts) == tasks + 1 and all(
            part["state"] == "RUNNING" and (only_at is None or part["worker_id"] == only_at.name)
            for part in parts
        )

    wait_until(runs, _PATIENCE_S)


def _coordinator(cluster: Cluster) -> int:
    """The index of the agent that coordinates the workers' group: its death costs them most."""
    # By hand: clients describe only groups of consumers.
    asked = request(10, 4, coordinator_keys=(_WORKER["group.id"],), key_type=0)
    ports = [agent.address.kafka_port for agent in cluster.stack.agents]
    (found,) = asyncio.run(ask(ports[0], asked)).coordinators
    return ports.index(found.port)


def _moved_to(worker: Worker, source: Path) -> bool:
    """True if the source has committed that it read the whole file."""
    committed = [found["offset"] for found in worker.offsets("source")]
    return committed == [{"position": source.stat().st_size}]


def _is_cleaned(servers: str, topic: str) -> bool:
    """True if compaction has dropped records of the topic: fewer come than offsets were given."""
    settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    try:
        found = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in found]
        written = sum(consumer.get_watermark_offsets(place, timeout=DEADLINE_S)[1] for place in places)
        consumer.assign(places)
        kept = ends = 0
        while ends < len(places):
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{topic} was not read to its end"
            error = message.error()
            assert error is None or error.code() == confluent_kafka.KafkaError._PARTITION_EOF, str(error)
            ends += error is not None
            kept += error is None
        return kept < written
    finally:
        consumer.close()


def _config(servers: str, topic: str) -> dict[str, str | None]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource], request_timeout=30)[resource].result(DEADLINE_S)
    return {name: entry.value for name, entry in entries.items()}
