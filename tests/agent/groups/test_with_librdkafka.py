"""Groups of librdkafka, of both protocols, over two agents: they share a topic, commit, leave and return."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.support.messages import place_of
from tests.support.stack import HERE
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack, StackSettings

PARTITIONS = 4
RECORDS = 200


@pytest.fixture(scope="module")
def servers(module_directory: Path) -> Iterator[str]:
    """Two agents that know each other."""
    environment = {
        "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
        "TIDELOG_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "200",
    }
    settings = StackSettings(
        environment=HERE,
        data_dir=module_directory / "stack",
        store="local",
        agent_environment=environment,
    )
    with Stack(settings) as stack:
        for agent in stack.agents:
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": agent.address.bootstrap})
            wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == 2)  # noqa: B023
        yield stack.addresses.bootstrap


def a_topic(servers: str, records: int) -> str:
    name = f"shared-{uuid.uuid4().hex[:8]}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    admin.create_topics([confluent_kafka.admin.NewTopic(name, PARTITIONS, 1)])[name].result(30)
    produce(servers, name, records)
    return name


def produce(servers: str, topic: str, records: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def a_consumer(servers: str, group_id: str, topic: str, protocol: str) -> confluent_kafka.Consumer:
    settings = {
        "bootstrap.servers": servers,
        "group.id": group_id,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def commit(consumer: confluent_kafka.Consumer) -> None:
    """Commits if there is something to commit and no rebalance. Otherwise the next owner of the partition
    reads it again.
    """
    with contextlib.suppress(confluent_kafka.KafkaException):
        consumer.commit(asynchronous=False)


def read(consumer: confluent_kafka.Consumer) -> list[tuple[int, int]]:
    found = [message for message in consumer.consume(500, timeout=0.05) if message.error() is None]
    if found:
        commit(consumer)
    return [place_of(message) for message in found]


def offsets_of(consumer: confluent_kafka.Consumer, topic: str) -> list[int]:
    """Committed, by partition."""
    places = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
    return [place.offset for place in consumer.committed(places, 30)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_consumers_share_a_topic_and_a_third_continues_where_they_stopped(
    servers: str, protocol: str
) -> None:
    topic, group_id = a_topic(servers, RECORDS), f"group-{protocol}"
    each = RECORDS // PARTITIONS
    seen: set[tuple[int, int]] = set()
    pair = [a_consumer(servers, group_id, topic, protocol) for _ in range(2)]

    def shared() -> bool:
        for consumer in pair:
            seen.update(read(consumer))
        return [len(consumer.assignment()) for consumer in pair] == [2, 2] and len(seen) >= RECORDS

    def all_committed() -> bool:
        for consumer in pair:
            seen.update(read(consumer))
            commit(consumer)
        return offsets_of(pair[0], topic) == [each] * PARTITIONS

    wait_until(shared)
    wait_until(all_committed)
    for consumer in pair:
        consumer.close()
    produce(servers, topic, PARTITIONS)
    third = a_consumer(servers, group_id, topic, protocol)
    news: list[tuple[int, int]] = []

    def all_read() -> bool:
        news.extend(read(third))
        commit(third)
        return len(news) >= PARTITIONS and offsets_of(third, topic) == [each + 1] * PARTITIONS

    wait_until(all_read)

    assert sorted(seen) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(each)]
    assert sorted(news) == [(partition, each) for partition in range(PARTITIONS)]
    third.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_described_and_deleted(servers: str, protocol: str) -> None:
    topic, group_id = a_topic(servers, PARTITIONS), f"administered-{protocol}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    consumer = a_consumer(servers, group_id, topic, protocol)
    wait_until(lambda: read(consumer))

    listed = {
        group.group_id: group for group in admin.list_consumer_groups(request_timeout=30).result(30).valid
    }
    described = admin.describe_consumer_groups([group_id], request_timeout=30)[group_id].result(30)
    consumer.close()
    admin.delete_consumer_groups([group_id], request_timeout=30)[group_id].result(30)
    after = admin.list_consumer_groups(request_timeout=30).result(30).valid

    assert listed[group_id].type.name.lower() == protocol
    assert described.state.name == "STABLE"
    assert [len(member.assignment.topic_partitions) for member in described.members] == [PARTITIONS]
    assert described.members[0].host == "/127.0.0.1"
    assert group_id not in {group.group_id for group in after}
