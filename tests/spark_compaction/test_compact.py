"""What goes into the log comes out of its history, once (docs/design/history.md#publish)."""

import asyncio
import itertools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequencer.client import Sequencer
from sequencer.topics.topics import UnknownTopic
from spark_compaction.compact import CompactionProgress, compact_topics
from spark_compaction.history_file import METADATA_KEYS
from spark_compaction.job import SparkJobFailed
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import QueryFailed, query
from storage.batches.record_batch import Compression
from storage.identifiers import Offset, Partition
from storage.stores.object_store import ObjectStore
from tests.spark_compaction.log import Log, Sent, one, records
from tests.spark_compaction.reading import (
    compact,
    compact_one,
    iceberg_rows,
    spark_rows,
    the_table,
    written_rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


async def test_every_field_of_every_record_is_read_back(log: Log, settings: CompactionSettings) -> None:
    topic = "orders.by-day_1"
    await log.topic(topic, partitions=3)
    await log.write(
        topic,
        one(0, Sent(key=None, value=None), Sent(key=b"", value=b""), Sent(value=b"\x00\xff" * 300)),
        one(
            2, Sent(headers=(("a", b"1"), ("a", None), ("b", b""), ("a", b"1"))), compression=Compression.NONE
        ),
        one(2, Sent(timestamp_ms=-1), Sent(timestamp_ms=0), Sent(timestamp_ms=253402300799999)),
    )
    await log.write(topic, one(0, *records(5), append_time_ms=1_700_000_123_456))
    for codec in Compression:
        await log.write(topic, one(1, *records(200, start=codec * 1000), compression=codec))

    report = await compact_one(settings, topic)

    assert report.rows == 1012
    assert await spark_rows(settings, topic) == written_rows(log, topic)
    assert await iceberg_rows(settings, topic) == written_rows(log, topic)


async def test_only_what_is_new_is_compacted(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(30)), one(1, *records(20)))
    await compact(settings)
    first = await the_table(sequencer, "orders")

    again = await compact_one(settings, "orders")

    assert again.rows == again.files == 0
    assert await the_table(sequencer, "orders") == first
    await log.write("orders", one(1, *records(7)))
    await sequencer.topics.add_partitions("orders", 3)
    await log.write("orders", one(2, *records(3)))
    assert (await compact_one(settings, "orders")).rows == 10
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")


async def test_a_topic_without_records_is_left_alone(
    log: Log, settings: CompactionSettings, store: ObjectStore
) -> None:
    await log.topic("empty")

    report = await compact_one(settings, "empty")

    assert report.rows == report.files == 0
    assert [info async for info in store.list("tidelog/history/")] == []
    with pytest.raises(QueryFailed, match="TABLE_OR_VIEW_NOT_FOUND"):
        await spark_rows(settings, "empty")


async def test_a_topic_that_is_not_there_is_an_error(settings: CompactionSettings) -> None:
    with pytest.raises(UnknownTopic, match="no topic 'orders'"):
        await compact(settings, "orders")


async def test_small_jobs_and_files_make_the_same_history(log: Log, settings: CompactionSettings) -> None:
    await log.topic("orders", partitions=2)
    for start in range(0, 120, 20):
        await log.write("orders", one(0, *records(20, start)), one(1, *records(10, start)))
    small = settings.model_copy(
        update={
            "compact_job_bytes": 1,
            "compact_task_bytes": 1,
            "parquet_file_bytes": 1,
            "parquet_row_group_bytes": 64,
        }
    )
    stages: list[CompactionProgress] = []

    report = await asyncio.to_thread(compact_topics, small, ["orders"], stages.append)

    assert report.rows == 180
    assert report.files >= 12
    assert {stage.stage for stage in stages} == {"starting spark", "writing", "publishing", "done"}
    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")


async def test_a_call_compacts_what_was_there_when_it_began_however_fast_a_topic_is_written(
    log: Log, settings: CompactionSettings
) -> None:
    """And topics share the rounds: the large one takes several, the small one is done with the first."""
    await log.topic("busy")
    await log.topic("small")
    for start in range(3):
        await log.write("busy", one(0, *records(20, start)))
    await log.write("small", one(0, *records(5)))
    loop, stages = asyncio.get_running_loop(), list[CompactionProgress]()

    def write_more(progress: CompactionProgress) -> None:
        stages.append(progress)
        if "busy" in progress.topics and progress.stage == "publishing":
            writing = log.write("busy", one(0, *records(10)))
            asyncio.run_coroutine_threadsafe(writing, loop).result(60)

    one_run_a_job = settings.model_copy(update={"compact_job_runs": 1})
    report = await asyncio.to_thread(compact_topics, one_run_a_job, ["busy", "small"], write_more)

    assert [(topic.topic, topic.rows) for topic in report.topics] == [("busy", 60), ("small", 5)]
    published = [progress.topics for progress in stages if progress.stage == "publishing"]
    assert published == [("busy", "small"), ("busy",), ("busy",)]


async def test_a_topic_whose_history_is_off_is_left_out_and_goes_on_when_it_is_on_again(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    await compact(settings)
    await sequencer.topics.alter_config("orders", {"tidelog.history": "off"})
    await log.write("orders", one(0, *records(10)))
    assert (await compact(settings)).topics == ()
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")[:10]
    key = (log.topic_ids["orders"], Partition(0))
    moved = (await sequencer.retention.expire({key: Offset(20)}, cap=100))[key]
    await log.write("orders", one(0, *records(10)))
    await sequencer.topics.alter_config("orders", {"tidelog.history": "table"})

    await compact(settings)

    assert moved.log_start_offset == 20
    rows = written_rows(log, "orders")
    assert await spark_rows(settings, "orders") == rows[:10] + rows[20:]


async def test_a_compaction_that_fails_holds_no_retention_back(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    topic_id = await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    away = {"store_url": "s3://bucket?endpoint=http://127.0.0.1:1", "s3_attempts": 1}
    with pytest.raises(SparkJobFailed):
        await compact(settings.model_copy(update=away))

    key = (topic_id, Partition(0))
    moved = (await sequencer.retention.expire({key: Offset(10)}, cap=100))[key]

    assert moved.log_start_offset == 10


async def test_a_files_footer_alone_says_what_of_the_log_it_holds(
    log: Log, settings: CompactionSettings, store: ObjectStore
) -> None:
    topic_id = await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(20)), one(1, *records(10)))
    small = settings.model_copy(update={"parquet_row_group_bytes": 64})
    await compact(small)

    held = {}
    async for info in store.list("tidelog/history/"):
        if info.key.endswith(".parquet"):
            metadata = pq.read_metadata(pa.BufferReader(await store.get(info.key)))
            assert metadata.metadata is not None
            topic, partition, first, last = (
                metadata.metadata[name.encode()].decode() for name in METADATA_KEYS
            )
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            partitions, bounds = ([_statistics(group, column) for group in groups] for column in (0, 1))
            assert all(found.min == int(partition) for found in partitions)
            assert (bounds[0].min, bounds[-1].max) == (int(first), int(last))
            assert all(after.min == before.max + 1 for before, after in itertools.pairwise(bounds))
            held[topic, int(partition)] = (int(first), int(last))
    assert held == {(str(topic_id), 0): (0, 19), (str(topic_id), 1): (0, 9)}


async def test_what_is_not_compacted_stays_out_of_retentions_reach(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    topic_id = await log.topic("orders")
    assert await sequencer.history.compacted_to([topic_id]) == {}
    await log.write("orders", one(0, *records(10)))
    await compact(settings)
    await log.write("orders", one(0, *records(5)))

    key = (topic_id, Partition(0))
    moved = (await sequencer.retention.expire({key: Offset(15)}, cap=100))[key]

    assert moved.log_start_offset == 10
    assert await sequencer.history.compacted_to([topic_id]) == {(topic_id, 0): 10}
    await compact(settings)
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")


async def test_deleted_records_are_left_out(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    topic_id = await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    await log.write("orders", one(0, *records(10)))
    await sequencer.retention.delete_records(topic_id, Partition(0), before_offset=Offset(4))

    await compact(settings)

    assert await spark_rows(settings, "orders") == written_rows(log, "orders")[4:]


async def test_a_deleted_topic_takes_its_history_with_it(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    await compact(settings)
    await sequencer.topics.delete("orders")
    with pytest.raises(QueryFailed, match="TABLE_OR_VIEW_NOT_FOUND"):
        await spark_rows(settings, "orders")

    await log.topic("orders")
    await log.write("orders", one(0, *records(3)))
    await compact(settings)

    assert await spark_rows(settings, "orders") == written_rows(log, "orders")
    garbage = await sequencer.history.garbage.unreferenced(grace_s=0, cap=100)
    assert len([key for key in garbage if key.endswith(".parquet")]) == 1


async def test_a_local_directory_serves_as_bucket(local_log: Log, local_settings: CompactionSettings) -> None:
    await local_log.topic("orders", partitions=2)
    await local_log.write("orders", one(0, *records(50)), one(1, *records(5)))

    await compact(local_settings)

    assert await spark_rows(local_settings, "orders") == written_rows(local_log, "orders")
    assert await iceberg_rows(local_settings, "orders") == written_rows(local_log, "orders")


async def test_sql_answers_in_values_and_says_what_is_wrong(log: Log, settings: CompactionSettings) -> None:
    await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(50)), one(1, *records(5)))
    await compact(settings)

    counted = await asyncio.to_thread(
        query, settings, "SELECT `partition`, count(*) AS n, max(offset) FROM orders GROUP BY 1 ORDER BY 1"
    )
    few = await asyncio.to_thread(
        query,
        settings.model_copy(update={"sql_max_rows": 3}),
        "SELECT CAST(key AS string) FROM topics.orders",
    )

    assert counted.columns == ("partition", "n", "max(offset)")
    assert counted.rows == ((0, 50, 49), (1, 5, 4))
    assert (len(few.rows), few.truncated, counted.truncated) == (3, True, False)
    snapshots = await asyncio.to_thread(query, settings, "SELECT operation FROM topics.orders.snapshots")
    assert snapshots.rows == (("append",),)
    with pytest.raises(QueryFailed, match="PARSE_SYNTAX_ERROR"):
        await asyncio.to_thread(query, settings, "SELEC")
    with pytest.raises(QueryFailed, match="does not support endpoint: DELETE"):
        await asyncio.to_thread(query, settings, "DROP TABLE topics.orders")


def _statistics(group: pq.RowGroupMetaData, column: int) -> Any:
    found = group.column(column).statistics
    assert found is not None
    return found
