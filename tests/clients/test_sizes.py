"""Records of every size: one byte, each varint's width, exactly max.message.bytes, and one byte too many."""

import asyncio
from collections.abc import Callable, Mapping

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from tests.clients.adapters import DEADLINE_S, Client, JavaClient, Sent
from tests.clients.conftest import NewTopic
from tests.support.messages import value_of

MAX_MESSAGE_BYTES = 1_500_000
_BATCH_HEADER_BYTES = 61
_FIXED_RECORD_BYTES = (
    5  # attributes, timestamp delta, offset delta, null key, number of headers: one byte each
)
NOW_MS = 1_700_000_000_000


def _varint_bytes(value: int) -> int:
    """The length of a zigzag varint that is not negative."""
    return max(1, -(-(2 * value).bit_length() // 7))


def value_bytes_for_a_batch_of(size_bytes: int) -> int:
    """The length of the one value, without a key, whose uncompressed batch has this size."""
    for value_bytes in range(size_bytes - _BATCH_HEADER_BYTES - 16, size_bytes):
        record_bytes = _FIXED_RECORD_BYTES + _varint_bytes(value_bytes) + value_bytes
        if _BATCH_HEADER_BYTES + _varint_bytes(record_bytes) + record_bytes == size_bytes:
            return value_bytes
    raise AssertionError(f"no value makes a batch of {size_bytes} bytes")


def _sized(size_bytes: int) -> Sent:
    return Sent(key=None, value=b"x" * size_bytes, timestamp_ms=NOW_MS)


@pytest.mark.parametrize("name", ["confluent-kafka", "aiokafka", "kafka-python", "java"])
def test_sizes_from_one_byte_to_the_limit_come_back(
    name: str, clients: Mapping[str, Client], new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(1, "sizes", {"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    widths = [size + change for size in (1, 64, 8_192, 1_048_576) for change in (0, 1)]
    records = [_sized(size) for size in (*widths, value_bytes_for_a_batch_of(MAX_MESSAGE_BYTES))]

    *small, largest = records
    first = clients[name].produce(zone_a, topic, 0, small, "none")
    last = clients[name].produce(zone_a, topic, 0, [largest], "none")

    assert first + last == list(range(len(records)))
    read = clients[name].consume(zone_b, [topic])[topic, 0]
    assert [record.value for record in read] == [record.value for record in records]


def _confluent_refusal(servers: str, topic: str, value: bytes) -> bool:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "message.max.bytes": 8_000_000})
    errors: list[int] = []
    producer.produce(
        topic,
        value=value,
        partition=0,
        on_delivery=lambda error, _: errors.append(error.code() if error else 0),
    )
    producer.flush(DEADLINE_S)
    return errors == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def _aiokafka_refusal(servers: str, topic: str, value: bytes) -> bool:
    async def run() -> bool:
        async with (
            asyncio.timeout(DEADLINE_S),
            aiokafka.AIOKafkaProducer(bootstrap_servers=servers, max_request_size=8_000_000) as producer,
        ):
            with pytest.raises(aiokafka.errors.MessageSizeTooLargeError):
                await producer.send_and_wait(topic, value, partition=0)
            return True

    return asyncio.run(run())


def _kafka_python_refusal(servers: str, topic: str, value: bytes) -> bool:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, max_request_size=8_000_000)
    try:
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            producer.send(topic, value, partition=0).get(timeout=DEADLINE_S)
        return True
    finally:
        producer.close(timeout=5)


REFUSALS: tuple[Callable[[str, str, bytes], bool], ...] = (
    _confluent_refusal,
    _aiokafka_refusal,
    _kafka_python_refusal,
)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_one_byte_past_the_limit_is_refused_as_too_large(
    refusal: Callable[[str, str, bytes], bool], new_topic: NewTopic, zone_a: str
) -> None:
    topic = new_topic(1, "too-large", {"max.message.bytes": str(MAX_MESSAGE_BYTES)})

    assert refusal(zone_a, topic, b"x" * (value_bytes_for_a_batch_of(MAX_MESSAGE_BYTES) + 1))


def test_java_is_told_which_record_was_too_large_and_goes_on(
    java_client: JavaClient, new_topic: NewTopic, zone_a: str
) -> None:
    topic = new_topic(1, "too-large", {"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    limit = value_bytes_for_a_batch_of(MAX_MESSAGE_BYTES)

    # The last is too long for the bytes to spare in the second's batch: Java would split the two for ever.
    answers = java_client.answers(
        zone_a, topic, 0, [_sized(limit), _sized(limit + 1), _sized(1_000)], "linger.ms=0"
    )

    assert answers == ["0", "!RecordTooLargeException", "1"]


def test_a_record_larger_than_the_consumers_limits_is_still_read(
    clients: Mapping[str, Client], new_topic: NewTopic, zone_a: str
) -> None:
    topic = new_topic(1, "larger")
    clients["confluent-kafka"].produce(zone_a, topic, 0, [_sized(900_000), _sized(1)], "none")
    limits = {"fetch.message.max.bytes": 1_000, "fetch.max.bytes": 1_000, "message.max.bytes": 1_000}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": zone_a, "group.id": "unused", **limits})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        read = [consumer.poll(DEADLINE_S) for _ in range(2)]
        assert [len(value_of(message)) for message in read if message] == [900_000, 1]
    finally:
        consumer.close()
