"""If an agent's memory for requests is used up, its answers ask clients to pause (KIP-219)."""

from datetime import timedelta
from typing import Any

import pytest

from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.read_path.wire import a_fetch
from tests.agent.running import Wire, a_batch, a_produce, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONGEST = timedelta(milliseconds=1000)


async def test_the_pause_grows_with_the_memory_that_requests_hold(module_database_url: str) -> None:
    memory: dict[str, Any] = {
        "request_memory_bytes": 100_000,
        "max_request_bytes": 100_000,
        "connection_memory_bytes": 100_000,
    }
    async with running(
        module_database_url, zone="t", **memory, throttle_from_share=0.25, throttle_max_ms=1000
    ) as full:
        wire = await Wire.connect(full.app.kafka_port)
        topic = await create(wire, "pressing")

        small = await wire.ask(a_produce(topic.name, {0: a_batch(b"v")}))
        large = await wire.ask(a_produce(topic.name, {0: a_batch(b"v" * 50_000)}))
        larger = await wire.ask(a_produce(topic.name, {0: a_batch(b"v" * 80_000)}))
        fetched = await wire.ask(a_fetch(12, topic, 0))
        wire.close()

    assert small.throttle_time == fetched.throttle_time == timedelta(0)
    assert timedelta(0) < large.throttle_time < larger.throttle_time <= LONGEST
    assert full.metric("tidelog_throttled_answers_total", api="Produce") == 2
    asked_s = (large.throttle_time + larger.throttle_time).total_seconds()
    assert full.metric("tidelog_throttle_seconds_total", api="Produce") == pytest.approx(asked_s)


async def test_a_longest_pause_of_zero_asks_for_none(module_database_url: str) -> None:
    async with running(module_database_url, zone="t", throttle_from_share=0.0, throttle_max_ms=0) as calm:
        wire = await Wire.connect(calm.app.kafka_port)
        topic = await create(wire, "calm")

        answer = await wire.ask(a_produce(topic.name, {0: a_batch(b"v" * 10_000)}))
        wire.close()

    assert answer.throttle_time == timedelta(0)
