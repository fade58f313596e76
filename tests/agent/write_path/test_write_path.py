"""Batches in memory stay bounded, also while nothing can be sealed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.outcomes import WriteFailed, WriteFailure
from agent.write_path.write_path import WritePath, Written
from cache_ring.membership import Membership
from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer
from storage.memory_store import MemoryStore
from tests.cache_ring.builders import an_address
from tests.storage.builders import a_pending

NOBODY_LISTENS = "postgresql://nobody@127.0.0.1:1/nothing"
TIMED_OUT = WriteFailed(failure=WriteFailure.TIMED_OUT, message="the request's timeout was over")


@dataclass(frozen=True, slots=True)
class Unheard(Written):
    """Nothing is written in these tests."""

    def put_own(self, object_key: object, data: bytes) -> None:
        raise AssertionError(object_key, len(data))

    def committed(self, runs: object) -> None:
        raise AssertionError(runs)


@asynccontextmanager
async def without_a_database() -> AsyncIterator[WritePath]:
    """A running write path that can reserve no segment id, so that it can seal nothing."""
    sequencer = await Sequencer.open(NOBODY_LISTENS)
    write_path = WritePath(
        sequencer=sequencer,
        store=MemoryStore(),
        membership=Membership(sequencer.agents, an_address(), CacheRingSettings()),
        settings=AgentSettings(),
        metrics=Metrics(CollectorRegistry()),
        written=Unheard(),
        clock=time.monotonic,
    )
    running = asyncio.create_task(write_path.run())
    await asyncio.sleep(0)
    try:
        yield write_path
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await sequencer.close()


async def test_a_batch_whose_time_is_over_is_let_go_even_while_nothing_can_be_sealed() -> None:
    """Its request gives its place in the agent's memory to the next one, so the batch must not stay."""
    async with without_a_database() as write_path:
        for _ in range(100):
            batch = a_pending()
            [outcome] = write_path.append([batch])
            await asyncio.sleep(0)
            assert write_path.unacknowledged_bytes == len(batch.batch.data)

            outcome.set_result(TIMED_OUT)
            await asyncio.sleep(0)
            assert write_path.unacknowledged_bytes == 0


async def test_an_agent_that_stops_answers_what_it_has_gathered() -> None:
    async with without_a_database() as write_path:
        outcomes = write_path.append([a_pending(), a_pending()])
        outcomes[0].set_result(TIMED_OUT)

    first, second = (outcome.result() for outcome in outcomes)
    assert first is TIMED_OUT
    assert isinstance(second, WriteFailed)
    assert second.failure is WriteFailure.UNKNOWN
    assert write_path.unacknowledged_bytes == 0
