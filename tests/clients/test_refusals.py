"""What users of real clients see of a refused batch: which of its records was at fault."""

import time

import confluent_kafka
import confluent_kafka.admin
import pytest

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
    """KIP-467: the record at fault has the error. The others of its batch have an error that says so."""
    topic = new_topic(prefix="refused", config=BOUND)

    answers = java_client.answers(
        zone_a, topic, 0, three_records_of_which_one_is_from_the_future(), "linger.ms=500"
    )

    assert answers == ["!KafkaException", "!InvalidTimestampException", "!KafkaException"]


def test_librdkafka_is_told_that_a_batch_has_a_forbidden_timestamp(zone_a: str, new_topic: NewTopic) -> None:
    topic = new_topic(prefix="refused", config=BOUND)
    errors: list[int] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": zone_a, "linger.ms": 500, "enable.idempotence": True}
    )

    for record in three_records_of_which_one_is_from_the_future():
        producer.produce(
            topic,
            value=record.value,
            partition=0,
            timestamp=record.timestamp_ms,
            on_delivery=lambda error, _: errors.append(error.code() if error else 0),
        )
    assert producer.flush(30.0) == 0

    assert errors == [confluent_kafka.KafkaError.INVALID_TIMESTAMP] * 3


def records_of_which_the_second_has_no_key() -> list[Sent]:
    now_ms = time.time_ns() // 1_000_000
    return [Sent(key=key, value=b"v", timestamp_ms=now_ms) for key in (b"k", None, b"")]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_java_is_told_which_record_of_a_compacted_topic_has_no_key(
    zone_a: str, java_client: JavaClient, new_topic: NewTopic, compression: str
) -> None:
    topic = new_topic(prefix="compacted", config={"cleanup.policy": "compact"})
    records = records_of_which_the_second_has_no_key()
    settings = ("linger.ms=500", f"compression.type={compression}")

    refused = java_client.answers(zone_a, topic, 0, records, *settings)
    accepted = java_client.answers(zone_a, topic, 0, [records[0], records[2]], *settings)

    assert refused == ["!KafkaException", "!InvalidRecordException", "!KafkaException"]
    assert accepted == ["0", "1"]


def test_librdkafka_cannot_delete_records_of_a_compacted_topic(zone_a: str, new_topic: NewTopic) -> None:
    topic = new_topic(prefix="compacted", config={"cleanup.policy": "compact"})
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": zone_a})

    [deletion] = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 0)]).values()

    with pytest.raises(confluent_kafka.KafkaException) as refused:
        deletion.result(30.0)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.POLICY_VIOLATION
