"""Tools that come with Apache Kafka, where an agent differs from a broker: log directories, replicas, leaders
and transactions.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import psycopg
import pytest

from tests.clients.conftest import NewTopic
from tests.support.java import Java, JavaFailed
from tidelog.devstack.stack import Stack

_REASSIGN = "reassign.ReassignPartitionsCommand"


def _said_by(java: Java, name: str, *arguments: str) -> str:
    """What one of `org.apache.kafka.tools` says, whether it fails or not."""
    try:
        return java.tool(name, *arguments)
    except JavaFailed as failed:
        return str(failed)


def _produce(servers: str, topic: str, size: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 5})
    producer.produce(topic, value=b"v" * size, partition=0)
    assert producer.flush(30) == 0


def test_log_dirs_command_shows_every_partition_once_per_zone(
    java: Java, new_topic: NewTopic, zone_a: str
) -> None:
    topic = new_topic(3)
    _produce(zone_a, topic, 5_000)

    shown = java.tool("LogDirsCommand", "--bootstrap-server", zone_a, "--describe", "--topic-list", topic)

    (found,) = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    for broker in found["brokers"]:
        (directory,) = broker["logDirs"]
        sizes = {partition["partition"]: partition["size"] for partition in directory["partitions"]}
        assert sizes.keys() == {f"{topic}-{number}" for number in range(3)}
        assert sizes[f"{topic}-0"] > 5_000
        assert sizes[f"{topic}-1"] == sizes[f"{topic}-2"] == 0
    assert len(found["brokers"]) == 2


def test_tools_say_that_replicas_are_never_moved(
    java: Java, new_topic: NewTopic, zone_a: str, session_directory: Path
) -> None:
    topic, by = new_topic(2), ("--bootstrap-server", zone_a)
    plan = session_directory / f"{topic}.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]})
    )
    file = ("--reassignment-json-file", str(plan))

    assert "replicas cannot be moved" in _said_by(java, _REASSIGN, *by, "--execute", *file)
    cancelled = java.tool(_REASSIGN, *by, "--cancel", *file)
    assert "None of the specified partition reassignments are active" in cancelled
    assert "No partition reassignments found" in java.tool(_REASSIGN, *by, "--list")


def test_tools_say_that_there_is_no_leader_to_elect(java: Java, new_topic: NewTopic, zone_a: str) -> None:
    topic, by = new_topic(1), ("--bootstrap-server", zone_a)
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")

    assert "already elected" in java.tool("LeaderElectionCommand", *by, *election)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """`kafka-transactions` on one agent."""

    java: Java
    servers: str

    def run(self, *arguments: str) -> list[list[str]]:
        """The rows of the table that it prints, without the header."""
        printed = self.java.tool("TransactionsCommand", "--bootstrap-server", self.servers, *arguments)
        rows = [line.removesuffix("\t").split("\t") for line in printed.splitlines()[1:]]
        return [[cell.strip() for cell in row] for row in rows]

    def described(self, transactional_id: str) -> dict[str, str]:
        (row,) = self.run("describe", "--transactional-id", transactional_id)
        names = (
            "coordinator",
            "id",
            "producer",
            "epoch",
            "state",
            "timeout",
            "start",
            "duration",
            "partitions",
        )
        return dict(zip(names, row, strict=True))


@pytest.fixture
def transactions(java: Java, zone_a: str) -> Transactions:
    return Transactions(java=java, servers=zone_a)


def _open_transaction(servers: str, topic: str, partitions: int = 1) -> confluent_kafka.Producer:
    """One record in each partition, an hour old. The transactional id is that of the topic."""
    # The tools take their time on a busy machine.
    settings = {"transactional.id": topic, "transaction.timeout.ms": 600_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(partitions):
        an_hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
        producer.produce(topic, value=b"open", partition=partition, timestamp=an_hour_ago_ms)
    assert producer.flush(60) == 0
    return producer


def test_transactions_command_describes_an_open_transaction_and_its_producer(
    transactions: Transactions, new_topic: NewTopic, zone_a: str
) -> None:
    topic = new_topic(2)
    producer = _open_transaction(zone_a, topic, partitions=2)

    (listed,) = [row for row in transactions.run("list") if row[0] == topic]
    described = transactions.described(topic)
    (active,) = transactions.run("describe-producers", "--topic", topic, "--partition", "1")

    assert listed[3] == described["state"] == "Ongoing"
    assert listed[2] == described["producer"] == active[0]
    assert described["epoch"] == active[1]
    assert sorted(described["partitions"].split(",")) == [f"{topic}-0", f"{topic}-1"]
    assert int(described["duration"]) >= 0
    assert active[-1] == "0"

    producer.commit_transaction(60)
    described = transactions.described(topic)
    (active,) = transactions.run("describe-producers", "--topic", topic, "--partition", "1")
    assert described["state"] == "CompleteCommit"
    assert described["start"] == described["duration"] == active[-1] == "None"
    assert described["partitions"] == ""


def test_transactions_command_finds_no_hanging_transaction_in_an_open_one(
    transactions: Transactions, new_topic: NewTopic, zone_a: str
) -> None:
    """Its record is older than the 15 minutes that the tool takes as the longest timeout."""
    topic = new_topic(1)
    producer = _open_transaction(zone_a, topic)

    assert transactions.run("find-hanging", "--topic", topic) == []

    producer.abort_transaction(60)


def test_transactions_command_finds_and_aborts_a_transaction_that_has_lost_its_id(
    transactions: Transactions, new_topic: NewTopic, zone_a: str, running: Stack
) -> None:
    """The only transaction that hangs here: somebody deleted its row, so no time-out finds it."""
    topic = new_topic(2)
    producer = _open_transaction(zone_a, topic, partitions=2)
    described = transactions.described(topic)
    with psycopg.connect(running.addresses.database_url) as connection:
        connection.execute("DELETE FROM transactions WHERE transactional_id = %s", (topic,))

    found = transactions.run("find-hanging", "--topic", topic)

    assert sorted((row[0], row[1], row[2]) for row in found) == [
        (topic, str(partition), described["producer"]) for partition in range(2)
    ]
    start_offset = found[0][5]
    transactions.run("abort", "--topic", topic, "--partition", found[0][1], "--start-offset", start_offset)
    assert transactions.run("find-hanging", "--topic", topic) == []
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(60)
    committed = confluent_kafka.Consumer({"bootstrap.servers": zone_a, "group.id": topic})
    end = committed.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 1), timeout=60)[1]
    committed.close()
    assert end == 2, "the record and the marker: the abort ended both partitions"


def test_transactions_command_aborts_what_an_administrator_names(
    transactions: Transactions, new_topic: NewTopic, zone_a: str
) -> None:
    def by_offset(topic: str) -> tuple[str, ...]:
        return ("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")

    def by_producer(topic: str) -> tuple[str, ...]:
        found = transactions.described(topic)
        named = ("--producer-id", found["producer"], "--producer-epoch", found["epoch"])
        return ("abort", "--topic", topic, "--partition", "0", *named, "--coordinator-epoch", "0")

    def by_id(topic: str) -> tuple[str, ...]:
        return ("forceTerminateTransaction", "--transactionalId", topic)

    # Kafka's own step by id gives the id to a new producer, whose state is `Empty`.
    for naming, state in ((by_offset, "CompleteAbort"), (by_producer, "CompleteAbort"), (by_id, "Empty")):
        topic = new_topic(2)
        producer = _open_transaction(zone_a, topic, partitions=2)

        transactions.run(*naming(topic))

        described = transactions.described(topic)
        assert (described["state"], described["partitions"]) == (state, ""), naming
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(60)
