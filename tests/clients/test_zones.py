"""Clients that name their zone, in any spelling, are sent to its agents. Consumers with a rack read there."""

import uuid

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.agent.read_path.wire import request
from tests.agent.running import Wire
from tests.clients.adapters import DEADLINE_S, Confluent, Sent
from tests.clients.conftest import NewTopic


def _leaders(servers: str, topic: str, client_id: str) -> set[str]:
    """The addresses that Metadata names as leaders."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers, "client.id": client_id})
    metadata = admin.list_topics(topic, timeout=DEADLINE_S)
    brokers = {node: f"{broker.host}:{broker.port}" for node, broker in metadata.brokers.items()}
    return {brokers[partition.leader] for partition in metadata.topics[topic].partitions.values()}


@pytest.mark.parametrize("spelling", ["tidelog_zone=", "diskless_az=", "ws_az=", "warpstream_az="])
def test_leaders_are_in_the_zone_that_the_client_names(
    spelling: str, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(6, "zones")

    for asked in (zone_a, zone_b):
        assert _leaders(asked, topic, f"{spelling}a") == {zone_a}
        assert _leaders(asked, topic, f"app,{spelling}b") == {zone_b}


async def test_a_client_without_a_zone_stays_with_the_agent_it_asked(
    new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(6, "zones")

    for asked in (zone_a, zone_b):
        # By hand: a librdkafka that knows of both agents asks either.
        wire = await Wire.connect(int(asked.rpartition(":")[2]))
        named = {
            "allow_auto_topic_creation": False,
            "topics": [{"topic_id": uuid.UUID(int=0), "name": topic}],
        }
        answer = await wire.ask(request(3, 12, include_topic_authorized_operations=False, **named), "plain")
        wire.close()
        addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        assert {addresses[partition.leader_id] for partition in answer.topics[0].partitions} == {asked}


def test_racks_are_zones(zone_a: str, zone_b: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": zone_a})

    nodes = admin.describe_cluster(request_timeout=30).result(DEADLINE_S).nodes

    assert {f"{node.host}:{node.port}": node.rack for node in nodes} == {zone_a: "a", zone_b: "b"}


def test_every_partition_has_a_replica_in_each_zone(new_topic: NewTopic, zone_a: str) -> None:
    admin, topic = confluent_kafka.admin.AdminClient({"bootstrap.servers": zone_a}), new_topic(3, "zones")

    described = admin.describe_topics(confluent_kafka.TopicCollection([topic]), request_timeout=30)[topic]

    racks = [
        {replica.rack for replica in partition.replicas}
        for partition in described.result(DEADLINE_S).partitions
    ]
    assert racks == [{"a", "b"}] * 3


def test_a_consumer_that_names_its_rack_reads_everything_from_the_other_zones_agent(
    new_topic: NewTopic, zone_a: str
) -> None:
    topic = new_topic(1, "racks")
    Confluent().produce(
        zone_a, topic, 0, [Sent(key=None, value=b"%d" % i, timestamp_ms=1) for i in range(100)], "none"
    )
    settings = {
        "bootstrap.servers": zone_a,
        "group.id": "unused",
        "client.id": "tidelog_zone=a",
        "client.rack": "b",
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        read: list[bytes | None] = []
        while len(read) < 100:
            messages = consumer.consume(100, timeout=DEADLINE_S)
            assert messages, f"nothing came after {len(read)} records"
            read += [message.value() for message in messages]
        assert read == [b"%d" % i for i in range(100)]
    finally:
        consumer.close()
