"""A fetch waits for `min_bytes`, but not for bytes that it could not return."""

import asyncio

from agent.read_path.settings import ReadPathSettings
from sequencer.client import Sequencer
from storage.stores.object_store import ObjectStore
from tests.agent.read_path.a_log import ALog, an_agent_reading, read_now, values_of


async def test_a_fetch_does_not_wait_for_bytes_beyond_its_limits(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    """Two batches are enough, one fits: waiting for a third would bring no more."""
    log = await ALog(sequencer=sequencer, store=store).create()
    for _ in range(3):
        await log.write(["x" * 6000])
    async with an_agent_reading(sequencer, store) as agent:
        fetch = read_now(agent, log.plan(0, partition_max_bytes=10_000, min_bytes=10_000), wait_s=60.0)
        [result] = await asyncio.wait_for(fetch, 20.0)

        assert len(values_of(result)) == 1


async def test_a_fetch_that_wakes_often_keeps_all_its_partitions_current(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    """One partition has news all the time and never enough. The other one keeps its reader meanwhile."""
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    async with an_agent_reading(sequencer, store, reads=ReadPathSettings(recent_reader_s=0.5)) as agent:
        waiting = asyncio.create_task(read_now(agent, log.plan(0, 0, min_bytes=60_000), wait_s=120.0))
        for number in range(500):
            agent.reads.committed((await log.write(["little"])).runs)
            if waiting.done():
                break
            if number == 40:
                await log.write(["x" * 60_000], partition=1)
            await asyncio.sleep(0.03)

        assert waiting.done()
        _, much = await waiting
        assert [offset for offset, _ in values_of(much)] == [0]
