"""Administration by each client's own admin: groups, their offsets, records, configs and the cluster."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from functools import partial

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions

from tests.clients.adapters import DEADLINE_S, JavaClient, Sent
from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried
from tests.clients.members.process import members_of, python

_GROUPS = ("admin: list and describe groups", "admin: delete groups", "admin: delete offsets of groups")


@pytest.fixture
def group(new_topic: NewTopic, zone_a: str) -> tuple[str, str]:
    """A topic of two partitions with ten records, and a group that committed all of them and has no member
    left.
    """
    topic, name = new_topic(2), f"group-{uuid.uuid4().hex[:8]}"
    producer = confluent_kafka.Producer({"bootstrap.servers": zone_a})
    for number in range(10):
        producer.produce(topic, value=str(number), partition=number % 2)
    assert producer.flush(30) == 0
    with members_of(python("confluent"), "--servers", zone_a, "--group", name, "--topics", topic) as start:
        member = start("member")
        member.until(lambda one: len(one.records) == 10, "all records")
        assert member.commit() == {(topic, 0): 5, (topic, 1): 5}
        member.leave()
    return topic, name


@tried("confluent-kafka", *_GROUPS, "offsets: commit and fetch")
def test_confluent_administers_a_group(group: tuple[str, str], zone_a: str, zone_b: str) -> None:
    topic, name = group
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": zone_b})

    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(DEADLINE_S)
    assert name in {found.group_id for found in listed.valid}
    assert not listed.errors
    described = admin.describe_consumer_groups([name])[name].result(DEADLINE_S)
    assert described.state is ConsumerGroupState.EMPTY
    assert f"{described.coordinator.host}:{described.coordinator.port}" in (zone_a, zone_b)

    moved = [ConsumerGroupTopicPartitions(name, [confluent_kafka.TopicPartition(topic, 0, 3)])]
    admin.alter_consumer_group_offsets(moved)[name].result(DEADLINE_S)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(DEADLINE_S)
    assert {(each.partition, each.offset) for each in found.topic_partitions} == {(0, 3), (1, 5)}

    dropped = admin.delete_consumer_groups([name])
    dropped[name].result(DEADLINE_S)
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert name not in {found.group_id for found in listed.valid}
    with pytest.raises(confluent_kafka.KafkaException, match="group id"):
        admin.delete_consumer_groups([name])[name].result(DEADLINE_S)


@tried("kafka-python", *_GROUPS, "admin: delete records", "admin: configs", "admin: describe cluster")
def test_kafka_python_administers_a_group_and_its_topic(
    group: tuple[str, str], zone_a: str, zone_b: str
) -> None:
    topic, name = group
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=zone_b)
    try:
        assert name in {found["group_id"] for found in admin.list_groups()}
        described = admin.describe_groups([name])[name]
        assert described["group_state"] == "Empty"
        places = [kafka.TopicPartition(topic, partition) for partition in (0, 1)]
        offsets = admin.list_group_offsets({name: None})[name]
        assert {place.partition: found.offset for place, found in offsets.items()} == {0: 5, 1: 5}

        admin.delete_group_offsets(name, [places[0]])
        assert places[0] not in admin.list_group_offsets({name: None})[name]
        admin.delete_groups([name])
        assert name not in {found["group_id"] for found in admin.list_groups()}

        assert admin.delete_records({places[1]: 2})[places[1]]["low_watermark"] == 2
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, topic, {"retention.ms": "86400000"}
        )
        admin.alter_configs([resource])
        assert "86400000" in str(admin.describe_configs([resource]))
        brokers = {f"{broker['host']}:{broker['port']}" for broker in admin.describe_cluster()["brokers"]}
        assert brokers == {zone_a, zone_b}
    finally:
        admin.close()


@tried(
    "aiokafka",
    "admin: list and describe groups",
    "admin: delete records",
    "admin: configs",
    "admin: describe cluster",
)
def test_aiokafka_administers_a_group_and_its_topic(group: tuple[str, str], zone_a: str, zone_b: str) -> None:
    topic, name = group

    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=zone_a)
        await admin.start()
        try:
            assert name in {found[0] for found in await admin.list_consumer_groups()}
            (described,) = await admin.describe_consumer_groups([name])
            assert "Empty" in str(described)
            offsets = await admin.list_consumer_group_offsets(name)
            assert {place.partition: found.offset for place, found in offsets.items()} == {0: 5, 1: 5}

            place = aiokafka.TopicPartition(topic, 1)
            deleted = await admin.delete_records({place: aiokafka.admin.RecordsToDelete(before_offset=2)})
            assert deleted[place] == 2
            kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
            resource = aiokafka.admin.config_resource.ConfigResource(
                kind, topic, configs={"retention.ms": "86400000"}
            )
            await admin.alter_configs([resource])
            assert "86400000" in str(await admin.describe_configs([resource]))
            cluster = await admin.describe_cluster()
            assert {f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]} == {zone_a, zone_b}
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


@tried("confluent-kafka", "admin: delete records", "admin: configs", "admin: describe cluster")
def test_confluent_administers_a_topic_and_the_cluster(new_topic: NewTopic, zone_a: str, zone_b: str) -> None:
    topic = new_topic(1)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": zone_a})
    producer = confluent_kafka.Producer({"bootstrap.servers": zone_b})
    for number in range(5):
        producer.produce(topic, value=str(number))
    assert producer.flush(30) == 0

    place = confluent_kafka.TopicPartition(topic, 0, 3)
    assert admin.delete_records([place])[place].result(DEADLINE_S).low_watermark == 3
    kind = confluent_kafka.admin.ResourceType.TOPIC
    entry = confluent_kafka.admin.ConfigEntry(
        "retention.ms", "7200000", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    resource = confluent_kafka.admin.ConfigResource(kind, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    configs = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert configs["retention.ms"].value == "7200000"
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert {f"{node.host}:{node.port}" for node in cluster.nodes} == {zone_a, zone_b}
    assert {node.rack for node in cluster.nodes} == {"a", "b"}


def _confluent(servers: str, topic: str, acks: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "acks": acks})
    producer.produce(topic, value=f"acks {acks}")
    assert producer.flush(DEADLINE_S) == 0


def _kafka_python(servers: str, topic: str, acks: int) -> None:
    settings = {
        "bootstrap_servers": servers,
        "enable_idempotence": False,
        "acks": "all" if acks == -1 else acks,
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send(topic, b"acks %d" % acks).get(timeout=DEADLINE_S)
    producer.close(timeout=5)


def _aiokafka(servers: str, topic: str, acks: int) -> None:
    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, acks="all" if acks == -1 else acks
        ) as producer:
            await producer.send_and_wait(topic, b"acks %d" % acks)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def _java(java_client: JavaClient, servers: str, topic: str, acks: int) -> None:
    record = Sent(key=None, value=b"acks %d" % acks, timestamp_ms=1_700_000_000_000)
    java_client.answers(servers, topic, 0, [record], f"acks={acks}", "enable.idempotence=false")


_PRODUCERS: Mapping[str, Callable[[str, str, int], None]] = {
    "confluent-kafka": _confluent,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=tried(name, "produce: acks 0, 1 and all"))
        for name in (*_PRODUCERS, "kafka-clients")
    ],
)
def test_every_kind_of_acknowledgement(
    name: str, java_client: JavaClient, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(1)
    produce = _PRODUCERS.get(name) or partial(_java, java_client)

    for acks in (0, 1, -1):
        produce(zone_a, topic, acks)

    reader = kafka.KafkaConsumer(
        topic, bootstrap_servers=zone_b, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    try:
        assert sorted(next(reader).value for _ in range(3)) == [b"acks -1", b"acks 0", b"acks 1"]
    finally:
        reader.close()
