"""Idempotent producers of librdkafka and Java, and what an agent may do to them: forget who they are,
refuse a batch.

`tests/faults/test_moving_leaders.py` has kills and moves.
"""

import asyncio

import confluent_kafka

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from tests.clients.adapters import Confluent
from tests.clients.conftest import NewTopic
from tests.faults.java_producer import JavaProducer, check_log
from tests.support.java import Java
from tests.support.messages import place_of
from tidelog.devstack.stack import Stack

TIMEOUT_S = 60.0


def forget_all_producers(stack: Stack) -> int:
    """As the housekeeper does with producers that wrote nothing for days."""

    async def expire() -> int:
        sequencer = await Sequencer.open(stack.addresses.database_url, SequencerSettings())
        try:
            forgotten = 0
            step = await sequencer.producers.expire(unused_for_s=0, cap=1000)
            forgotten += step.expired
            while step.next_after is not None:
                step = await sequencer.producers.expire(unused_for_s=0, cap=1000, after=step.next_after)
                forgotten += step.expired
            return forgotten
        finally:
            await sequencer.close()

    return asyncio.run(expire())


class Librdkafka:
    """An idempotent producer to one partition; counts answers."""

    def __init__(self, servers: str, topic: str) -> None:
        self.fatal: list[str] = []
        self.offsets: list[int] = []
        self.refused: list[confluent_kafka.KafkaError] = []
        self._topic = topic
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.max.bytes": 8_000_000,
                "batch.num.messages": 1,  # so that many are in flight
                "error_cb": lambda error: self.fatal.append(str(error)) if error.fatal() else None,
            }
        )

    def send(self, *values: bytes) -> None:
        for value in values:
            self._client.produce(self._topic, value=value, partition=0, on_delivery=self._delivered)

    def flush(self) -> None:
        assert self._client.flush(TIMEOUT_S) == 0, "records without an answer"

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.offsets.append(place_of(message)[1])
        else:
            self.refused.append(error)


def values_of(servers: str, topic: str) -> list[bytes]:
    read = Confluent().consume(servers, [topic])
    return [record.value or b"" for record in read[topic, 0]]


def test_librdkafka_goes_on_when_it_was_forgotten(running: Stack, zone_a: str, new_topic: NewTopic) -> None:
    topic = new_topic(prefix="forgotten")
    producer = Librdkafka(zone_a, topic)
    producer.send(*(b"%d" % number for number in range(20)))
    producer.flush()

    assert forget_all_producers(running) > 0
    producer.send(*(b"%d" % number for number in range(20, 40)))
    producer.flush()

    assert (producer.fatal, producer.refused) == ([], [])
    assert producer.offsets == list(range(40))
    assert values_of(zone_a, topic) == [b"%d" % number for number in range(40)]


def test_java_goes_on_when_it_was_forgotten_again_and_again(
    running: Stack, zone_a: str, new_topic: NewTopic, java: Java
) -> None:
    """With five in flight: what was refused is sent again under the next epoch, what was written is not."""
    topic = new_topic(partitions=3, prefix="forgotten")
    with JavaProducer(java, zone_a, topic, 3) as producer:
        for _ in range(3):
            producer.wait_for_acknowledgements(100, TIMEOUT_S)
            forget_all_producers(running)
        producer.wait_for_acknowledgements(100, TIMEOUT_S)
        acknowledged = producer.finish(TIMEOUT_S)

    read = Confluent().consume(zone_a, [topic])
    check_log(acknowledged, {partition: records for (_, partition), records in read.items()})


def test_librdkafka_goes_on_after_a_record_that_is_too_large(zone_a: str, new_topic: NewTopic) -> None:
    """Its client-side limit is above the topic's: the agent refuses that batch, and what is in flight behind
    it comes before its predecessor, until the client begins a new epoch.
    """
    small = new_topic(prefix="small", config={"max.message.bytes": "2000"})
    producer = Librdkafka(zone_a, small)
    producer.send(b"first", b"x" * 5_000, *(b"%d" % number for number in range(8)))
    producer.flush()

    assert producer.fatal == []
    assert [error.code() for error in producer.refused] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]
    assert values_of(zone_a, small) == [b"first", *(b"%d" % number for number in range(8))]
