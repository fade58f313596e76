"""What users of real clients see of a refused batch: which of its records was at fault."""

import time

import confluent_kafka

from tests.clients.adapters import JavaClient, Sent
from tests.clients.conftest import NewTopic

TWO_HOURS_MS = 7_200_000
BOUND = {"message.timestamp.after.max.ms": "3600000"}


def three_records_of_which_one_is_from_the_future() -> list[Sent]:
    now_ms = time.time_ns() // 1_000_000
    return [
        Sent(key=None, value=b"v", timestamp_ms=timestamp_ms)
        for timestamp_ms in (now_ms, now_ms + TWO_HOURS_MS, now_ms)
    ]


def test_java_is_told_which_record_has_a_forbidden_timestamp(
    zone_a: str, java_client: JavaClient, new_topic: NewTopic
) -> None:
    """KIP-467: the record at fault has the error, those that were in its batch are told that they were."""
    topic = new_topic(prefix="refused", config=BOUND)

    answers = java_client.answers(zone_a, topic, 0, three_records_of_which_one_is_from_the_future(), "linger.ms=500")

    assert answers == ["!KafkaException", "!InvalidTimestampException", "!KafkaException"]


def test_librdkafka_is_told_that_a_batch_has_a_forbidden_timestamp(zone_a: str, new_topic: NewTopic) -> None:
    topic = new_topic(prefix="refused", config=BOUND)
    errors: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": zone_a, "linger.ms": 500, "enable.idempotence": True})

    for record in three_records_of_which_one_is_from_the_future():
        producer.produce(
            topic,
            value=record.value,
            partition=0,
            timestamp=record.timestamp_ms,
            on_delivery=lambda error, _: errors.append(error.code()),
        )
    assert producer.flush(30.0) == 0

    assert errors == [confluent_kafka.KafkaError.INVALID_TIMESTAMP] * 3
