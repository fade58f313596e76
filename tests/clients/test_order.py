"""Order on a connection as librdkafka sees it: a read after a write sees that write."""

import time
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.conftest import NewTopic

ROUNDS = 50


def a_consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"order-{uuid.uuid4()}", "enable.auto.commit": False}
    )


def test_offsets_that_are_committed_asynchronously_are_fetched_behind_the_commit(
    zone_a: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1, "async-commits")
    consumer = a_consumer(zone_a)
    place = TopicPartition(topic, 0)
    consumer.committed([place], timeout=60)  # it is connected to its coordinator

    found = []
    for number in range(ROUNDS):
        consumer.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=True)
        found.append(consumer.committed([place], timeout=60)[0].offset)
    consumer.close()

    assert found == list(range(ROUNDS))


@pytest.mark.faults
def test_closing_a_consumer_is_quick(zone_a: str, new_topic: NewTopic) -> None:
    """Prints how long it takes while a fetch waits. It claims nothing: times depend on the machine."""
    topic = new_topic(1, "closed")
    took_ms = []
    for _ in range(10):
        consumer = a_consumer(zone_a)
        consumer.assign([TopicPartition(topic, 0, 0)])
        consumer.poll(1.0)
        began_s = time.monotonic()
        consumer.close()
        took_ms.append(round(1000 * (time.monotonic() - began_s)))
    print(f"closing took {sorted(took_ms)} ms")
