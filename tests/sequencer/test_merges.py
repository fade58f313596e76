"""Merging on the real Postgres: candidates, claims, swaps, and what races them."""

import pytest

from sequencer.client import Sequencer
from sequencer.merge_values import SwapsDone
from sequencer.topics import Topic
from tests.sequencer.housekeeping import (
    segment_row,
)
from tests.sequencer.merges import (
    a_log,
    merge_all,
    runs_of,
)


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 3, {})


async def test_many_runs_become_one_per_partition_and_the_log_stays_what_it_was(
    sequencer: Sequencer, topic: Topic
) -> None:
    await a_log(sequencer, topic, segments=4)
    before = await sequencer.database.fetch("SELECT * FROM partitions ORDER BY partition")
    newest = await sequencer.database.fetch("SELECT max(committed_at) AS at FROM segments")

    _, output, answer = await merge_all(sequencer)

    assert answer == SwapsDone(places=frozenset({0, 1, 2}))
    assert [await runs_of(sequencer, topic, partition) for partition in range(3)] == [[(0, 7)]] * 3
    assert await sequencer.database.fetch("SELECT * FROM partitions ORDER BY partition") == before
    row = await segment_row(sequencer, output.segment_id)
    assert row is not None
    assert (row.state, row.tier, row.size_bytes, row.committed_at) == ("committed", 1, 10_000, newest[0].at)
    [run] = await sequencer.database.fetch("SELECT * FROM runs WHERE partition = 0")
    assert (run.min_timestamp_ms, run.max_timestamp_ms, run.running_max_timestamp_ms) == (1_000, 1_003, 1_003)
    assert (run.segment_id, run.length) == (output.segment_id, 400)
