"""Kafka Streams, at least once and exactly once: stores whose changelogs agents clean while instances die and
restore them. In classic groups, and in groups of the streams protocol (KIP-1071).

Promises that a wrong result cannot come from the test's own timing:

- `numbers` collects which sentences had a word. A sentence that is processed again changes nothing, so it is
  exact at any time that all is processed.
- Counts are exact until something is killed. At least once, a sentence that is processed again counts again,
  so they are never too small after that. Exactly once, they stay exact, for consumers of committed data.
"""

import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix, ToolchainAbsent
from tests.support import java as support
from tests.support.child import child
from tests.support.java import Java, JavaFailed, classpath_of, jars_of
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PARTITIONS = 3
WORDS = [f"word{number}" for number in range(40)]
OFTEN = WORDS[:20]
"""The words of the load. What is known of the others comes from a changelog alone if an instance dies."""
WINDOW_MS = 20_000
SENTENCE_MS = 100
"""Between two sentences, by their timestamps."""
PATIENCE_S = 150.0

AGENTS: Mapping[str, str] = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "5",
    "TIDELOG_MEMBERSHIP_RENEW_S": "0.5",
    "TIDELOG_MEMBERSHIP_MARGIN_S": "0.5",
    "TIDELOG_CLEAN_INTERVAL_S": "0.2",
    "TIDELOG_CLEAN_LEASE_S": "3",
    # Nothing is cleaned until the bucket of a new database was watched for a while.
    "TIDELOG_OWNERSHIP_RATCHET_S": "3",
    "TIDELOG_TRANSACTION_TIMEOUT_INTERVAL_S": "0.5",
    # In the streams protocol the agents say what the clients of a classic group do (STREAMS).
    "TIDELOG_GROUP_STREAMS_HEARTBEAT_INTERVAL_MS": "1000",
    "TIDELOG_GROUP_STREAMS_SESSION_TIMEOUT_MS": "10000",
}
_SERDES = "org.apache.kafka.common.serialization.Serdes$StringSerde"
_IN_MEMORY = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
STREAMS: Mapping[str, str] = {
    "processing.guarantee": "at_least_once",
    "num.standby.replicas": "1",
    "commit.interval.ms": "300",
    "statestore.cache.max.bytes": "0",
    "repartition.purge.interval.ms": "500",
    "default.key.serde": _SERDES,
    "default.value.serde": _SERDES,
    # So it never loads RocksDB, whose jar of 70 MB is not on the class path.
    "dsl.store.suppliers.class": _IN_MEMORY,
    "topic.min.cleanable.dirty.ratio": "0.01",
    # A member that is killed holds its partitions for so long.
    "main.consumer.session.timeout.ms": "10000",
    "main.consumer.heartbeat.interval.ms": "1000",
}
EXACTLY_ONCE: Mapping[str, str] = {
    "processing_guarantee": "exactly_once_v2",
    # The transaction of an instance that is killed stays open for so long.
    "producer_transaction_timeout_ms": "5000",
}
STORES = ("counts", "numbers", "windows")
_STREAMS_GROUPS = "streams.StreamsGroupCommand"
_MODULES = Path(support.__file__).with_name("kafka_streams.xml")
_SOURCE = Path(__file__).with_name("WordCounts.java")

pytestmark = pytest.mark.clients

Records = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True)
class Results:
    """The three outputs, as tables."""

    counts: Counter[str] = field(default_factory=Counter)
    windows: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, int] = field(default_factory=dict)

    def reaches(self, other: "Results") -> bool:
        """Whether nothing of `other` is missing."""
        return (
            all(self.numbers.get(word, 0) & bits == bits for word, bits in other.numbers.items())
            and all(self.counts[word] >= count for word, count in other.counts.items())
            and all(self.windows[window] >= count for window, count in other.windows.items())
        )


class Writer:
    """Writes sentences and knows what must come of them. One thread writes; any may ask what is expected."""

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._chance = Random(seed)
        self._began_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS - 600_000
        self._next = 0
        self._lock = threading.Lock()
        self._expected = Results()

    def write(self, sentences: int, vocabulary: Sequence[str] = WORDS) -> None:
        """Raises `AssertionError` if one is not acknowledged."""
        errors: list[KafkaError] = []
        for _ in range(sentences):
            number, words = self._next, self._chance.choices(vocabulary, k=5)
            self._next += 1
            at_ms = self._began_ms + number * SENTENCE_MS
            sentence = " ".join([str(number), *words])
            self._producer.produce(
                self._topic, value=sentence.encode(), partition=number % PARTITIONS, timestamp=at_ms,
                on_delivery=lambda error, _: errors.append(error) if error is not None else None,
            )  # fmt: skip
            with self._lock:
                for word in words:
                    self._expected.counts[word] += 1
                    self._expected.windows[f"{word}@{at_ms // WINDOW_MS * WINDOW_MS}"] += 1
                    self._expected.numbers[word] = self._expected.numbers.get(word, 0) | 1 << number
        assert self._producer.flush(PATIENCE_S) == 0
        assert errors == []

    def expected_after_more(self) -> Results:
        """Of all that was written when each partition has more sentences than now."""
        before, until = self._next, time.monotonic() + PATIENCE_S
        while self._next < before + 60:
            assert time.monotonic() < until, "no more is written"
            time.sleep(0.1)
        return self.expected()

    def expected(self) -> Results:
        """Of all that was written."""
        with self._lock:
            mine = self._expected
            return Results(mine.counts.copy(), mine.windows.copy(), mine.numbers.copy())


@contextmanager
def load(writer: Writer) -> Iterator[None]:
    """Keeps the writer writing during the block. Raises what it raised."""
    ending = threading.Event()

    def write() -> None:
        while not ending.wait(0.2):
            writer.write(6, OFTEN)

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            yield
        finally:
            ending.set()
        written.result(PATIENCE_S + 10)


class Outputs:
    """Follows the three output topics."""

    def __init__(self, servers: str, topics: tuple[str, str, str]) -> None:
        self._topics = topics
        self._consumer = Consumer(_reading(servers))
        self._consumer.assign([TopicPartition(topic, p, 0) for topic in topics for p in range(PARTITIONS)])
        self.last = Results()

    def wait_for(self, expected: Results) -> None:
        """Returns when nothing of `expected` is missing."""
        until = time.monotonic() + PATIENCE_S
        while not self.last.reaches(expected):
            assert time.monotonic() < until, f"missing after {PATIENCE_S} s: {self._missing(expected)}"
            for message in self._consumer.consume(500, 0.2):
                self._take(message)

    def _take(self, message: confluent_kafka.Message) -> None:
        error, key, value = message.error(), message.key(), message.value()
        if error is not None:
            assert error.retriable() or error.code() in _AWAY, error
            return
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        match self._topics.index(message.topic() or ""):
            case 0:
                self.last.counts[key.decode()] = int(value)
            case 1:
                self.last.numbers[key.decode()] = int(value, 16)
            case _:
                self.last.windows[key.decode()] = int(value)

    def _missing(self, expected: Results) -> str:
        numbers = {word: bits & ~self.last.numbers.get(word, 0) for word, bits in expected.numbers.items()}
        return str(
            {
                "counts": expected.counts - self.last.counts,
                "windows": expected.windows - self.last.windows,
                "numbers": {word: f"{bits:x}" for word, bits in numbers.items() if bits},
            }
        )

    def close(self) -> None:
        self._consumer.close()


_AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)


def _reading(servers: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": servers,
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": False,
        "log_level": 0,
    }


class Instance:
    """One JVM of the application."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_file: Path) -> None:
        self._process = process
        self._log_file = log_file

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)

    def said(self) -> str:
        return self._log_file.read_text(errors="replace")

    def states(self) -> list[str]:
        return [line.split()[1] for line in self.said().splitlines() if line.startswith("state ")]

    def restored(self, kind: str) -> Counter[str]:
        """Records per store that it took from changelogs; `kind` is "restored" or "standby"."""
        found: Counter[str] = Counter()
        for line in self.said().splitlines():
            if line.startswith(f"{kind} "):
                _, changelog, _, records = line.split()
                found[changelog.removesuffix("-changelog").rsplit("-", 1)[1]] += int(records)
        return found

    def wait_until(self, holds: Callable[["Instance"], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not holds(self):
            assert self._process.poll() is None, f"it ended:\n{self.said()[-4000:]}"
            assert time.monotonic() < until, f"not {what} after {PATIENCE_S} s:\n{self.said()[-4000:]}"
            time.sleep(0.1)

    def wait_until_running(self) -> None:
        self.wait_until(lambda each: each.states()[-1:] == ["RUNNING"], "running")


class Application:
    """The topics and the instances of one run."""

    def __init__(self, streams: Java, stack: Stack, directory: Path, started: ExitStack) -> None:
        self._streams = streams
        self._stack = stack
        self._directory = directory
        self._started = started
        self.settings = dict(STREAMS)
        self.servers = ",".join(agent.address.bootstrap for agent in stack.agents)
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self.name = f"words-{uuid.uuid4().hex[:8]}"
        self.sentences = f"{self.name}-sentences"
        self.outputs = (f"{self.name}-counts", f"{self.name}-numbers", f"{self.name}-windows")
        asked = [
            NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
            for topic in (self.sentences, *self.outputs)
        ]
        for made in self.admin.create_topics(asked, request_timeout=60).values():
            made.result(90)

    def start(self, name: str, **settings: str) -> Instance:
        given = {
            **self.settings,
            "application.id": self.name,
            "bootstrap.servers": self.servers,
            "client.id": name,
            "application.server": f"{name}:1",
            "state.dir": str(self._directory / name),
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        arguments = [self.sentences, *self.outputs, str(WINDOW_MS)]
        arguments += [f"{key}={value}" for key, value in given.items()]
        log_file = self._directory / f"{name}.log"
        command = self._streams.command("WordCounts", arguments)
        return Instance(self._started.enter_context(child(command, log_file, {})), log_file)

    def reset(self, java: Java, *options: str) -> None:
        """Runs `kafka-streams-application-reset`. Raises `JavaFailed`."""
        by = ("--bootstrap-server", self.servers, "--application-id", self.name)
        java.tool("StreamsResetter", *by, "--input-topics", self.sentences, *options)

    def internal_topics(self) -> list[str]:
        """The changelogs and the topic for repartition."""
        given = {self.sentences, *self.outputs}
        names = self.admin.list_topics(timeout=60).topics
        return sorted(name for name in names if name.startswith(self.name) and name not in given)

    def kill_and_restart_an_agent(self, index: int) -> None:
        self._stack.kill(index)
        time.sleep(1.0)  # The load meets its absence.
        self._stack.restart(index)

    def changelog(self, store: str) -> str:
        return f"{self.name}-{store}-changelog"

    def policy_of(self, topic: str) -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self.admin.describe_configs([resource], request_timeout=60)[resource].result(90)
        return str(found["cleanup.policy"].value)

    def bounds(self, topic: str) -> tuple[list[int], list[int]]:
        """Log start and high watermark of each partition."""
        with closing(Consumer(_reading(self.servers))) as asks:
            found = [asks.get_watermark_offsets(TopicPartition(topic, p), 60) for p in range(PARTITIONS)]
        assert None not in found
        return [start for start, _ in found], [end for _, end in found]

    def read(self, topic: str) -> Records:
        """What is there now and committed, each partition in order."""
        settings = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        consumer = Consumer({**_reading(self.servers), **settings})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        records: Records = []
        at_end: set[int | None] = set()
        until = time.monotonic() + PATIENCE_S
        while len(at_end) < PARTITIONS:
            assert time.monotonic() < until, f"{topic} was read to the end only in {at_end}"
            for message in consumer.consume(500, 0.2):
                error, key = message.error(), message.key()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
                    continue
                if error is not None:
                    assert error.retriable() or error.code() in _AWAY, error
                    continue
                assert isinstance(key, bytes)
                records.append((key, message.value()))
        consumer.close()
        return records

    def wait_until_cleaned(self) -> None:
        """Returns when agents have taken at least half of the records out of each changelog."""
        until = time.monotonic() + PATIENCE_S
        for store in STORES:
            left, written = 1, 1
            while 2 * left > written:
                assert time.monotonic() < until, f"{left} of {written} records of {store} are still there"
                time.sleep(0.2)
                written = sum(self.bounds(self.changelog(store))[1])
                left = len(self.read(self.changelog(store)))

    def wait_until_purged(self) -> None:
        """Returns when Streams has deleted more than half of each partition of its repartition topic."""
        until = time.monotonic() + PATIENCE_S
        while True:
            starts, ends = self.bounds(f"{self.name}-words-repartition")
            if all(2 * start > end > 0 for start, end in zip(starts, ends, strict=True)):
                return
            assert time.monotonic() < until, f"it keeps {starts} to {ends}"
            time.sleep(0.2)

    def changelog_of_numbers(self) -> dict[str, int]:
        """As a store that is restored from it would have it."""
        table = dict(self.read(self.changelog("numbers")))
        return {word.decode(): int(value, 16) for word, value in table.items() if value is not None}


@pytest.fixture(scope="module")
def streams(request: pytest.FixtureRequest, matrix: Matrix) -> Java:
    """`WordCounts.java`, compiled."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise ToolchainAbsent("kafka-streams", tool)
    java: Java = request.getfixturevalue("java")
    (version,) = {
        each.attrib["rev"]
        for each in ElementTree.parse(_MODULES).iter("dependency")
        if each.attrib["name"] == "kafka-streams"
    }
    matrix.note_version("kafka-streams", version)
    return replace(java, classpath=classpath_of(jars_of(_MODULES))).compiled(_SOURCE)


@pytest.fixture
def application(
    streams: Java, new_stack: Callable[..., Stack], stack_directory: Path
) -> Iterator[Application]:
    """Two agents, and nothing that runs on them yet."""
    stack = new_stack(agents=2, agent_environment=AGENTS)
    with ExitStack() as started:
        yield Application(streams, stack, stack_directory / "instances", started)


@tried(
    "kafka-streams",
    "stores restored from compacted changelogs",
    "windowed stores",
    "standby replicas",
    "repartition topics, records deleted",
    "an instance dies",
    "an agent dies",
)
@pytest.mark.timeout(600)
def test_stores_outlive_instances_and_an_agent_while_their_changelogs_are_cleaned(
    application: Application,
) -> None:
    lose_instances_and_an_agent(application)


@tried("kafka-streams", "the streams rebalance protocol (KIP-1071)")
@pytest.mark.timeout(600)
def test_stores_outlive_instances_and_an_agent_in_a_streams_group(
    application: Application, java: Java
) -> None:
    """Two threads per instance, one standby copy."""
    group = ("--bootstrap-server", application.servers, "--group", application.name)
    entity = ("--bootstrap-server", application.servers, "--entity-type", "groups", "--alter")
    config = ("--entity-name", application.name, "--add-config", "streams.num.standby.replicas=1")
    java.run("kafka.admin.ConfigCommand", (*entity, *config))
    application.settings |= {"group.protocol": "streams", "num.stream.threads": "2"}

    lose_instances_and_an_agent(application)

    listed = java.tool(_STREAMS_GROUPS, "--bootstrap-server", application.servers, "--list").split()
    state = java.tool(_STREAMS_GROUPS, *group, "--describe", "--state")
    members = java.tool(_STREAMS_GROUPS, *group, "--describe", "--members")
    offsets = java.tool(_STREAMS_GROUPS, *group, "--describe", "--offsets")
    assert listed == [application.name]
    assert "Stable" in state
    assert members.count("third-StreamThread") == 2
    assert {f"{application.name}-words-repartition", application.sentences} <= set(offsets.split())


@tried("kafka-streams", "exactly once in a streams group")
@pytest.mark.timeout(600)
def test_a_streams_group_counts_exactly_once(application: Application) -> None:
    [seed] = seeds(1)
    application.settings |= {"group.protocol": "streams", "processing.guarantee": "exactly_once_v2"}
    first, second = application.start("first"), application.start("second")
    first.wait_until_running()
    second.wait_until_running()
    writer = Writer(application.servers, application.sentences, seed)
    outputs = Outputs(application.servers, application.outputs)

    with load(writer):
        outputs.wait_for(writer.expected_after_more())
        first.kill()
        application.kill_and_restart_an_agent(Random(seed).randrange(2))
        outputs.wait_for(writer.expected_after_more())
    outputs.wait_for(writer.expected())

    assert outputs.last == writer.expected()
    outputs.close()


def lose_instances_and_an_agent(application: Application) -> None:
    """Writes, kills an instance, an agent and another instance, and compares the results. The third instance
    is left.
    """
    [seed] = seeds(1)
    first, second = application.start("first"), application.start("second")
    first.wait_until_running()
    second.wait_until_running()
    writer = Writer(application.servers, application.sentences, seed)
    outputs = Outputs(application.servers, application.outputs)

    # Nothing is killed yet.
    for _ in range(3):
        writer.write(120)
        outputs.wait_for(writer.expected())
    application.wait_until_cleaned()
    application.wait_until_purged()
    assert outputs.last == writer.expected()
    assert application.changelog_of_numbers() == writer.expected().numbers
    assert application.policy_of(application.changelog("counts")) == "compact"
    assert set(application.policy_of(application.changelog("windows")).split(",")) == {"compact", "delete"}
    for instance in (first, second):
        instance.wait_until(lambda each: each.restored("standby").keys() == set(STORES), "a standby")

    with load(writer):
        first.kill()
        third = application.start("third")
        third.wait_until_running()
        outputs.wait_for(writer.expected_after_more())

        application.kill_and_restart_an_agent(Random(seed).randrange(2))
        outputs.wait_for(writer.expected_after_more())

        second.kill()
        outputs.wait_for(writer.expected_after_more())
    writer.write(120)
    outputs.wait_for(writer.expected())

    expected, taken = writer.expected(), third.restored("restored") + third.restored("standby")
    assert outputs.last.numbers == expected.numbers
    assert application.changelog_of_numbers() == expected.numbers
    print(
        f"third took {taken} from the changelogs; {outputs.last.counts - expected.counts} were counted twice"
    )
    assert all(taken[store] >= len(WORDS) for store in STORES), taken
    application.wait_until_purged()
    outputs.close()


@tried("kafka-streams", "exactly once")
@pytest.mark.timeout(600)
def test_each_sentence_counts_once_although_instances_and_an_agent_die(
    application: Application,
) -> None:
    [seed] = seeds(1)
    first = application.start("first", **EXACTLY_ONCE)
    second = application.start("second", **EXACTLY_ONCE)
    first.wait_until_running()
    second.wait_until_running()
    writer = Writer(application.servers, application.sentences, seed)
    outputs = Outputs(application.servers, application.outputs)
    writer.write(120)
    outputs.wait_for(writer.expected())
    assert outputs.last == writer.expected()

    with load(writer):
        first.kill()
        third = application.start("third", **EXACTLY_ONCE)
        third.wait_until_running()
        outputs.wait_for(writer.expected_after_more())

        application.kill_and_restart_an_agent(Random(seed).randrange(2))
        outputs.wait_for(writer.expected_after_more())

        second.kill()
        outputs.wait_for(writer.expected_after_more())
    writer.write(120)
    outputs.wait_for(writer.expected())
    third.kill()

    # All tasks restore their stores, and go on with what the dead ones have committed.
    fourth = application.start("fourth", **EXACTLY_ONCE)
    writer.write(120)
    outputs.wait_for(writer.expected())
    expected, taken = writer.expected(), fourth.restored("restored")
    assert outputs.last.counts - expected.counts == Counter()
    assert outputs.last == expected
    assert application.changelog_of_numbers() == expected.numbers
    assert all(taken[store] >= len(WORDS) for store in STORES), taken
    outputs.close()


@tried("kafka-streams", "application reset")
@pytest.mark.timeout(600)
def test_an_application_that_is_reset_begins_again(application: Application, java: Java) -> None:
    [seed] = seeds(1)
    first = application.start("first")
    first.wait_until_running()
    writer = Writer(application.servers, application.sentences, seed)
    outputs = Outputs(application.servers, application.outputs)
    writer.write(120)
    outputs.wait_for(writer.expected())
    written = len(application.read(application.outputs[0]))
    assert application.internal_topics()

    with pytest.raises(JavaFailed, match="still active"):
        application.reset(java)
    first.kill()
    # The group still has the dead member.
    application.reset(java, "--force")
    assert application.internal_topics() == []

    application.start("second").wait_until_running()
    writer.write(120)
    outputs.wait_for(writer.expected())
    # Stores that were left would count the first sentences twice, offsets that were left never again.
    assert outputs.last == writer.expected()
    assert len(application.read(application.outputs[0])) == 3 * written
    outputs.close()
