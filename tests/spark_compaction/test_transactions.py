"""History holds what readers of committed data see: no open transaction, no aborted record, no marker."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from sequencer.client import Sequencer
from spark_compaction.settings import CompactionSettings
from storage.identifiers import Partition
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import StoreSettings
from tests.agent.running import Running, running
from tests.compactor.merging import merge_everything
from tests.erasure.reading import Row, consumed
from tests.spark_compaction.log import Log, SentBatch, Transaction, drop_local, one, records
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


@pytest.mark.parametrize("seed", range(3))
async def test_consumers_read_through_parquet_and_runs_what_transactions_left(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
    seed: int,
) -> None:
    """An aborted record stays for those who read uncommitted ones until its run gives way to Parquet."""
    chance = Random(seed)
    await log.topic("orders", PARTITIONS, tidelog_history="log", local_retention_ms="0", retention_ms="-1")
    producers = [await log.transaction(f"producer {number}") for number in range(3)]
    small = settings.model_copy(update={"parquet_row_group_bytes": 256, "parquet_file_bytes": 1024})
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        for _ in range(3):
            await write_at_random(log, "orders", producers, chance, 30)
            await compact_one(small, "orders")
            await drop_local(sequencer)

            await check_consumers(log, agent, producers, chance)
    await write_at_random(log, "orders", producers, chance, 20)
    async with running(database_url, store_url, store_settings=store_settings) as fresh:
        await check_consumers(log, fresh, producers, chance)


async def check_consumers(log: Log, agent: Running, producers: Sequence[Transaction], random: Random) -> None:
    parts = [(log.topic_ids["orders"], Partition(number)) for number in range(PARTITIONS)]
    bounds = {part[1]: found for part, found in (await log.sequencer.coordinates.bounds(parts)).items()}
    others = log.aborted["orders"] + [row for producer in producers for _, row in producer.written]
    still_raw = [row for row in others if row[1] >= bounds[Partition(row[0])].local_start_offset]
    committed = [short(row) for row in await stable_rows(log, "orders")]
    uncommitted = {short(row) for row in written_rows(log, "orders") + still_raw}
    assert min(found.local_start_offset for found in bounds.values()) > 0

    stable = min(found.last_stable_offset for found in bounds.values())
    for offset in (0, *random.sample(range(stable), 3)):
        found = await consumed(agent, "orders", PARTITIONS, offset=offset)
        assert found == [row for row in committed if row[1] >= offset]
        found = await consumed(agent, "orders", PARTITIONS, offset=offset, isolation="read_uncommitted")
        assert found == sorted(set(found))
        assert {row for row in uncommitted if row[1] >= offset} <= set(found)
        # An agent may read a run a while longer.
        assert set(found) - uncommitted <= {short(row) for row in others}


def short(row: tuple[Any, ...]) -> Row:
    """As a consumer's rows: partition, offset, key and value."""
    return row[0], row[1], row[4], row[5]
