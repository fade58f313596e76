"""What users of real clients read when they ask for transactions, which are not available."""

import confluent_kafka
import pytest

from tests.clients.conftest import NewTopic
from tests.support.java import Java, JavaFailed

SAID = "transactions are not available here"


def test_librdkafkas_users_read_that_transactions_are_not_available(zone_a: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": zone_a, "transactional.id": "refused"})

    with pytest.raises(confluent_kafka.KafkaException, match=SAID) as failed:
        producer.init_transactions(30)

    assert failed.value.args[0].fatal()


def test_javas_users_read_that_transactions_are_not_available(
    java: Java, zone_a: str, new_topic: NewTopic
) -> None:
    records = ("--num-records", "1", "--record-size", "10", "--throughput", "-1")
    producer = ("--producer-props", f"bootstrap.servers={zone_a}", "--transactional-id", "refused")

    with pytest.raises(JavaFailed, match=SAID):
        java.tool("ProducerPerformance", "--topic", new_topic(1), *records, *producer)
