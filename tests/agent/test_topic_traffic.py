"""What each topic moved: counted per topic up to a bound, and together beyond it."""

import asyncio
from uuid import UUID

import httpx
import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import CollectorRegistry

from agent.topic_traffic import OTHER, TopicTraffic
from storage.identifiers import TopicId
from storage.segments.segment_batches import COLUMNS, LENGTH, RECORDS, TOPIC
from tests.agent.running import running

FIRST, SECOND, THIRD = (TopicId(UUID(int=number)) for number in (1, 2, 3))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Shown:
    """The registry of one `TopicTraffic`."""

    def __init__(self, most_topics: int) -> None:
        self.clock, self.registry = Clock(), CollectorRegistry()
        self.traffic = TopicTraffic(most_topics, self.clock)
        self.registry.register(self.traffic)

    def fetched(self, topic: str) -> float | None:
        return self.registry.get_sample_value("tidelog_topic_fetched_bytes_total", {"topic": topic})

    def produced(self, topic: str) -> tuple[float | None, float | None]:
        return (
            self.registry.get_sample_value("tidelog_topic_produced_bytes_total", {"topic": topic}),
            self.registry.get_sample_value("tidelog_topic_produced_records_total", {"topic": topic}),
        )


def test_batches_of_a_segment_are_counted_by_topic() -> None:
    shown = Shown(most_topics=10)
    batches = np.zeros((COLUMNS, 3), np.int64)
    batches[TOPIC], batches[LENGTH], batches[RECORDS] = (0, 2, 2), (100, 200, 300), (1, 2, 3)

    shown.traffic.produced((FIRST, SECOND, THIRD), batches)
    shown.traffic.named(shown.traffic.unnamed(), {FIRST: "first", THIRD: "third"})

    assert shown.produced("first") == (100, 1)
    assert shown.produced("third") == (500, 5)
    assert shown.produced("second") == (None, None)


def test_topics_beyond_the_bound_are_counted_together() -> None:
    shown = Shown(most_topics=2)

    shown.traffic.fetched([(FIRST, 10, 1), (SECOND, 20, 1), (THIRD, 30, 1), (THIRD, 5, 1)])
    shown.traffic.named(shown.traffic.unnamed(), {FIRST: "first", SECOND: "second"})

    assert [shown.fetched(topic) for topic in ("first", "second", OTHER)] == [10, 20, 35]


def test_an_idle_topic_gives_its_place_to_the_next() -> None:
    shown = Shown(most_topics=2)
    shown.traffic.fetched([(FIRST, 10, 1), (SECOND, 20, 1)])
    shown.traffic.named([FIRST, SECOND], {FIRST: "first", SECOND: "second"})
    assert shown.fetched("first") == 10

    shown.clock.now_s += 1_000
    shown.traffic.fetched([(SECOND, 1, 1)])
    assert (shown.fetched("first"), shown.fetched("second"), shown.fetched(OTHER)) == (None, 21, 10)
    shown.traffic.fetched([(THIRD, 30, 1)])
    shown.traffic.named([THIRD], {THIRD: "third"})

    assert (shown.fetched("second"), shown.fetched("third"), shown.fetched(OTHER)) == (21, 30, 10)


def test_a_topic_created_again_continues_the_counts_of_its_name() -> None:
    shown = Shown(most_topics=10)
    shown.traffic.fetched([(FIRST, 10, 1)])
    shown.traffic.named([FIRST], {FIRST: "orders"})

    shown.traffic.fetched([(SECOND, 5, 1)])
    shown.traffic.named([SECOND], {SECOND: "orders"})

    assert shown.fetched("orders") == 15


def test_a_topic_deleted_before_it_was_named_is_counted_with_the_others() -> None:
    shown = Shown(most_topics=10)
    shown.traffic.fetched([(FIRST, 10, 1)])

    shown.traffic.named([FIRST], {})

    assert shown.fetched(OTHER) == 10
    assert shown.traffic.unnamed() == []


async def test_metrics_show_topics_the_process_and_the_build(database_url: str) -> None:
    async with running(database_url) as agent, httpx.AsyncClient(timeout=60) as client:
        await asyncio.to_thread(produce_and_consume, agent.bootstrap)
        said = (await client.get(f"http://127.0.0.1:{agent.app.http_port}/metrics")).text

    found = dict(line.rsplit(" ", 1) for line in said.splitlines() if not line.startswith("#"))
    assert float(found['tidelog_topic_produced_records_total{topic="counted"}']) == 10
    assert float(found['tidelog_topic_fetched_records_total{topic="counted"}']) == 10
    assert float(found["tidelog_read_records_out_total"]) == 10
    sent_bytes = float(found['tidelog_topic_produced_bytes_total{topic="counted"}'])
    assert float(found['tidelog_topic_fetched_bytes_total{topic="counted"}']) == sent_bytes > 0
    assert float(found["process_resident_memory_bytes"]) > 0
    assert float(found["process_open_fds"]) > 0
    assert float(found["process_cpu_seconds_total"]) > 0
    assert any(name.startswith("tidelog_build_info{") and 'version="0.' in name for name in found)


def produce_and_consume(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(10):
        producer.produce("counted", str(number), partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("counted", 0, 0)])
        assert len(consumer.consume(10, timeout=60)) == 10
    finally:
        consumer.close()
