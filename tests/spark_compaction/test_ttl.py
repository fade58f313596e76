"""TTL takes out of history exactly what `retention.ms` has expired, and deletes no object."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from sequencer.client import Sequencer
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from spark_compaction.ttl import TopicExpiry, expire_history
from storage.stores.object_store import ObjectStore
from tests.spark_compaction.log import Log, Sent, one, records
from tests.spark_compaction.reading import compact, iceberg_rows, spark_rows, the_table, written_rows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

NOW = datetime(2024, 1, 10, tzinfo=UTC)
DAY_MS = 86_400_000


def days_ago(days: float) -> int:
    return int((NOW - timedelta(days=days)).timestamp() * 1000)


async def expire(settings: CompactionSettings, topic: str, now: datetime = NOW) -> TopicExpiry:
    [report] = (await asyncio.to_thread(expire_history, settings, [topic], None, now)).topics
    return report


async def test_what_has_expired_goes_and_the_rest_stays(
    log: Log, settings: CompactionSettings, store: ObjectStore
) -> None:
    await log.topic("orders", partitions=3, retention_ms=str(2 * DAY_MS))
    await log.write("orders", one(0, *records(10, timestamp_ms=days_ago(3))))
    await compact(settings)
    mixed = [Sent(timestamp_ms=days_ago(3 if n % 2 else 1), value=str(n).encode()) for n in range(20)]
    await log.write("orders", one(1, *mixed), one(2, *records(5, timestamp_ms=days_ago(1))))
    await compact(settings)
    keys = {info.key async for info in store.list("tidelog/history/")}

    report = await expire(settings, "orders")

    assert (report.files_dropped, report.files_rewritten, report.rows_expired) == (1, 1, 20)
    cutoff = NOW - timedelta(days=2)
    kept = [row for row in written_rows(log, "orders") if row[2] >= cutoff]
    assert len(kept) == 15
    assert await spark_rows(settings, "orders") == kept
    assert await iceberg_rows(settings, "orders") == kept
    assert keys <= {info.key async for info in store.list("tidelog/history/")}
    assert await expire(settings, "orders") == TopicExpiry(topic="orders")


async def test_compaction_goes_on_where_it_was_after_ttl(log: Log, settings: CompactionSettings) -> None:
    await log.topic("orders", retention_ms=str(DAY_MS))
    await log.write("orders", one(0, *records(10, timestamp_ms=days_ago(3))))
    await compact(settings)
    await expire(settings, "orders")
    assert await spark_rows(settings, "orders") == []

    await log.write("orders", one(0, *records(10, timestamp_ms=days_ago(0))))
    await compact(settings)

    assert await spark_rows(settings, "orders") == written_rows(log, "orders")[10:]


async def test_without_a_limit_nothing_expires(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders", retention_ms="-1")
    await log.write("orders", one(0, Sent(timestamp_ms=0), Sent(timestamp_ms=-1)))
    await compact(settings)
    before = await the_table(sequencer, "orders")

    assert await expire(settings, "orders") == TopicExpiry(topic="orders")

    assert await the_table(sequencer, "orders") == before


async def test_a_record_without_a_timestamp_expires_by_when_it_came_into_history(
    log: Log, settings: CompactionSettings
) -> None:
    await log.topic("orders", retention_ms=str(DAY_MS))
    later = datetime.now(UTC) + timedelta(days=400)
    future = Sent(timestamp_ms=int(later.timestamp() * 1000))
    await log.write("orders", one(0, Sent(timestamp_ms=-1), future, Sent(timestamp_ms=days_ago(3))))
    await compact(settings)

    await expire(settings, "orders", now=datetime.now(UTC))
    assert [row[1] for row in await iceberg_rows(settings, "orders")] == [0, 1]
    await expire(settings, "orders", now=later)

    assert [row[1] for row in await iceberg_rows(settings, "orders")] == [1]


async def test_what_only_expired_snapshots_name_is_left_to_the_garbage_collector(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, store: ObjectStore
) -> None:
    topic_id = await log.topic("orders", retention_ms=str(DAY_MS))
    now = datetime.now(UTC)
    old, new = (int((now - age).timestamp() * 1000) for age in (timedelta(days=3), timedelta(hours=1)))
    await log.write("orders", one(0, *records(10, timestamp_ms=old)))
    await compact(settings)
    await log.write("orders", one(0, *records(5, timestamp_ms=new)))
    await compact(settings)
    await expire(settings, "orders", now)
    assert await sequencer.history.garbage.unreferenced(grace_s=0, cap=100) == ()

    await expire(
        settings.model_copy(update={"history_snapshot_grace_s": 0}), "orders", now + timedelta(minutes=1)
    )

    garbage = await sequencer.history.garbage.unreferenced(grace_s=0, cap=100)
    assert len([key for key in garbage if key.endswith(".parquet")]) == 1
    assert len([key for key in garbage if "snap-" in key]) == 2
    live = await sequencer.history.live_objects(topic_id, "", 1000)
    assert not set(live) & set(garbage)
    await store.delete(garbage)
    await sequencer.history.garbage.forget_objects(garbage)
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")[10:]
    snapshots = await asyncio.to_thread(query, settings, "SELECT count(*) FROM topics.orders.snapshots")
    assert snapshots.rows == ((1,),)
