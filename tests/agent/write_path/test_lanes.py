"""Bulk has a lane for itself: what waits there keeps no other batch waiting."""

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from agent.write_path.appended_batches import Appended, OwnLane
from agent.write_path.outcomes import WriteFailed, WriteFailure
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned
from sequencer.topics.topics import Topic
from storage.identifiers import ObjectKey, Offset
from storage.segments.segment_batches import PendingBatches
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import StoreUnavailable
from tests.agent.write_path.wired import Writer, outcomes_of, pending, writing
from tests.support.waiting import until


class GatedStore(MemoryStore):
    """Puts of segments with more than `large` bytes wait for `gate`."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.large = large
        self.gate = asyncio.Event()
        self.waiting = 0

    async def put(self, key: ObjectKey, chunks: Sequence[Any]) -> None:
        if sum(map(len, chunks)) > self.large:
            self.waiting += 1
            await self.gate.wait()
        await super().put(key, chunks)


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 4, {})


def bulk(writer: Writer, topic: Topic, sequences: Sequence[int], producer_id: int = 9) -> Appended:
    """One request of these batches."""
    return writer.write_path.append(
        PendingBatches.of([pending(topic, sequence, producer_id=producer_id) for sequence in sequences]),
        is_bulk=True,
    )


async def test_bulk_that_cannot_be_uploaded_keeps_no_other_batch_waiting(
    sequencer: Sequencer, topic: Topic
) -> None:
    store = GatedStore(large=1_500)
    async with writing(
        sequencer, store, segment_size_bytes=2_000, max_uploads=4, bulk_uploads=2, hedge_after_min_s=60
    ) as writer:
        stuck = [bulk(writer, topic, range(start, start + 30)) for start in range(0, 300, 30)]
        await until(lambda: store.waiting == 2)

        written = await outcomes_of(writer.append(topic, 0, 1, 2, partition=1))

        assert written == [Assigned(base_offset=Offset(offset)) for offset in range(3)]
        assert store.waiting == 2, "further bulk waits sealed or gathered"
        assert not any(one.is_done for one in stuck)
        assert writer.write_path.sealed_segments == 0
        assert writer.metric("tidelog_bulk_unacknowledged_bytes") > 0
        store.gate.set()
        outcomes = await outcomes_of(stuck)
        assert outcomes == [Assigned(base_offset=Offset(offset)) for offset in range(300)], "in order, all"
        assert writer.metric("tidelog_bulk_unacknowledged_bytes") == 0
        assert writer.metric("tidelog_write_wait_seconds_count", lane="bulk") > 1
        assert writer.metric("tidelog_write_wait_seconds_count", lane="normal") >= 1


async def test_one_place_for_uploads_is_left_to_others(sequencer: Sequencer, topic: Topic) -> None:
    store = GatedStore(large=1_500)
    async with writing(
        sequencer, store, segment_size_bytes=2_000, max_uploads=2, bulk_uploads=16, hedge_after_min_s=60
    ) as writer:
        stuck = bulk(writer, topic, range(100))
        await until(lambda: store.waiting == 1)

        await outcomes_of(writer.append(topic, 0, partition=1))

        assert store.waiting == 1
        store.gate.set()
        await outcomes_of([stuck])


async def test_a_segment_of_bulk_has_a_bounded_number_of_batches(sequencer: Sequencer, topic: Topic) -> None:
    async with writing(sequencer, MemoryStore(), bulk_batches_per_commit=7) as writer:
        outcomes = await outcomes_of([bulk(writer, topic, range(50))])

        assert outcomes == [Assigned(base_offset=Offset(offset)) for offset in range(50)]
        assert len(writer.notified.objects) == 8


async def test_bulk_takes_no_token_of_the_put_budget(sequencer: Sequencer, topic: Topic) -> None:
    async with writing(sequencer, MemoryStore(), put_budget_per_s=1e-9, put_budget_burst=1) as writer:
        await outcomes_of([bulk(writer, topic, range(3))])
        assert writer.metric("tidelog_seals_total", reason="age") == 1

        await outcomes_of(writer.append(topic, 0, partition=1))

        assert writer.metric("tidelog_seals_total", reason="token") == 1


async def test_bulk_is_drained_and_given_up_like_all_else(sequencer: Sequencer, topic: Topic) -> None:
    async with writing(sequencer, MemoryStore(), linger_ms=60_000) as writer:
        waiting = bulk(writer, topic, range(3))

        await asyncio.wait_for(writer.write_path.drain(), 60)

        assert waiting.is_done
    async with writing(sequencer, MemoryStore(), linger_ms=60_000) as writer:
        left = bulk(writer, topic, range(3, 6))
        await asyncio.sleep(0)  # the write path begins to run
    assert left.is_done
    assert writer.write_path.unacknowledged_bytes == 0


class BrokenForLarge(MemoryStore):
    """Takes no segment with more than `large` bytes. Others wait for `gate`."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.large = large
        self.gate = asyncio.Event()

    async def put(self, key: ObjectKey, chunks: Sequence[Any]) -> None:
        if sum(map(len, chunks)) > self.large:
            raise StoreUnavailable("it is too large")
        await self.gate.wait()
        await super().put(key, chunks)


async def test_a_connection_whose_last_upload_failed_still_waits_for_earlier_ones(
    sequencer: Sequencer, topic: Topic
) -> None:
    store, own = BrokenForLarge(large=1_500), OwnLane()
    async with writing(sequencer, store, upload_attempts=1, hedge_after_min_s=60) as writer:
        [first] = writer.append(topic, 0)
        own.took(first)
        await until(lambda: writer.write_path.sealed_segments == 1)
        large = PendingBatches.of([pending(topic, number, partition=1) for number in range(30)])
        second = writer.write_path.append(large)
        own.took(second)
        await second.answered()

        assert {type(outcome) for outcome in second.outcomes} == {WriteFailed}
        assert second.is_done
        assert own.must_wait(is_bulk=True)
        assert not own.must_wait(is_bulk=False)
        emptied = asyncio.create_task(own.emptied())
        store.gate.set()
        await asyncio.wait_for(emptied, 60)
        assert first.is_done
        assert not own.must_wait(is_bulk=True)


async def test_a_failed_upload_of_one_lane_fails_nothing_of_the_other(
    sequencer: Sequencer, topic: Topic
) -> None:
    store = BrokenForLarge(large=1_500)
    store.gate.set()
    async with writing(sequencer, store, upload_attempts=1, hedge_after_min_s=60) as writer:
        large = bulk(writer, topic, range(30))
        small = writer.append(topic, 0, 1, partition=1)

        assert await outcomes_of(small) == [Assigned(base_offset=Offset(offset)) for offset in range(2)]
        failed = await outcomes_of([large])
        assert {one.failure for one in failed if isinstance(one, WriteFailed)} == {WriteFailure.NOT_WRITTEN}
        again = await outcomes_of([bulk(writer, topic, [number]) for number in range(3)])

        assert again == [Assigned(base_offset=Offset(offset)) for offset in range(3)]
        assert writer.write_path.unacknowledged_bytes == 0


async def test_both_lanes_keep_their_order_while_connections_to_postgres_die(
    sequencer: Sequencer, topic: Topic, database_url: str
) -> None:
    """One producer in each lane, and one that changes lanes as a connection does."""
    everyone = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    own, changing = OwnLane(), []
    async with writing(sequencer, MemoryStore(), segment_size_bytes=1024) as writer:
        calm, heavy = [], []
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            for number in range(100):
                calm += writer.append(topic, number)
                heavy.append(bulk(writer, topic, [number]))
                is_bulk = number // 7 % 2 == 1
                if own.must_wait(is_bulk=is_bulk):
                    await asyncio.wait_for(own.emptied(), 60)
                changing.append(
                    writer.write_path.append(
                        PendingBatches.of([pending(topic, number, producer_id=5, partition=2)]),
                        is_bulk=is_bulk,
                    )
                )
                own.took(changing[-1])
                if number % 10 == 0:
                    await connection.execute(everyone)
                await asyncio.sleep(0.005)

        expected = [Assigned(base_offset=Offset(offset)) for offset in range(100)]
        assert await outcomes_of(changing) == expected
        for outcomes in (await outcomes_of(calm), await outcomes_of(heavy)):
            offsets = [one.base_offset for one in outcomes if isinstance(one, Assigned)]
            assert len(offsets) == 100, "all are written"
            assert offsets == sorted(offsets), "in order"
        assert await writer.high_watermark(topic) == 200
