"""Tools that come with Apache Kafka, where an agent differs from a broker: log directories, replicas, leaders
and transactions.
"""

import json
from pathlib import Path

import confluent_kafka

from tests.clients.conftest import NewTopic
from tests.support.java import Java, JavaFailed

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


def test_tools_say_that_there_is_no_leader_to_elect_and_no_transaction(
    java: Java, new_topic: NewTopic, zone_a: str
) -> None:
    topic, by = new_topic(1), ("--bootstrap-server", zone_a)
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")

    assert "already elected" in java.tool("LeaderElectionCommand", *by, *election)
    assert java.tool("TransactionsCommand", *by, "list").split() == [
        "TransactionalId",
        "Coordinator",
        "ProducerId",
        "TransactionState",
    ]
