"""Reading ahead: one task loads each page, and pages that were read free their room."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from agent.read_path.read_ahead import AheadLimits, ReadAhead
from agent.read_path.settings import ReadPathSettings
from cache_ring.pages.page_reader import PageReader
from cache_ring.pages.store_pages import StorePages
from cache_ring.peers.peer_client import PeerClient
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.commits.coordinates import RunCoordinate
from storage.identifiers import ObjectKey, Offset, Partition, new_segment_id
from storage.segments.keys import merged_key
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore, StoreUnavailable
from tests.agent.read_path.a_log import RING, ALog, AReader, an_agent_reading, read_now, values_of
from tests.cache_ring.builders import a_run, an_address
from tests.support.waiting import until

OBJECT_BYTES = 1_000
READER_PAGES = 6


class GatedStore(MemoryStore):
    """Answers once the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked: list[ObjectKey] = []
        self.is_away = False

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append(key)
        await self.gate.wait()
        if self.is_away:
            raise StoreUnavailable("it is away")
        return await super().get(key, start, end)


async def test_a_page_for_readers_of_two_partitions_is_loaded_ahead_by_one_task(
    sequencer: Sequencer,
) -> None:
    """The second reader requests the page while it is still being loaded ahead of the first."""
    store, key = GatedStore(), merged_key("tidelog", new_segment_id())
    await store.put(key, [bytes(2_000)])
    pages = StorePages(store, store, RING)
    membership = Membership(sequencer.agents, an_address(), RING)
    reader = PageReader(membership, pages, PeerClient(RING, membership.peer_secrets), RING)
    ahead = ReadAhead(reader, AheadLimits.of(ReadPathSettings(), 4 << 20))
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    before = asyncio.all_tasks()
    for first in (0, 1_000):
        connection = AReader()
        runs = [
            a_run(at, at + 9, object_key=key, position=first + 10 * at, length=100, object_size_bytes=2_000)
            for at in (0, 10, 20)
        ]
        ahead.reader_at(connection, (runs[0].topic_id, runs[0].partition), runs, runs[:1])

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


@dataclass(kw_only=True)
class Gated:
    """Reading ahead at a store that answers once the test allows it."""

    store: GatedStore
    ahead: ReadAhead

    async def objects(self, count: int, partition: int = 0) -> list[RunCoordinate]:
        """Objects of one run each, of one partition."""
        keys = [merged_key("tidelog", new_segment_id()) for _ in range(count)]
        for key in keys:
            await self.store.put(key, [bytes(OBJECT_BYTES)])
        return [
            a_run(
                10 * at,
                10 * at + 9,
                partition=partition,
                object_key=key,
                position=0,
                length=OBJECT_BYTES,
                object_size_bytes=OBJECT_BYTES,
            )
            for at, key in enumerate(keys)
        ]

    def read(self, reader: AReader, runs: Sequence[RunCoordinate], count: int = 1) -> None:
        self.ahead.reader_at(reader, (runs[0].topic_id, runs[0].partition), runs, runs[:count])


@asynccontextmanager
async def gated(sequencer: Sequencer, **limits: Any) -> AsyncIterator[Gated]:
    store = GatedStore()
    membership = Membership(sequencer.agents, an_address(), RING)
    pages = StorePages(store, store, RING)
    reader = PageReader(membership, pages, PeerClient(RING, membership.peer_secrets), RING)
    settings = ReadPathSettings(catch_up_reader_ahead_pages=READER_PAGES).model_copy(update=limits)
    ahead = ReadAhead(reader, AheadLimits.of(settings, 1 << 20))
    yield Gated(store=store, ahead=ahead)
    await ahead.close()
    await reader.close()


async def test_loads_and_pages_ahead_are_bounded(sequencer: Sequencer) -> None:
    async with gated(sequencer, catch_up_read_ahead_loads=3) as all_of:
        runs = await all_of.objects(20)

        all_of.read(AReader(), runs)
        await until(lambda: len(all_of.store.asked) == 3)
        assert (all_of.ahead.loading, all_of.ahead.unread_pages) == (3, READER_PAGES)
        all_of.store.gate.set()
        await until(lambda: not all_of.ahead.loading)

        assert all_of.store.asked == [run.object_key for run in runs[1 : 1 + READER_PAGES]]


async def test_reading_ahead_ends_when_the_connection_closes(sequencer: Sequencer) -> None:
    async with gated(sequencer, catch_up_read_ahead_loads=2) as all_of:
        reader = AReader()
        all_of.read(reader, await all_of.objects(20))
        await until(lambda: len(all_of.store.asked) == 2)

        reader.is_gone = True
        all_of.store.gate.set()
        await until(lambda: not all_of.ahead.loading)

        assert (len(all_of.store.asked), all_of.ahead.unread_bytes) == (2, 0)
        assert all_of.ahead.counts.bytes_wasted > 0


async def test_a_reader_that_jumps_frees_its_room_for_its_new_place(sequencer: Sequencer) -> None:
    async with gated(sequencer) as all_of:
        reader, runs = AReader(), await all_of.objects(40)
        all_of.store.gate.set()
        all_of.read(reader, runs)
        await until(lambda: all_of.ahead.counts.loads == READER_PAGES)

        all_of.read(reader, runs[30:])
        await until(lambda: all_of.ahead.counts.loads == 2 * READER_PAGES)

        assert set(all_of.store.asked) == {run.object_key for run in (*runs[1:7], *runs[31:37])}
        assert all_of.ahead.counts.bytes_wasted == READER_PAGES * OBJECT_BYTES


async def test_a_load_that_is_cancelled_before_it_began_frees_its_place(sequencer: Sequencer) -> None:
    """One fetch may name a partition twice, first further on."""
    async with gated(sequencer) as all_of:
        reader, runs = AReader(), await all_of.objects(40)
        all_of.read(reader, runs[20:])
        all_of.read(reader, runs)
        all_of.store.gate.set()
        await until(lambda: not all_of.ahead.loading)

        all_of.read(AReader(), runs)
        await until(lambda: all_of.ahead.counts.loads > 0 and not all_of.ahead.loading)

        assert {run.object_key for run in runs[20:]}.isdisjoint(all_of.store.asked)


async def test_a_failed_load_does_not_take_the_page_from_its_next_reader(
    sequencer: Sequencer,
) -> None:
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    async with gated(sequencer) as all_of:
        one, other, runs = AReader(), AReader(), await all_of.objects(3)
        all_of.read(one, runs)
        await until(lambda: len(all_of.store.asked) == 2)
        all_of.read(one, runs[1:])
        all_of.read(other, runs)
        all_of.store.is_away = True
        all_of.store.gate.set()
        await until(lambda: not all_of.ahead.loading)
        assert (all_of.ahead.unread_bytes, all_of.ahead.unread_pages, broken) == (0, 0, [])

        all_of.store.is_away = False
        all_of.read(other, runs)
        await until(lambda: all_of.ahead.counts.loads == 2)


async def test_readers_take_turns_and_share_the_room(sequencer: Sequencer) -> None:
    limits = {"catch_up_read_ahead_loads": 2, "catch_up_read_ahead_bytes": 8 * OBJECT_BYTES}
    async with gated(sequencer, **limits) as all_of:
        first, second = [await all_of.objects(20, partition) for partition in range(2)]
        one, other = AReader(), AReader()
        all_of.read(one, first)
        all_of.read(other, second)
        assert all_of.ahead.unread_pages == 8
        all_of.store.gate.set()
        await until(lambda: all_of.ahead.counts.loads == 8)
        theirs = {run.object_key for run in second}
        assert [key in theirs for key in all_of.store.asked[:6]].count(True) == 2

        all_of.read(one, first[1:], count=6)
        all_of.read(other, second[1:])

        await until(lambda: not all_of.ahead.loading)
        assert len(theirs.intersection(all_of.store.asked)) == 5


async def test_every_object_is_got_once_and_before_its_reader_asks(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    for number in range(40):
        await log.write([str(number)])
    history = RING.model_copy(update={"tail_age_s": 0.000_001})
    few = ReadPathSettings(coordinate_read_runs=8)
    async with an_agent_reading(sequencer, store, ring=history, reads=few) as agent:
        found: list[tuple[int, str]] = []
        while len(found) < 40:
            [result, empty] = await read_now(agent, log.plan(len(found), 0, partition_max_bytes=1))
            assert (empty.failure, empty.size_bytes, empty.high_watermark) == (None, 0, 0)
            found += values_of(result)
            await until(lambda: not agent.reads.is_going_ahead)

        assert found == [(number, str(number)) for number in range(40)]
        assert agent.pages.pages.counts.gets == 40
        assert agent.reads.read_ahead.counts.loads == 39
        assert agent.reads.read_ahead.counts.bytes_wasted == 0
        assert (agent.reads.counts.sequencer_asks, agent.reads.counts.sequencer_asks_ahead) == (1, 4)


async def test_an_object_loaded_ahead_is_got_once_per_zone(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    for number in range(30):
        await log.write([str(number)])
    history = RING.model_copy(update={"tail_age_s": 0.000_001})
    async with (
        an_agent_reading(sequencer, store, ring=history) as one,
        an_agent_reading(sequencer, store, ring=history) as other,
    ):
        await until(lambda: len(one.membership.ring.agents) == len(other.membership.ring.agents) == 2)
        for agent in (one, other):
            for offset in range(30):
                [result] = await read_now(agent, log.plan(offset, partition_max_bytes=1))
                assert values_of(result) == [(offset, str(offset))]
            await until(lambda agent=agent: not agent.reads.is_going_ahead)  # type: ignore[misc]

        assert sum(agent.pages.pages.counts.gets for agent in (one, other)) == 30


@pytest.mark.parametrize("lost", ["one object", "a truncated log"])
async def test_answers_are_the_same_as_without_reading_ahead(
    sequencer: Sequencer, store: ObjectStore, lost: str
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    written = [await log.write([str(number)]) for number in range(12)]
    history = RING.model_copy(
        update={"tail_age_s": 0.000_001, "catch_up_cache_bytes": 2 * len(written[0].data)}
    )
    answers = []
    async with (
        an_agent_reading(sequencer, store, zone="a", ring=history) as ahead,
        an_agent_reading(
            sequencer, store, zone="b", ring=history, reads=ReadPathSettings(catch_up_read_ahead_bytes=0)
        ) as plain,
    ):
        for agent in (ahead, plain):
            await read_now(agent, log.plan(0, partition_max_bytes=1))
        await until(lambda: not ahead.reads.is_going_ahead)
        if lost == "one object":
            await store.delete([written[5].object_key])
        else:
            await sequencer.retention.delete_records(log.topic_id, Partition(0), Offset(6))
            for agent in (ahead, plain):
                agent.reads.coordinates.forget((log.topic_id, Partition(0)))
        for agent in (ahead, plain):
            results = [
                (await read_now(agent, log.plan(offset, partition_max_bytes=1)))[0] for offset in range(1, 12)
            ]
            answers.append(
                [(result.failure, result.log_start_offset, values_of(result)) for result in results]
            )

    assert answers[0] == answers[1]
    assert any(failure is not None for failure, _, _ in answers[0])
    assert answers[0][-1][2] == [(11, "11")]
