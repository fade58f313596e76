"""Asking for offsets by time gives the first record at or after it, also where time goes backwards."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.clients.adapters import DEADLINE_S, Client, JavaClient, Sent
from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried
from tests.support.java import Java

START_MS = 1_700_000_000_000
# Batches of ten in seven flushes; within and between them time also goes back.
TIMESTAMPS = [
    START_MS + change
    for change in (*range(0, 200, 20), *range(90, 0, -9), *range(500, 510), 10_000, *range(510, 549))
]
ASKED = [
    0,
    START_MS,
    START_MS + 19,
    START_MS + 20,
    START_MS + 185,
    START_MS + 505,
    START_MS + 9_999,
    START_MS + 10_000,
    START_MS + 10_001,
]


def expected(asked: int) -> int | None:
    """The offset by definition."""
    return next((offset for offset, timestamp_ms in enumerate(TIMESTAMPS) if timestamp_ms >= asked), None)


@pytest.fixture(scope="module")
def topic(clients: Mapping[str, Client], new_topic: NewTopic, zone_a: str) -> str:
    name = new_topic(1, "times")
    for start in range(0, len(TIMESTAMPS), 10):
        records = [
            Sent(key=None, value=b"v", timestamp_ms=timestamp_ms)
            for timestamp_ms in TIMESTAMPS[start : start + 10]
        ]
        clients["confluent-kafka"].produce(zone_a, name, 0, records, "lz4")
    return name


def _confluent(servers: str, topic: str, asked: Sequence[int]) -> dict[int, int | None]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    try:
        end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=DEADLINE_S)[1]
        found = {
            time_ms: consumer.offsets_for_times(
                [confluent_kafka.TopicPartition(topic, 0, time_ms)], timeout=DEADLINE_S
            )[0].offset
            for time_ms in asked
        }
        # librdkafka says "the end" where the others say "none".
        return {
            time_ms: None if offset in (confluent_kafka.OFFSET_END, end) else offset
            for time_ms, offset in found.items()
        }
    finally:
        consumer.close()


def _aiokafka(servers: str, topic: str, asked: Sequence[int]) -> dict[int, int | None]:
    async def run() -> dict[int, int | None]:
        partition = aiokafka.TopicPartition(topic, 0)
        async with (
            asyncio.timeout(DEADLINE_S),
            aiokafka.AIOKafkaConsumer(bootstrap_servers=servers) as consumer,
        ):
            found = {
                time_ms: (await consumer.offsets_for_times({partition: time_ms}))[partition]
                for time_ms in asked
            }
            return {time_ms: answer.offset if answer else None for time_ms, answer in found.items()}

    return asyncio.run(run())


def _kafka_python(servers: str, topic: str, asked: Sequence[int]) -> dict[int, int | None]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers)
    try:
        partition = kafka.TopicPartition(topic, 0)
        found = {time_ms: consumer.offsets_for_times({partition: time_ms})[partition] for time_ms in asked}
        return {time_ms: answer.offset if answer else None for time_ms, answer in found.items()}
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(_confluent, marks=tried("confluent-kafka", "offsets: by time")),
        pytest.param(_aiokafka, marks=tried("aiokafka", "offsets: by time")),
        pytest.param(_kafka_python, marks=tried("kafka-python", "offsets: by time")),
    ],
)
def test_the_first_record_at_or_after_the_time_is_found(
    ask: Callable[[str, str, Sequence[int]], dict[int, int | None]], topic: str, zone_b: str
) -> None:
    assert ask(zone_b, topic, ASKED) == {asked: expected(asked) for asked in ASKED}


@tried("kafka-clients", "offsets: by time")
def test_java_finds_offset_and_timestamp(java_client: JavaClient, topic: str, zone_b: str) -> None:
    found = java_client.offsets_for_times(zone_b, topic, ASKED)

    offsets = {asked: expected(asked) for asked in ASKED}
    assert found == {
        asked: None if offset is None else (offset, TIMESTAMPS[offset]) for asked, offset in offsets.items()
    }


@pytest.mark.parametrize(
    ("time", "offset"),
    [
        ("earliest", 0),
        ("latest", len(TIMESTAMPS)),
        ("max-timestamp", TIMESTAMPS.index(START_MS + 10_000)),
        (str(START_MS + 20), 1),
    ],
)
def test_get_offset_shell_prints_the_offset(
    time: str, offset: int, java: Java, topic: str, zone_b: str
) -> None:
    printed = java.tool("GetOffsetShell", "--bootstrap-server", zone_b, "--topic", topic, "--time", time)

    assert printed.split() == [f"{topic}:0:{offset}"]
