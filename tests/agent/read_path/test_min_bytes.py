"""A fetch waits for `min_bytes`, and for nothing that it could not return."""

import asyncio

from sequencer.client import Sequencer
from storage.object_store import ObjectStore
from tests.agent.read_path.a_log import ALog, an_agent_reading, read_now, values_of


async def test_a_fetch_does_not_wait_for_bytes_that_its_limits_keep_out(
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
