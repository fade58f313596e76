"""Transactions of librdkafka: what consumers of committed data see, offsets in transactions, and fencing."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as CreatedTopic

from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried
from tests.clients.transactional import Confluent
from tests.support.java import Java
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two agents in zones a and b that clean soon, and soon abort a transaction whose timeout is over."""
    environment = {
        "TIDELOG_TRANSACTION_TIMEOUT_INTERVAL_S": "0.3",
        "TIDELOG_CLEAN_INTERVAL_S": "0.3",
        "TIDELOG_JOURNAL_INTERVAL_S": "0.3",  # a cleaning waits for the journal
        "TIDELOG_COORDINATE_MAX_AGE_S": "1",
        "TIDELOG_GARBAGE_GRACE_S": "3",
        "TIDELOG_OWNERSHIP_RATCHET_S": "1",
    }
    folder = tmp_path_factory.mktemp("transactions")
    with Stack(
        StackSettings(environment=HERE, data_dir=folder / "stack", agent_environment=environment)
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def agent_a(stack: Stack) -> str:
    return stack.agent_in("a").address.bootstrap


@pytest.fixture(scope="module")
def agent_b(stack: Stack) -> str:
    return stack.agent_in("b").address.bootstrap


@pytest.fixture(scope="module")
def new_topic(agent_a: str) -> NewTopic:
    admin = AdminClient({"bootstrap.servers": agent_a})

    def create(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        topic = CreatedTopic(name, partitions, 1, config=dict(config or {}))
        admin.create_topics([topic], request_timeout=30)[name].result(60)
        return name

    return create


def a_producer(servers: str, transactional_id: str, **config: object) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "linger.ms": 5,
            **config,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def read(
    servers: str, topic: str, partitions: Sequence[int] = (0,), *, isolation: str = "read_committed"
) -> list[bytes]:
    """All values up to the end that this isolation shows, partition after partition."""
    found = Confluent().read(servers, topic, partitions, committed=isolation == "read_committed")
    return [value.encode() for partition in partitions for value in found[partition]]


@tried("confluent-kafka", "consume: committed", "transactions: produce")
def test_committed_records_are_seen_together_and_aborted_ones_never(
    agent_a: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    producer = a_producer(agent_a, f"{topic}-tx")
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.flush(TIMEOUT_S)
        if number == 3:
            assert read(agent_a, topic, (0, 1)) == [b"0", b"2"] * 2
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)

    assert read(agent_a, topic, (0, 1)) == [b"0", b"2", b"4"] * 2
    assert read(agent_a, topic, isolation="read_uncommitted") == [b"%d" % number for number in range(6)]


def test_agents_of_both_zones_show_the_same_committed_records(
    agent_a: str, agent_b: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    producer = a_producer(agent_a, f"{topic}-tx")
    for number in range(20):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        (producer.abort_transaction if number % 3 == 0 else producer.commit_transaction)(TIMEOUT_S)

    expected = [b"%d" % number for number in range(20) if number % 3]
    assert read(agent_a, topic) == expected
    assert read(agent_b, topic) == expected


def test_a_waiting_consumer_sees_a_transaction_once_it_is_committed(
    agent_a: str, agent_b: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    consumer = Consumer(
        {"bootstrap.servers": agent_b, "group.id": "unused", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    producer = a_producer(agent_a, f"{topic}-tx")
    producer.begin_transaction()
    producer.produce(topic, b"late", partition=0)
    producer.flush(TIMEOUT_S)
    assert consumer.poll(1.5) is None
    producer.commit_transaction(TIMEOUT_S)

    message = consumer.poll(TIMEOUT_S)

    assert message is not None
    assert message.value() == b"late"
    consumer.close()


def test_a_newer_producer_of_the_id_fences_the_older_one(agent_a: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    zombie = a_producer(agent_a, f"{topic}-tx")
    zombie.begin_transaction()
    zombie.produce(topic, b"of the zombie", partition=0)
    zombie.flush(TIMEOUT_S)

    newer = a_producer(agent_a, f"{topic}-tx")
    newer.begin_transaction()
    newer.produce(topic, b"of the newer one", partition=0)
    newer.commit_transaction(TIMEOUT_S)

    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert read(agent_a, topic) == [b"of the newer one"]


@tried("confluent-kafka", "transactions: offsets")
def test_each_input_has_one_effect_when_offsets_are_committed_in_the_transaction(
    agent_a: str, new_topic: NewTopic
) -> None:
    source, target = new_topic(2), new_topic(2)
    feeder = Producer({"bootstrap.servers": agent_a})
    for number in range(40):
        feeder.produce(source, b"%d" % number, partition=number % 2)
    assert feeder.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": agent_a,
            "group.id": f"{source}-group",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    producer = a_producer(agent_a, f"{target}-tx")

    done, rounds = 0, 0
    while done < 40:
        messages = consumer.consume(5, timeout=1.0)
        if not messages:
            continue
        rounds += 1
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None, message.error()
            partition = message.partition()
            assert partition is not None
            producer.produce(target, message.value(), partition=partition)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if rounds % 3 == 2:
            producer.abort_transaction(TIMEOUT_S)
            for committed in consumer.committed(consumer.assignment(), TIMEOUT_S):
                consumer.seek(TopicPartition(committed.topic, committed.partition, max(0, committed.offset)))
            continue
        producer.commit_transaction(TIMEOUT_S)
        done += len(messages)
    consumer.close()

    values = read(agent_a, target, (0, 1))
    assert values == [b"%d" % number for number in (*range(0, 40, 2), *range(1, 40, 2))]


def test_javas_producer_uses_the_newer_protocol(java: Java, agent_a: str, new_topic: NewTopic) -> None:
    """transaction.version 2 (KIP-890): its epoch rises with each transaction."""
    topic = new_topic(3)

    java.tool(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "3000", "--record-size", "20", "--throughput", "3000"),
        *("--transaction-duration-ms", "50", "--transactional-id", f"{topic}-tx"),
        *("--producer-props", f"bootstrap.servers={agent_a}", "linger.ms=5"),
    )

    assert len(read(agent_a, topic, range(3))) == 3000
    described = java.tool(
        "TransactionsCommand", "--bootstrap-server", agent_a, "describe", "--transactional-id", f"{topic}-tx"
    )
    assert "CompleteCommit" in described
    epoch = int(described.splitlines()[-1].split()[3])
    assert epoch > 2


def test_a_transaction_that_spans_agents_is_one(agent_a: str, agent_b: str, new_topic: NewTopic) -> None:
    """Partitions of many agents, more than one request holds."""
    topic = new_topic(12)
    producer = a_producer(agent_a, f"{topic}-tx", **{"batch.num.messages": 10})
    producer.begin_transaction()
    for number in range(600):
        producer.produce(topic, b"%d" % number, partition=number % 12)
    producer.commit_transaction(TIMEOUT_S)
    producer.begin_transaction()
    for number in range(600):
        producer.produce(topic, b"not %d" % number, partition=number % 12)
    producer.abort_transaction(TIMEOUT_S)

    values = read(agent_b, topic, range(12))
    assert sorted(values) == sorted(b"%d" % number for number in range(600))


def test_a_transaction_that_takes_too_long_is_aborted(agent_a: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    slow = a_producer(agent_a, f"{topic}-tx", **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce(topic, b"slow", partition=0)
    slow.flush(TIMEOUT_S)
    other = Producer({"bootstrap.servers": agent_a})
    other.produce(topic, b"behind it", partition=0)
    assert other.flush(TIMEOUT_S) == 0

    until = time.monotonic() + TIMEOUT_S
    while read(agent_a, topic) != [b"behind it"]:
        assert time.monotonic() < until, "the transaction is still open"
        time.sleep(0.2)
    with pytest.raises(KafkaException):
        slow.commit_transaction(TIMEOUT_S)


def test_a_cleaning_of_an_aborted_transaction_hides_no_later_one(
    stack: Stack, java: Java, agent_a: str, agent_b: str, new_topic: NewTopic
) -> None:
    """Agents may still know of the aborted transaction when its marker is gone. A client that was told of it
    would drop all that its producer committed later."""
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
    topic = new_topic(1, settings)
    producer = a_producer(agent_a, f"{topic}-tx")
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, b"not %d" % number, key=b"%d" % number, partition=0)
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    for servers in (agent_a, agent_b):  # which now know the aborted transaction
        assert read(servers, topic) == []
    with psycopg.connect(stack.postgres.url(), autocommit=True) as connection:
        until = time.monotonic() + TIMEOUT_S
        while connection.execute(
            "SELECT 1 FROM aborted_transactions JOIN topics USING (topic_id) WHERE name = %s", [topic]
        ).fetchall():
            assert time.monotonic() < until, "the marker is still there"
            time.sleep(0.2)
    expected: list[bytes] = []
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, key=b"%d" % number, partition=0)
        producer.commit_transaction(TIMEOUT_S)
        expected.append(b"%d" % number)
        for servers in (agent_a, agent_b):
            assert read(servers, topic) == expected
    for servers in (agent_a, agent_b):  # which may serve what they have cached
        until = time.monotonic() + TIMEOUT_S
        while read(servers, topic, isolation="read_uncommitted") != expected:
            assert time.monotonic() < until, "the aborted records are still there"
            assert read(servers, topic) == expected
        assert read(servers, topic) == expected
    java_read = java.tool(
        *("consumer.ConsoleConsumer", "--bootstrap-server", agent_a, "--topic", topic, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", "3", "--isolation-level", "read_committed"),
        *("--timeout-ms", "20000"),
    )
    assert java_read.split()[:3] == ["0", "1", "2"]
