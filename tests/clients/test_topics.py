"""Topics as each client's administration makes, describes, grows and deletes them, and what is refused.

Clients that know of several agents ask any of them. As in Kafka, a topic that grew through one agent is seen
so in the Metadata of the others a moment later, so that these claims wait for it.
"""

import asyncio
import uuid
from collections.abc import Mapping
from pathlib import Path

import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import KafkaError

from tests.clients.adapters import DEADLINE_S, Client, Sent
from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried
from tests.support.java import Java
from tests.support.waiting import wait_until


def _name() -> str:
    return f"made-{uuid.uuid4().hex[:8]}"


def _admin(servers: str) -> confluent_kafka.admin.AdminClient:
    """To be kept until its answers are there: a request ends with its client."""
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})


def _config(servers: str, topic: str) -> Mapping[str, str]:
    admin = _admin(servers)
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource], request_timeout=30)[resource].result(DEADLINE_S)
    return {name: entry.value for name, entry in entries.items()}


@tried("kafka-clients", "admin: create, describe, grow, delete topics")
def test_java_creates_describes_grows_and_deletes_a_topic(java: Java, zone_a: str, zone_b: str) -> None:
    name, servers = _name(), ("--bootstrap-server", zone_a)

    java.tool(
        "TopicCommand",
        *servers,
        "--create",
        "--topic",
        name,
        "--partitions",
        "3",
        "--config",
        "retention.ms=7200000",
    )
    described = java.tool("TopicCommand", "--bootstrap-server", zone_b, "--describe", "--topic", name)
    assert "PartitionCount: 3" in described
    assert "retention.ms=7200000" in described
    assert (
        sum(line.lstrip().startswith("Topic:") and "Partition: " in line for line in described.splitlines())
        == 3
    )

    java.tool("TopicCommand", *servers, "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in java.tool("TopicCommand", *servers, "--describe", "--topic", name)

    java.tool("TopicCommand", *servers, "--delete", "--topic", name)
    assert name not in java.tool("TopicCommand", *servers, "--list").split()


@tried("confluent-kafka", "admin: create, describe, grow, delete topics")
def test_confluent_creates_describes_grows_and_deletes_a_topic(
    new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    config = {
        "retention.ms": "3600000",
        "max.message.bytes": "123456",
        "message.timestamp.type": "LogAppendTime",
    }
    name = new_topic(2, "confluent", config)
    admin = _admin(zone_a)

    assert config.items() <= _config(zone_b, name).items()
    assert _config(zone_b, name)["cleanup.policy"] == "delete"
    collection = confluent_kafka.TopicCollection([name])
    described = admin.describe_topics(collection, request_timeout=30)[name].result(DEADLINE_S)
    assert len(described.partitions) == 2

    admin.create_partitions([confluent_kafka.admin.NewPartitions(name, 4)], request_timeout=30)[name].result(
        DEADLINE_S
    )
    wait_until(lambda: len(admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions) == 4)

    admin.delete_topics([name], request_timeout=30)[name].result(DEADLINE_S)
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


@tried("kafka-python", "admin: create, describe, grow, delete topics")
def test_kafka_python_creates_describes_grows_and_deletes_a_topic(zone_a: str) -> None:
    name = _name()
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=zone_a)
    try:
        admin.create_topics([kafka.admin.NewTopic(name, 2, 1)])
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics([kafka.admin.NewTopic(name, 2, 1)])
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 2
        admin.create_partitions({name: kafka.admin.NewPartitions(4)})
        wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 4)
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


@tried("aiokafka", "admin: create, describe, grow, delete topics")
def test_aiokafka_creates_describes_grows_and_deletes_a_topic(zone_a: str) -> None:
    async def run() -> None:
        name = _name()
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=zone_a)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1)])
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 2
            await admin.create_partitions({name: aiokafka.admin.NewPartitions(4)})
            while len((await admin.describe_topics([name]))[0]["partitions"]) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await admin.delete_topics([name])
            assert name not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


@pytest.mark.parametrize(
    "config", [{"retention.ms": "soon"}, {"no.such.setting": "1"}, {"cleanup.policy": "squash"}]
)
def test_a_setting_that_cannot_be_is_refused(config: dict[str, str], zone_a: str) -> None:
    admin, topic = _admin(zone_a), confluent_kafka.admin.NewTopic(_name(), 1, 1, config=config)

    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.create_topics([topic], request_timeout=30)[topic.topic].result(DEADLINE_S)

    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert next(iter(config)) in refused.value.args[0].str()


@pytest.mark.parametrize("partitions", [0, -2, 2_000_000_000])
def test_a_number_of_partitions_that_cannot_be_is_refused(partitions: int, zone_a: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=zone_a)
    try:
        with pytest.raises((kafka.errors.InvalidPartitionsError, kafka.errors.PolicyViolationError)):
            admin.create_topics([kafka.admin.NewTopic(_name(), partitions, 1)])
    finally:
        admin.close()


@pytest.mark.parametrize("name", ["", "..", "with space", "x" * 250, "slash/es"])
def test_a_name_that_cannot_be_is_refused(name: str, zone_a: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=zone_a)
    try:
        with pytest.raises(kafka.errors.InvalidTopicError):
            admin.create_topics([kafka.admin.NewTopic(name, 1, 1)])
    finally:
        admin.close()


def test_log_append_time_is_the_agents_and_every_client_sees_it_so(
    clients: Mapping[str, Client], new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    name = new_topic(1, "append-time", {"message.timestamp.type": "LogAppendTime"})
    for client, compression in (("java", "zstd"), ("confluent-kafka", "lz4"), ("aiokafka", "none")):
        clients[client].produce(
            zone_a, name, 0, [Sent(key=b"k", value=b"%d" % i, timestamp_ms=i) for i in range(3)], compression
        )

    readings = {client: read.consume(zone_b, [name])[name, 0] for client, read in clients.items()}

    first = readings["java"]
    assert [record.offset for record in first] == list(range(9))
    assert all(record.log_append_time for record in first)
    assert all(record.timestamp_ms > 1_700_000_000_000 for record in first)
    assert [record.timestamp_ms for record in first] == sorted(record.timestamp_ms for record in first)
    assert all(reading == first for reading in readings.values())


def test_an_unknown_topic_is_said_to_be_unknown(zone_a: str) -> None:
    admin, name = _admin(zone_a), _name()

    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.delete_topics([name], request_timeout=30)[name].result(DEADLINE_S)

    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_producer_performance_sends_all_its_records(
    java: Java, new_topic: NewTopic, zone_a: str, tmp_path: Path
) -> None:
    name = new_topic(3, "performance")
    settings = tmp_path / "producer.properties"
    settings.write_text(f"bootstrap.servers={zone_a}\ncompression.type=lz4\nclient.id=tidelog_zone=a\n")
    load = ("--num-records", "20000", "--record-size", "200", "--throughput", "-1")

    printed = java.tool("ProducerPerformance", "--topic", name, *load, "--producer.config", str(settings))

    assert "20000 records sent" in printed
    offsets = java.tool("GetOffsetShell", "--bootstrap-server", zone_a, "--topic", name).split()
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets) == 20_000
