"""Erasing from a log with transactions: they end as they would have, and aborted records go, too."""

import asyncio

import pytest

from spark_compaction.compact import compact_topics
from storage.batches.record_batch import Compression
from storage.stores.inline_objects import InlineObjects
from storage.stores.object_store import StoreSettings
from tests.agent.running import running
from tests.compactor.merging import merge_everything
from tests.erasure.conftest import SECRET, Place
from tests.erasure.reading import Row, consumed
from tests.spark_compaction.log import Sent, SentBatch, Transaction, one
from tests.spark_compaction.reading import iceberg_rows


async def write_in(place: Place, transaction: Transaction, name: str) -> None:
    """One batch with other records and one of `K` alone."""
    own = [Sent(key=key, value=value) for key, value in ((b"a", name.encode()), (b"K", SECRET))]
    for records in (own, own[1:]):
        batch = SentBatch(partition=0, records=records, compression=Compression.NONE)
        await place.log.write_in(transaction, "orders", batch)


async def write_all_sorts(place: Place) -> tuple[Transaction, list[Row]]:
    """Returns an open transaction, and the aborted records without those of `K`. The topic exists."""
    aborted: list[Row] = []
    for number in range(4):
        first, second = [await place.log.transaction(f"{number} {part}") for part in range(2)]
        for step in range(2):
            await write_in(place, first, f"first {step}")
            await write_in(place, second, f"second {step}")
        aborted += [(row[0], row[1], row[4], row[5]) for _, row in first.written if row[4] != b"K"]
        await place.log.end(first, commit=False)
        await place.log.end(second, commit=True)
    still_open = await place.log.transaction("open")
    await write_in(place, still_open, "open")
    await place.log.write("orders", one(0, Sent(key=b"b")))
    return still_open, aborted


def committed(place: Place) -> list[Row]:
    rows = [(row[0], row[1], row[4], row[5]) for row in place.log.expected["orders"] if row[4] != b"K"]
    return sorted(rows, key=lambda row: row[1])


@pytest.mark.parametrize("merged", [False, True])
async def test_consumers_see_what_transactions_left_without_the_erased_records(
    place: Place, database_url: str, store_url: str, store_settings: StoreSettings, merged: bool
) -> None:
    await place.log.topic("orders", retention_ms="-1")
    still_open, aborted = await write_all_sorts(place)
    if merged:
        await merge_everything(place.sequencer, InlineObjects(place.store))

    async with place.kept():
        report = await place.erase(b"K")
    await place.log.end(still_open, commit=True)

    assert await place.objects_with(SECRET) == []
    assert report.raw_records == 34
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        assert await consumed(agent, "orders", 1) == committed(place)
        everything = await consumed(agent, "orders", 1, isolation="read_uncommitted")
    assert everything == sorted(committed(place) + aborted, key=lambda row: row[1])
    assert await place.is_healthy()


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
async def test_a_table_of_what_was_erased_has_the_committed_records(place: Place, catalog_url: str) -> None:
    await place.log.topic("orders", retention_ms="-1")
    still_open, _ = await write_all_sorts(place)
    async with place.kept():
        await place.erase(b"K")
    await place.log.end(still_open, commit=True)

    report = await asyncio.to_thread(compact_topics, place.settings, ["orders"])

    assert report.topics[0].raw_ranges == ()
    rows = await iceberg_rows(place.settings.model_copy(update={"http_url": catalog_url}), "orders")
    assert [(row[0], row[1], row[4], row[5]) for row in rows] == committed(place)
