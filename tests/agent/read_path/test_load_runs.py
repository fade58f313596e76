"""The runs of a fetch: a page that many of them share is requested once, and a failure concerns only its
partition.
"""

import asyncio

from agent.read_path.load_runs import Loaded, load_runs
from agent.read_path.read_decisions import ReadFailure
from sequencer.client import Sequencer
from storage.stores.object_store import ObjectStore
from tests.agent.read_path.a_log import RING, ALog, Written, an_agent_reading
from tests.support.waiting import until

PARTITIONS = 3


async def an_object(log: ALog, name: str, *, upload: bool = True) -> Written:
    """With one run for each partition."""
    more = {partition: [f"{name}{partition}"] for partition in range(1, PARTITIONS)}
    return await log.write([f"{name}0"], more=more, upload=upload)


def bytes_of(loaded: Loaded) -> list[bytes]:
    return [bytes(run.data()) for run in loaded.runs]


def bytes_in(written: Written, place: int) -> bytes:
    run = written.runs[place]
    return written.data[run.position : run.position + run.length]


async def test_runs_of_several_partitions_in_two_objects_take_two_gets(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(PARTITIONS)
    one, two = await an_object(log, "a"), await an_object(log, "b")
    async with an_agent_reading(sequencer, store) as agent:
        loaded = await load_runs(
            agent.pages, {place: [one.runs[place], two.runs[place]] for place in (2, 0, 1)}
        )

        assert list(loaded) == [2, 0, 1]
        for place, found in loaded.items():
            assert bytes_of(found) == [bytes_in(one, place), bytes_in(two, place)]
        assert agent.pages.pages.counts.gets == 2
        assert await load_runs(agent.pages, {}) == {}


async def test_of_two_fetches_of_one_page_the_first_may_be_cancelled(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(PARTITIONS)
    written = await an_object(log, "a")
    selected = {place: [run] for place, run in enumerate(written.runs)}
    async with an_agent_reading(sequencer, store) as agent:
        first, second = (asyncio.create_task(load_runs(agent.pages, selected)) for _ in range(2))
        await until(lambda: agent.pages.pages.tail_cache.counts.joined == 1)
        first.cancel()

        loaded = await second

        assert [bytes_of(loaded[place]) for place in selected] == [
            [bytes_in(written, place)] for place in selected
        ]
        assert first.cancelled()
        assert agent.pages.pages.counts.gets == 1


async def test_an_object_that_is_gone_is_missing_for_all_its_partitions_and_for_no_other(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(PARTITIONS)
    gone, there = await an_object(log, "a", upload=False), await an_object(log, "b")
    selected = {0: [gone.runs[0]], 1: [there.runs[1], gone.runs[1]], 2: [there.runs[2]]}
    async with an_agent_reading(sequencer, store) as agent:
        loaded = await load_runs(agent.pages, selected)

        assert loaded[0] == loaded[1] == Loaded(missing=gone.object_key)
        assert bytes_of(loaded[2]) == [bytes_in(there, 2)]
        assert agent.pages.pages.counts.gets == 2


async def test_only_a_run_with_damaged_bytes_fails(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(PARTITIONS)
    written, there = await an_object(log, "a"), await an_object(log, "b")
    at = written.runs[0].position
    await store.put(written.object_key, [written.data[:at] + bytes(16) + written.data[at + 16 :]])
    selected = {0: written.runs[:1], 1: [there.runs[1], written.runs[0]], 2: written.runs[2:]}
    async with an_agent_reading(sequencer, store) as agent:
        loaded = await load_runs(agent.pages, selected)

        assert loaded[0] == Loaded([], failure=ReadFailure.UNAVAILABLE, damaged=True)
        assert (bytes_of(loaded[1]), loaded[1].failure) == ([bytes_in(there, 1)], None)
        assert bytes_of(loaded[2]) == [bytes_in(written, 2)]


async def test_a_page_too_large_to_be_kept_is_read_run_by_run(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(PARTITIONS)
    written = await an_object(log, "a")
    tiny = RING.model_copy(update={"page_cache_bytes": 100, "catch_up_cache_bytes": 100})
    selected = {place: [run] for place, run in enumerate(written.runs)}
    async with an_agent_reading(sequencer, store, ring=tiny) as agent:
        loaded = await load_runs(agent.pages, selected)

        assert [bytes_of(loaded[place]) for place in selected] == [
            [bytes_in(written, place)] for place in selected
        ]
        assert agent.pages.pages.counts.gets == PARTITIONS
        assert agent.pages.pages.counts.bytes_read == sum(run.length for run in written.runs)
