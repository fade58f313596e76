"""Parquet is the log: consumers read from an agent what Spark compacted, equal in every field."""

import asyncio
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition

from compactor.history_log_jobs import HistoryRetentionJob
from sequencer.client import Sequencer
from spark_compaction.settings import CompactionSettings
from spark_compaction.ttl import expire_history
from storage.batches.batch_validation import LAST_TIMESTAMP_MS
from storage.batches.record_batch import Compression
from storage.identifiers import Offset, Partition
from storage.stores.object_store import StoreSettings
from tests.agent.running import Running, running
from tests.spark_compaction.log import RETENTION, Log, Sent, drop_local, one, records, time_of
from tests.spark_compaction.reading import compact, compact_one, iceberg_rows, written_rows


async def test_consumers_read_the_same_before_and_after_raw_runs_give_way_to_parquet(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    await _write_all_sorts(log)
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        before = await _consumed(agent, "orders", partitions=2)
        small = settings.model_copy(update={"parquet_row_group_bytes": 512, "parquet_file_bytes": 8192})
        await compact_one(small, "orders")
        await log.write("orders", one(1, *records(5, 1000)))

        dropped = await drop_local(sequencer)

        assert dropped > 0
        assert await _consumed(agent, "orders", partitions=2) == _rows(log, "orders")
    async with running(database_url, store_url, store_settings=store_settings) as fresh:
        assert await _consumed(fresh, "orders", partitions=2) == _rows(log, "orders")
    assert before == _rows(log, "orders")[:-5]


async def test_any_offset_and_any_time_is_found_in_parquet(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    topic_id = await log.topic("orders", tidelog_history="log", local_retention_ms="0")
    for start in range(0, 300, 50):
        timed = [
            Sent(value=f"{n}".encode(), timestamp_ms=1_700_000_000_000 + 1000 * n)
            for n in range(start, start + 50)
        ]
        await log.write("orders", one(0, *timed))
    small = settings.model_copy(update={"parquet_row_group_bytes": 2048, "parquet_file_bytes": 8192})
    await compact_one(small, "orders")
    await drop_local(sequencer)
    bounds = (await sequencer.coordinates.bounds([(topic_id, Partition(0))]))[topic_id, Partition(0)]
    assert bounds.local_start_offset == 300

    async with running(database_url, store_url, store_settings=store_settings) as agent:
        consumer = _consumer(agent)
        for offset in (0, 1, 49, 50, 137, 298, 299):
            assert await asyncio.to_thread(_first_at, consumer, "orders", offset) == f"{offset}".encode()
        for n in (0, 7, 120, 299):
            wanted = TopicPartition("orders", 0, 1_700_000_000_000 + 1000 * n - 500)
            [found] = await asyncio.to_thread(consumer.offsets_for_times, [wanted], 30)
            assert found.offset == n
        consumer.close()


async def test_times_up_to_the_last_that_fits_are_found_in_parquet(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    """The year 9999 in milliseconds, as seconds in a double, is some microseconds off."""
    times = [LAST_TIMESTAMP_MS - n for n in range(20, -1, -1)]
    await log.topic("orders", tidelog_history="log", local_retention_ms="0")
    await log.write("orders", one(0, *(Sent(timestamp_ms=timestamp_ms) for timestamp_ms in times)))
    await compact_one(settings, "orders")
    await drop_local(sequencer)

    async with running(database_url, store_url, store_settings=store_settings) as agent:
        consumer = _consumer(agent)
        for offset, timestamp_ms in enumerate(times):
            wanted = TopicPartition("orders", 0, timestamp_ms)
            [found] = await asyncio.to_thread(consumer.offsets_for_times, [wanted], 30)
            assert found.offset == offset
        consumer.close()


async def test_the_log_start_moves_through_history(
    log: Log,
    settings: CompactionSettings,
    sequencer: Sequencer,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    topic_id = await log.topic("orders", tidelog_history="log", local_retention_ms="0", retention_ms="-1")
    for start in range(0, 90, 30):
        await log.write("orders", one(0, *records(30, start, timestamp_ms=1_600_000_000_000 + start)))
    each_its_own = settings.model_copy(update={"parquet_file_bytes": 1, "compact_task_bytes": 1})
    await compact_one(each_its_own, "orders")
    await drop_local(sequencer)
    cutoff = time_of(1_600_000_000_050)
    assert cutoff is not None
    files = await sequencer.history.expired_files(topic_id, cutoff, 10)
    last = max(file.last_offset for file in files)

    await sequencer.topics.alter_config("orders", {"retention.bytes": "1"})
    await HistoryRetentionJob(sequencer, RETENTION).step(None)

    key = (topic_id, Partition(0))
    bounds = (await sequencer.coordinates.bounds([key]))[key]
    assert last < bounds.log_start_offset <= 90
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        rows = await _consumed(agent, "orders", partitions=1)
    assert rows == _rows(log, "orders")[bounds.log_start_offset :]


async def test_records_deleted_by_a_request_leave_the_table_and_its_files(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    topic_id = await log.topic("orders", partitions=2, retention_ms="-1")
    for start in range(0, 60, 20):
        await log.write("orders", one(0, *records(20, start)), one(1, *records(5, start)))
    each_its_own = settings.model_copy(update={"parquet_file_bytes": 1, "compact_task_bytes": 1})
    await compact_one(each_its_own, "orders")
    await sequencer.retention.delete_records(topic_id, Partition(0), Offset(45))
    assert await sequencer.history.topics_with_expired_files() == ("orders",)

    report = await asyncio.to_thread(expire_history, settings)

    left = [row for row in written_rows(log, "orders") if row[0] == 1 or row[1] >= 45]
    assert report.rows_expired == 45
    assert await iceberg_rows(settings, "orders") == left
    assert await sequencer.history.topics_with_expired_files() == ()
    again = await asyncio.to_thread(expire_history, settings)
    assert again.rows_expired == 0


async def test_the_table_may_keep_records_longer_than_the_log(log: Log, settings: CompactionSettings) -> None:
    await log.topic("orders", retention_ms="1000", tidelog_history_retention_ms="-1")
    await log.topic("short", retention_ms="1000")
    for topic in ("orders", "short"):
        await log.write(topic, one(0, *records(10)))
    await compact(settings)

    await asyncio.to_thread(expire_history, settings)

    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")
    assert await iceberg_rows(settings, "short") == []


async def _write_all_sorts(log: Log) -> None:
    await log.topic(
        "orders", partitions=2, tidelog_history="log", local_retention_ms="0", retention_ms="-1",
        tidelog_key_format="string", tidelog_value_format="json",
    )  # fmt: skip
    headers = (("a", b"1"), ("a", None), ("b", b""), ("é", b"\xff"))
    for number, compression in enumerate(Compression):
        sent = (
            Sent(value=None, key=b"k", headers=headers, timestamp_ms=1_700_000_000_000 + number),
            Sent(value=b"", key=b"", timestamp_ms=0),
            Sent(value=bytes(range(256)), key=None, headers=headers, timestamp_ms=1),
            Sent(value=b"x" * 3000, key=b"y" * 300, timestamp_ms=253_402_300_799_999),
        )
        await log.write(
            "orders",
            one(0, *sent, *records(40, 100 * number), compression=compression),
            one(1, *records(30, number), append_time_ms=1_700_000_000_000 + 7 * number),
        )


def _rows(log: Log, topic: str) -> list[tuple[Any, ...]]:
    rows = []
    for partition, offset, timestamp, kind, key, value, headers in sorted(log.expected[topic], key=_place):
        pairs = [(header["key"], header["value"]) for header in headers]
        rows.append((partition, offset, timestamp, kind, key, value, pairs))
    return rows


def _place(row: tuple[Any, ...]) -> tuple[int, int]:
    return row[0], row[1]


def _consumer(agent: Running) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )


async def _consumed(agent: Running, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    """Every record by a real consumer, in (partition, offset) order."""
    return await asyncio.to_thread(_consume, _consumer(agent), topic, partitions)


def _consume(consumer: Consumer, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    rows = []
    for partition in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
        consumer.assign([TopicPartition(topic, partition, low)])
        at = low
        while at < high:
            message = consumer.poll(30)
            assert message is not None, f"no record at {at} of {topic}-{partition} within 30 s"
            assert message.error() is None, message.error()
            kind, timestamp_ms = message.timestamp()
            rows.append(
                (
                    partition,
                    message.offset(),
                    time_of(timestamp_ms),
                    0 if kind == TIMESTAMP_CREATE_TIME else 1,
                    message.key(),
                    message.value(),
                    message.headers() or [],
                )
            )
            offset = message.offset()
            assert offset is not None
            at = offset + 1
    consumer.close()
    return rows


def _first_at(consumer: Consumer, topic: str, offset: int) -> bytes | None:
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(30)
    assert message is not None
    assert message.error() is None
    assert message.offset() == offset
    return message.value()
