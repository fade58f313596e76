"""Bulk has a lane for itself: what waits there keeps no other batch waiting."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agent.write_path.appended_batches import Appended
from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned
from sequencer.topics.topics import Topic
from storage.identifiers import ObjectKey, Offset
from storage.segments.segment_batches import PendingBatches
from storage.stores.memory_store import MemoryStore
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
