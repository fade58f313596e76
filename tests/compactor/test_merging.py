"""Merging with a real Postgres and real stores: the log is the same before and after, whatever happens meanwhile."""

import pytest

from compactor.doctor import examine
from sequencer.client import Sequencer
from sequencer.topics import Topic
from storage.object_store import ObjectStore
from tests.compactor.builders import CLUSTER
from tests.compactor.merging import a_log, merge_everything, read_all


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 3, {"retention.ms": "-1"})


async def test_many_small_runs_become_few_long_ones_with_every_byte_in_its_place(
    sequencer: Sequencer, any_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, any_store, topic, segments=70)
    before = await read_all(sequencer, any_store, topic)

    merges = await merge_everything(sequencer, any_store)

    after = await read_all(sequencer, any_store, topic)
    print(merges, [r.runs for r in before], [r.runs for r in after], await sequencer.merges.totals())
    assert [each.batches for each in after] == [each.batches for each in before]
    assert (await examine(sequencer, any_store, CLUSTER, verify_contents=True)).is_healthy
