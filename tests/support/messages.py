"""The fields of a confluent-kafka message without an error. Its types allow None everywhere."""

import confluent_kafka


def place_of(message: confluent_kafka.Message) -> tuple[int, int]:
    """Partition and offset."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def topic_of(message: confluent_kafka.Message) -> str:
    topic = message.topic()
    assert topic is not None
    return topic


def value_of(message: confluent_kafka.Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def headers_of(message: confluent_kafka.Message) -> tuple[tuple[str, bytes | None], ...]:
    headers = message.headers() or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
