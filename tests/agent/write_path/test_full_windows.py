"""Segments that are sealed early because waiting brings nothing: with a real librdkafka, and within the
budget.
"""

import asyncio
from collections import deque
from typing import Any

import pytest
from confluent_kafka import Producer

from agent.write_path.appended_batches import Appended
from agent.write_path.producer_window import ProducerWindow
from sequencer.client import Sequencer
from sequencer.topics.topics import Topic
from storage.segments.segment_batches import PendingBatches
from storage.stores.memory_store import MemoryStore
from tests.agent.running import Running, running
from tests.agent.write_path.wired import Writer, pending, writing

_IN_FLIGHT = 5


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 4, {})


def seals(agent: Running, reason: str) -> float:
    return agent.metric("tidelog_seals_total", reason=reason)


async def keep_in_flight(writer: Writer, topic: Topic, requests: int, producer_id: int = 1) -> None:
    """Requests of one connection, a few at a time. The next is sent as soon as one is answered."""
    window, in_flight = ProducerWindow(), deque[Appended]()
    for number in range(requests):
        if len(in_flight) == _IN_FLIGHT:
            async with asyncio.timeout(60):
                await in_flight.popleft().answered()
        batches = PendingBatches.of([pending(topic, number, producer_id=producer_id)])
        in_flight.append(writer.write_path.append(batches, window))


def produce_small_batches(bootstrap: str, records: int) -> None:
    """As Java does by default: at most five requests in flight, of one batch of at most 16 KiB each."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": _IN_FLIGHT,
            "batch.size": 16_384,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    for _ in range(records):
        producer.produce("limited", value=b"x" * 1_000, partition=0)
    assert producer.flush(60) == 0


async def test_a_producer_limited_by_its_window_does_not_wait_for_the_linger(database_url: str) -> None:
    """With two seconds of linger, each request would wait so long."""
    tokens: dict[str, Any] = {"put_budget_burst": 16, "put_budget_per_s": 0.001}
    async with running(database_url, linger_ms=2_000, window_refill_ms=1_000, **tokens) as agent:
        await asyncio.to_thread(produce_small_batches, agent.bootstrap, 3_200)

        assert seals(agent, "window") > 100
        assert seals(agent, "age") < 20


async def test_full_windows_are_sealed_early_while_their_budget_lasts(
    sequencer: Sequencer, topic: Topic
) -> None:
    """It has 13 PUTs saved up: at five dollars a million, 13 per hour are 0.0468 dollars a month."""
    tokens: dict[str, Any] = {"put_budget_burst": 16, "put_budget_per_s": 0.001}
    price: dict[str, Any] = {
        "put_usd_per_million": 5.0,
        "window_seals_usd_per_month": 0.0468,
        "window_seals_saved_h": 1.0,
    }
    given: dict[str, Any] = {
        "linger_ms": 20,
        "window_refill_ms": 10_000,
        "window_wait_ms": 0,
        **tokens,
        **price,
    }
    async with writing(sequencer, MemoryStore(), **given) as writer:
        await keep_in_flight(writer, topic, 200)

        assert writer.metric("tidelog_seals_total", reason="window") == 13
        assert writer.metric("tidelog_seals_total", reason="age") >= 5


async def test_without_a_budget_for_it_no_segment_is_sealed_for_full_windows(
    sequencer: Sequencer, topic: Topic
) -> None:
    tokens: dict[str, Any] = {"put_budget_burst": 16, "put_budget_per_s": 0.001}
    price: dict[str, Any] = {"put_usd_per_million": 5.0, "window_seals_usd_per_month": 0.0}
    async with writing(
        sequencer, MemoryStore(), linger_ms=5, window_refill_ms=10_000, **tokens, **price
    ) as writer:
        await keep_in_flight(writer, topic, 150)

        assert writer.metric("tidelog_seals_total", reason="window") == 0


async def test_producers_fall_into_step_so_that_one_put_takes_what_all_of_them_have(
    sequencer: Sequencer, topic: Topic
) -> None:
    tokens: dict[str, Any] = {"put_budget_burst": 16, "put_budget_per_s": 0.001}
    given: dict[str, Any] = {
        "linger_ms": 60_000,
        "window_refill_ms": 10_000,
        "window_wait_ms": 1_000,
        **tokens,
    }
    async with writing(sequencer, MemoryStore(), **given) as writer:
        async with asyncio.TaskGroup() as tasks:
            for producer_id in range(1, 5):
                tasks.create_task(keep_in_flight(writer, topic, 200, producer_id))

        assert writer.metric("tidelog_seals_total", reason="age") == 0
        assert writer.metric("tidelog_seals_total", reason="window") < 800 / (4 * _IN_FLIGHT) * 1.5
