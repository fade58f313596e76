"""History holds what readers of committed data see: no open transaction, no aborted record, no marker."""

from collections.abc import Sequence
from random import Random

import pytest

from sequencer.client import Sequencer
from spark_compaction.settings import CompactionSettings
from storage.identifiers import Partition
from storage.stores.inline_objects import InlineObjects
from tests.compactor.merging import merge_everything
from tests.spark_compaction.log import Log, SentBatch, Transaction, one, records
from tests.spark_compaction.reading import Rows, compact_one, iceberg_rows, written_rows

PARTITIONS = 2

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


async def stable_ends(log: Log, topic: str) -> dict[int, int]:
    parts = [(log.topic_ids[topic], Partition(number)) for number in range(PARTITIONS)]
    found = await log.sequencer.coordinates.bounds(parts)
    return {partition: bounds.last_stable_offset for (_, partition), bounds in found.items()}


async def stable_rows(log: Log, topic: str) -> Rows:
    """What readers of committed data see now."""
    ends = await stable_ends(log, topic)
    return [row for row in written_rows(log, topic) if row[1] < ends[row[0]]]


async def write_at_random(
    log: Log, topic: str, producers: Sequence[Transaction], random: Random, steps: int
) -> None:
    """Producers that interleave, within segments and across them."""
    for step in range(steps):
        batches = _some_batches(random, step)
        producer = random.choice(producers)
        match random.choice(("plain", "write", "write", "write", "commit", "abort")):
            case "plain":
                await log.write(topic, *batches)
            case "write":
                await log.write_in(producer, topic, *batches)
            case end if producer.written:
                await log.end(producer, commit=end == "commit")


def _some_batches(random: Random, step: int) -> list[SentBatch]:
    return [
        one(random.randrange(PARTITIONS), *records(random.randint(1, 5), step * 100))
        for _ in range(random.randint(1, 3))
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_several_compactions_while_transactions_open_and_end_make_the_committed_history(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, seed: int
) -> None:
    chance = Random(seed)
    await log.topic("orders", PARTITIONS)
    await log.write("orders", one(0, *records(1)))
    producers = [await log.transaction(f"producer {number}") for number in range(3)]
    for round_number in range(4):
        await write_at_random(log, "orders", producers, chance, 25)
        if round_number % 2:
            await merge_everything(sequencer, InlineObjects(log.store))
        report = await compact_one(settings, "orders")

        assert report.raw_ranges == ()
        assert [*report.stopped, *report.failed] == []
        assert await iceberg_rows(settings, "orders") == await stable_rows(log, "orders")
        assert await sequencer.history.behind() == ()
    for producer in producers:
        if producer.written:
            await log.end(producer, commit=chance.random() < 0.5)
    await compact_one(settings, "orders")

    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")
