"""Reading ahead: each page by one task at a time, and what was read gives its room back."""

import asyncio

from agent.read_path.read_ahead import ReadAhead
from agent.read_path.settings import ReadPathSettings
from cache_ring.membership import Membership
from cache_ring.page_reader import PageReader
from cache_ring.peer_client import PeerClient
from cache_ring.store_pages import StorePages
from sequencer.client import Sequencer
from storage.identifiers import ObjectKey, new_segment_id
from storage.keys import merged_key
from storage.memory_store import MemoryStore
from storage.object_store import ObjectStore
from tests.agent.read_path.a_log import RING, ALog, an_agent_reading, read_now
from tests.cache_ring.builders import a_run, an_address
from tests.waiting import until


class GatedStore(MemoryStore):
    """Answers once it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes | memoryview:
        await self.gate.wait()
        return await super().get(key, start, end)


async def test_a_page_that_readers_of_two_partitions_come_to_is_loaded_ahead_by_one_task(sequencer: Sequencer) -> None:
    """The second reader asks for the page while it is still being loaded ahead of the first."""
    store, key = GatedStore(), merged_key("tidelog", new_segment_id())
    await store.put(key, [bytes(2_000)])
    pages = StorePages(store, store, RING)
    membership = Membership(sequencer.agents, an_address(), RING)
    reader = PageReader(membership, pages, PeerClient(RING, membership.peer_secrets), RING)
    ahead = ReadAhead(reader, 1 << 20)
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    before = asyncio.all_tasks()
    for first in (0, 1_000):
        runs = [
            a_run(at, at + 9, object_key=key, position=first + 10 * at, length=100, object_size_bytes=2_000)
            for at in (0, 10, 20)
        ]
        ahead.reader_at(runs, runs[:1])

    tasks = asyncio.all_tasks() - before
    store.gate.set()
    await asyncio.gather(*tasks)
    await ahead.close()

    assert (len(tasks), broken) == (1, [])
    await reader.close()


async def test_a_reader_that_has_read_all_leaves_the_whole_budget_to_the_next(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    logs = [await ALog(sequencer=sequencer, store=store, name=name).create() for name in ("orders", "others")]
    for log in logs:
        written = [await log.write(["x" * 1_000]) for _ in range(3)]
    room_for_one = ReadPathSettings(catch_up_read_ahead_bytes=len(written[0].data))
    history = RING.model_copy(update={"tail_age_s": 0.000_001})
    async with an_agent_reading(sequencer, store, ring=history, reads=room_for_one) as agent:
        for offset in range(3):
            await read_now(agent, logs[0].plan(offset, partition_max_bytes=1_000))
        before = agent.pages.pages.counts.gets

        await read_now(agent, logs[1].plan(0, partition_max_bytes=1_000))

        await until(lambda: agent.pages.pages.counts.gets == before + 2)
