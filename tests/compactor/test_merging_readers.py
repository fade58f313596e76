"""Readers while segments are merged: the read side of real agents over a real store sees every record once,
in order.

Merging raises no coordinate epoch. So the runs that an agent knows and those of the sequencer may have
different borders: a merged run may begin below a reader's offset, or below the end that its agent knows.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agent.read_path.settings import ReadPathSettings
from compactor.merging import Merger
from sequencer.client import Sequencer
from sequencer.commits.coordinates import CoordinateRequest
from storage.identifiers import Offset, Partition
from storage.stores.object_store import ObjectStore
from tests.agent.read_path.a_log import ALog, an_agent_reading, read_now, values_of
from tests.agent.read_path.wired import ReadSide
from tests.compactor.merging import a_merger, discover
from tests.support.waiting import until

NEVER_POLLS = ReadPathSettings(coordinate_poll_s=3600.0)
MERGES: dict[str, Any] = {"merge_object_bytes": 1_024, "merge_run_bytes": 1_024}
SMALL = {"partition_max_bytes": 1, "max_bytes": 1}


@pytest.fixture
async def log(sequencer: Sequencer, local_store: ObjectStore) -> ALog:
    created = await ALog(sequencer=sequencer, store=local_store).create()
    await sequencer.topics.alter_config("orders", {"retention.ms": "-1"}, ())
    return created


async def write(log: ALog, count: int, first: int = 0) -> None:
    """Segments of one batch with two records each."""
    for number in range(first, first + count):
        await log.write([f"{2 * number}", f"{2 * number + 1}"])


async def merge(log: ALog) -> int:
    """Merges everything possible. Returns the number of merges."""
    await discover(log.sequencer, **MERGES)
    merger: Merger = a_merger(log.sequencer, log.store, **MERGES)
    merges = 0
    while await merger.merge_once():
        merges += 1
    return merges


async def read_on(agent: ReadSide, log: ALog, offset: int, end: int, **limits: Any) -> list[tuple[int, str]]:
    """As a consumer does: fetch after fetch, dropping what lies before its position."""
    found: list[tuple[int, str]] = []
    async with asyncio.timeout(60):
        while offset < end:
            [result] = await read_now(agent, log.plan(offset, **limits), wait_s=0.2)
            assert result.failure is None
            news = [record for record in values_of(result) if offset <= record[0] < end]
            assert [at for at, _ in news] == list(range(offset, offset + len(news)))
            found += news
            offset += len(news)
    return found


async def run_at(log: ALog, offset: int) -> int:
    """The last offset of the run that begins below an offset, as the sequencer says."""
    request = CoordinateRequest(
        topic_id=log.topic_id, partition=Partition(0), from_offset=Offset(offset), max_runs=1
    )
    [found] = (await log.sequencer.coordinates.read([request])).values()
    assert found.runs[0].base_offset < offset
    return found.runs[0].last_offset


def numbered(first: int, end: int) -> Sequence[tuple[int, str]]:
    return [(offset, str(offset)) for offset in range(first, end)]


@pytest.mark.parametrize("offset", [0, 1, 7, 16, 30])
async def test_a_reader_in_the_middle_goes_on_through_merged_runs(log: ALog, offset: int) -> None:
    await write(log, 16)
    async with (
        an_agent_reading(log.sequencer, log.store) as knows,
        an_agent_reading(log.sequencer, log.store, zone="b") as fresh,
    ):
        before = await read_on(knows, log, 0, offset + 1, **SMALL)
        merges = await merge(log)
        after = await read_on(knows, log, offset + 1, 32, **SMALL)
        elsewhere = await read_on(fresh, log, offset, 32, **SMALL)

    assert merges > 0
    assert [*before, *after] == numbered(0, 32)
    assert elsewhere == numbered(offset, 32)


async def test_the_end_that_an_agent_knows_may_lie_inside_a_merged_run(log: ALog) -> None:
    """It learns of new records only after their run was merged with runs that it knows."""
    await write(log, 3)
    async with an_agent_reading(log.sequencer, log.store, reads=NEVER_POLLS) as agent:
        known = await read_on(agent, log, 0, 6)
        await write(log, 13, first=3)
        assert await merge(log) > 0
        assert await run_at(log, 6) > 6, "the end that the agent knows lies inside a run"
        await write(log, 2, first=16)
        since = await read_on(agent, log, 6, 36)

        [at_the_end] = await read_now(agent, log.plan(36))
        again = await read_on(agent, log, 0, 36, **SMALL)

    assert (known, since, again) == (numbered(0, 6), numbered(6, 36), numbered(0, 36))
    assert (at_the_end.high_watermark, values_of(at_the_end)) == (36, [])


async def test_tail_and_catch_up_read_on_while_everything_is_written_and_merged(log: ALog) -> None:
    """Polling agents, one at the tail and one from the beginning, with merges of tier after tier
    meanwhile.
    """
    total = 60
    async with (
        an_agent_reading(log.sequencer, log.store) as first,
        an_agent_reading(log.sequencer, log.store, zone="b") as second,
    ):
        tail = asyncio.create_task(read_on(first, log, 0, 2 * total))
        behind = asyncio.create_task(read_on(second, log, 0, 2 * total, **SMALL))
        merges = 0
        for number in range(0, total, 6):
            await write(log, 6, first=number)
            merges += await merge(log)

        assert await tail == numbered(0, 2 * total)
        assert await behind == numbered(0, 2 * total)
    assert merges > 5


async def test_a_merged_object_is_read_through_its_owner_in_the_zone(log: ALog) -> None:
    await write(log, 16)
    await merge(log)
    async with (
        an_agent_reading(log.sequencer, log.store) as one,
        an_agent_reading(log.sequencer, log.store) as other,
    ):
        await until(lambda: all(len(agent.membership.ring.agents) == 2 for agent in (one, other)))
        found = [await read_on(agent, log, 0, 32) for agent in (one, other)]

        gets = sum(agent.pages.pages.counts.gets for agent in (one, other))
        coordinates = await log.sequencer.merges.totals()

    assert found == [numbered(0, 32)] * 2
    objects = next(each.done.objects_out for each in coordinates if each.tier == 1)
    left = 16 - next(each.done.objects_in for each in coordinates if each.tier == 1)
    assert gets <= objects + left + 1
