"""Erasing from history: a table beside the log, and Parquet as the log."""

import asyncio
from typing import Any

import psycopg
import pytest

from compactor.history_log_jobs import LocalRetentionJob
from compactor.settings import HousekeeperSettings
from erasure.report import ErasureProgress
from sequencer.client import Sequencer
from spark_compaction.compact import compact_topics
from storage.stores.object_store import StoreSettings
from tests.agent.running import running
from tests.erasure.conftest import Place
from tests.erasure.reading import Row, consumed
from tests.spark_compaction.log import Sent, one, records
from tests.spark_compaction.reading import Rows, iceberg_rows
from tests.spark_compaction.state.model import state_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
UNHURRIED: dict[str, float] = {
    "ownership_ratchet_s": 4.0, "garbage_grace_s": 8.01, "late_write_window_s": 8.01
}  # fmt: skip
"""Spark takes its time, and must not miss a ratchet."""
KEY = b"key-of-K-in-plain-bytes"


async def _write(place: Place, segments: int, first: int = 0) -> None:
    for number in range(first, first + segments):
        own = list(records(20, 100 * number))
        own.insert(5, Sent(key=KEY, value=b"of K %d" % number))
        await place.log.write("orders", one(0, *own), one(1, *records(5, number), *own))


async def _compact(place: Place) -> Any:
    return await asyncio.to_thread(compact_topics, place.settings, ["orders"])


def _left(place: Place) -> Rows:
    return sorted((row for row in place.log.expected["orders"] if row[4] != KEY), key=lambda row: row[:2])


def _consumed_rows(place: Place) -> list[Row]:
    return [(row[0], row[1], row[4], row[5]) for row in _left(place)]


async def _drop_local(sequencer: Sequencer) -> None:
    job = LocalRetentionJob(
        sequencer, HousekeeperSettings(retention_runs_per_step=64, retention_partitions_at_once=4)
    )
    progress = None
    while True:
        step = await job.step(progress)
        progress = step.progress
        if not step.more:
            return


async def test_a_table_of_a_compacted_topic_loses_the_key(place: Place, catalog_url: str) -> None:
    await place.log.topic("orders", 2, cleanup_policy="compact")
    await _write(place, 3)
    await _compact(place)
    await _write(place, 2, 3)  # not in the table yet

    async with place.kept(**UNHURRIED):
        report = await place.erase(KEY)

    assert report.history_records == 2
    assert await place.objects_holding(KEY) == []
    settings = place.settings.model_copy(update={"http_url": catalog_url})
    await _compact(place)
    assert await iceberg_rows(settings, "orders") == state_of(_left(place))
    assert await place.objects_holding(KEY) == []


async def test_a_table_beside_the_log_loses_the_same_records(
    place: Place, catalog_url: str, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    await place.log.topic("orders", 2, retention_ms="-1", tidelog_history="table")
    await _write(place, 3)
    await _compact(place)
    await _write(place, 3, 3)
    await _compact(place)
    await _write(place, 2, 6)  # not in history yet

    async with place.kept(**UNHURRIED):
        report = await place.erase(KEY)

    assert (report.raw_records, report.history_records) == (16, 12)
    assert await place.objects_holding(KEY) == []
    settings = place.settings.model_copy(update={"http_url": catalog_url})
    in_table = await iceberg_rows(settings, "orders")
    assert in_table == [row for row in _left(place) if row in in_table]
    assert len(in_table) == 270
    await _compact(place)  # what was erased is no gap that stops history
    assert await iceberg_rows(settings, "orders") == _left(place)
    assert await place.sequencer.history.raw_ranges(place.log.topic_ids["orders"]) == ()
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        assert await consumed(agent, "orders", 2) == _consumed_rows(place)
    assert await place.is_healthy()


async def test_parquet_as_the_log_loses_them_and_consumers_read_on(
    place: Place, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    await place.log.topic("orders", 2, retention_ms="-1", tidelog_history="log", local_retention_ms="0")
    await _write(place, 4)
    await _compact(place)
    await _drop_local(place.sequencer)
    await _write(place, 2, 4)

    async with (
        running(database_url, store_url, store_settings=store_settings) as one_agent,
        running(database_url, store_url, store_settings=store_settings) as other,
        place.kept(**UNHURRIED),
    ):
        before = await consumed(one_agent, "orders", 2)
        assert len([row for row in before if row[2] == KEY]) == 12
        assert await consumed(other, "orders", 2) == before

        report = await place.erase(KEY)

        assert (report.raw_records, report.history_records) == (4, 8)
        for agent in (one_agent, other):
            assert await consumed(agent, "orders", 2) == _consumed_rows(place)
    assert await place.objects_holding(KEY) == []
    assert await place.is_healthy()


async def test_compaction_goes_on_behind_offsets_that_were_all_erased(
    place: Place, catalog_url: str, database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    topic_id = await place.log.topic("orders", 3, retention_ms="-1", tidelog_history="table")
    erased = Sent(key=KEY, value=b"of K")
    for number in range(3):
        await place.log.write(
            "orders",
            one(0, erased, erased),
            one(1, erased, *records(4, number), erased),
            one(2, *((erased,) if number != 1 else records(3, number))),
        )
    async with place.kept(**UNHURRIED):
        await place.erase(KEY)

    [done] = (await _compact(place)).topics

    assert (done.rows, done.raw_ranges, done.stopped, done.failed) == (15, (), (), ())
    settings = place.settings.model_copy(update={"http_url": catalog_url})
    assert await iceberg_rows(settings, "orders") == _left(place)
    ends = await place.sequencer.history.ends(topic_id)
    assert await place.sequencer.history.is_complete(topic_id, ends)
    await place.sequencer.topics.alter_config("orders", {"tidelog.history": "log", "local.retention.ms": "0"})
    await _drop_local(place.sequencer)
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        assert await consumed(agent, "orders", 3) == _consumed_rows(place)


async def test_an_erasure_from_history_goes_on_once_the_bucket_is_confirmed_again(
    place: Place, database_url: str
) -> None:
    await place.log.topic("orders", 2, retention_ms="-1", tidelog_history="table")
    await _write(place, 3)
    await _compact(place)
    happened: list[str] = []

    def unconfirm(now: ErasureProgress) -> None:
        if now.stage == "reading the history" and not happened:
            happened.append(now.stage)
            with psycopg.connect(database_url, autocommit=True) as connection:
                connection.execute("UPDATE ownership SET confirmed_at = confirmed_at - interval '1 day'")

    async with place.kept(**UNHURRIED):
        report = await place.erase(KEY, on_progress=unconfirm)

    assert happened
    assert report.history_records == 6
    assert await place.objects_holding(KEY) == []
    assert await place.is_healthy()
