"""Compaction killed, raced, answered too late, or given bytes that do not decode
(docs/design/history.md#tasks).
"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sequencer.client import Sequencer
from sequencer.history.history_values import Begun, Publication, Published, PublishRefused
from spark_compaction import compact as compact_module
from spark_compaction.bucket import BucketAddress
from spark_compaction.compact import expected_file
from spark_compaction.iceberg_table import Change, HistoryTableFiles
from spark_compaction.job import SparkJobFailed, publish_staged, run_in_spark
from spark_compaction.manifest import ManifestRefused, verify_manifest
from spark_compaction.planner import plan_tasks
from spark_compaction.settings import CompactionSettings
from spark_compaction.tasks import TaskContext, manifest_rows, run_tasks, task_table
from spark_compaction.ttl import expire_history
from storage.identifiers import ObjectKey, Offset, Partition
from storage.stores.object_store import ObjectStore
from tests.spark_compaction.log import EPOCH, Log, one, records
from tests.spark_compaction.reading import (
    compact,
    compact_one,
    iceberg_rows,
    spark_rows,
    the_table,
    written_rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


async def begun(settings: CompactionSettings, sequencer: Sequencer, topic: str, lease_s: float) -> Begun:
    table = await the_table(sequencer, topic)
    ends = await sequencer.history.ends(table.topic_id)
    answer = await sequencer.history.begin_compaction(
        table.topic_id, ends, cluster=settings.cluster, lease_s=lease_s, runs_per_partition=1000
    )
    assert isinstance(answer, Begun)
    return answer


def staged(settings: CompactionSettings, begun: Begun) -> Publication:
    """All of a compaction but its publish, without Spark: what a job has done when it is killed at the worst
    moment.
    """
    address = BucketAddress.of(settings.store_url, settings)
    context = TaskContext(
        address=address,
        prefetch_runs=4,
        row_group_bytes=1 << 20,
        file_bytes=1 << 30,
    )
    tasks = plan_tasks(begun.runs, begun.aborted, task_bytes=1 << 30, job_bytes=1 << 30)
    answers = list(run_tasks(context, task_table([(begun.job, task) for task in tasks]).to_batches()))
    verified = verify_manifest(tasks, manifest_rows([row for batch in answers for row in batch.to_pylist()]))
    table = HistoryTableFiles(address, address.open(), begun.job, begun.job.table)
    added = table.describe([expected_file(file, 1 << 30) for file in verified.files], None)
    return Publication(
        version=table.stage(Change(added=added, summary={}, expire_snapshots_before=EPOCH)),
        added=[each.file for each in added],
        advances=verified.advances,
        raw_ranges=verified.raw_ranges,
    )


async def test_a_compaction_killed_before_its_publish_publishes_nothing_later(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(10)), one(1, *records(10)))
    killed = await begun(settings, sequencer, "orders", lease_s=0.3)
    too_late = await asyncio.to_thread(staged, settings, killed)
    await asyncio.sleep(0.3)

    report = await compact_one(settings, "orders")

    assert report.rows == 20
    assert isinstance(await sequencer.history.publish(killed.job, too_late), PublishRefused)
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")
    ended = await sequencer.history.garbage.ended_jobs(older_than_s=0, cap=10)
    assert killed.job.prefix in {job.prefix for job in ended}
    keys = [file.object_key for file in too_late.added]
    assert await sequencer.history.garbage.recorded(keys) == frozenset()


async def test_a_publish_whose_answer_was_lost_is_published_once(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    job = await begun(settings, sequencer, "orders", lease_s=60)
    publication = await asyncio.to_thread(staged, settings, job)

    answers = [await sequencer.history.publish(job.job, publication) for _ in range(2)]

    assert answers == [Published(), Published()]
    assert (await compact_one(settings, "orders")).rows == 0
    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")


async def test_two_compactions_at_once_publish_each_record_once(
    log: Log, settings: CompactionSettings
) -> None:
    await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(40)), one(1, *records(40)))

    reports = await asyncio.gather(compact_one(settings, "orders"), compact_one(settings, "orders"))

    assert sorted(report.rows for report in reports) == [0, 80]
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")


async def test_a_topic_has_one_job_of_a_kind_and_a_killed_one_blocks_for_a_lease(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    first = await begun(settings, sequencer, "orders", lease_s=60)

    while_held = await compact_one(settings, "orders")
    await sequencer.database.run("UPDATE history_jobs SET lease_until = clock_timestamp()")
    after = await begun(settings, sequencer, "orders", lease_s=60)

    assert while_held.busy
    assert not await sequencer.history.renew(first.job.job_id, 60)
    assert await sequencer.history.renew(after.job.job_id, 60)


async def test_ttl_and_compaction_publish_on_one_another(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    """A compaction that was outrun by TTL stages its files on what TTL left, and loses no work."""
    await log.topic("orders", retention_ms="1000")
    await log.write("orders", one(0, *records(10)))
    await compact_one(settings, "orders")
    now = int(datetime.now(UTC).timestamp() * 1000)
    await log.write("orders", one(0, *records(10, timestamp_ms=now + 3_600_000)))
    job = await begun(settings, sequencer, "orders", lease_s=60)

    [expired] = (await asyncio.to_thread(expire_history, settings, ["orders"])).topics
    outcome = await publish_staged(
        sequencer, job.job, lambda on: staged(settings, replace(job, job=replace(job.job, table=on)))
    )

    assert (expired.busy, expired.files_dropped) == (False, 1)
    assert outcome == Published()
    assert await iceberg_rows(settings, "orders") == written_rows(log, "orders")[10:]
    assert await spark_rows(settings, "orders") == written_rows(log, "orders")[10:]


async def test_the_objects_that_a_job_reads_are_held_until_it_ends(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    topic_id = await log.topic("orders")
    await log.write("orders", one(0, *records(10)))

    async def held() -> int:
        [row] = await sequencer.database.run(
            "SELECT count(*) AS n FROM holds WHERE lease_until > clock_timestamp()"
        )
        return int(row.n)

    job = await begun(settings, sequencer, "orders", lease_s=60)
    await sequencer.retention.delete_records(topic_id, Partition(0), before_offset=Offset(10))
    while_running = await held()
    await sequencer.history.abandon(job.job.job_id)

    assert (while_running, await held()) == (1, 0)


async def test_a_batch_that_does_not_decode_stays_raw_and_blocks_nothing(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, store: ObjectStore
) -> None:
    topic_id = await log.topic("orders", partitions=2)
    await log.write(
        "orders", one(0, *records(10)), one(0, *records(10)), one(0, *records(10)), one(1, *records(5))
    )
    await log.write("orders", one(0, *records(10)))
    await corrupt_batch(store, sequencer, topic_id, at_fraction=0.5)

    report = await compact_one(settings, "orders")

    assert [(each.partition, each.base_offset, each.last_offset) for each in report.raw_ranges] == [
        (0, 10, 19)
    ]
    assert "crc" in report.raw_ranges[0].reason.lower()
    assert await sequencer.history.raw_ranges(topic_id) == report.raw_ranges
    kept = [row for row in written_rows(log, "orders") if row[0] == 1 or not 10 <= row[1] < 20]
    assert await spark_rows(settings, "orders") == kept
    assert await sequencer.history.compacted_to([topic_id]) == {(topic_id, 0): 40, (topic_id, 1): 5}
    await log.write("orders", one(0, *records(10)))
    assert (await compact_one(settings, "orders")).rows == 10


async def test_a_missing_object_stops_its_partition_and_no_other(
    log: Log, settings: CompactionSettings, sequencer: Sequencer, store: ObjectStore
) -> None:
    topic_id = await log.topic("orders", partitions=2)
    await log.write("orders", one(0, *records(10)))
    await log.write("orders", one(0, *records(10)))
    await log.write("orders", one(0, *records(10)), one(1, *records(10)))
    runs = (await begun(settings, sequencer, "orders", lease_s=0.1)).runs
    await store.delete([runs[1].object_key])
    await asyncio.sleep(0.1)

    report = await compact_one(settings, "orders")

    assert [(stop.partition, stop.offset) for stop in report.stopped] == [(0, 10)]
    assert runs[1].object_key in report.stopped[0].reason
    assert await sequencer.history.compacted_to([topic_id]) == {(topic_id, 0): 10, (topic_id, 1): 10}
    assert len(await iceberg_rows(settings, "orders")) == 20


async def test_a_file_that_is_not_the_one_written_is_not_published(
    log: Log, settings: CompactionSettings, sequencer: Sequencer
) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    await log.write("orders", one(0, *records(10)))
    job = await begun(settings, sequencer, "orders", lease_s=60)
    address = BucketAddress.of(settings.store_url, settings)
    bucket = address.open()
    context = TaskContext(
        address=address,
        prefetch_runs=4,
        row_group_bytes=1 << 20,
        file_bytes=1 << 30,
    )
    tasks = plan_tasks(job.runs, job.aborted, task_bytes=1, job_bytes=1 << 30)
    table = task_table([(job.job, task) for task in tasks])
    batches = await asyncio.to_thread(lambda: list(run_tasks(context, table.to_batches())))
    first, second = verify_manifest(
        tasks, manifest_rows([row for batch in batches for row in batch.to_pylist()])
    ).files

    await asyncio.to_thread(bucket.put, first.row.object_key, bucket.get(second.row.object_key))

    files = HistoryTableFiles(address, bucket, job.job, job.job.table)
    with pytest.raises(ManifestRefused, match="footer"):
        await asyncio.to_thread(partial(files.describe, [expected_file(first, 1 << 30)], None))


async def test_a_topic_whose_task_fails_keeps_no_other_from_being_published(
    log: Log, settings: CompactionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        await log.topic(name)
        await log.write(name, one(0, *records(10)))

    async def fail_one(session: SparkSession, rows: pa.Table, **how: Any) -> object:
        """The first task gets a partition that it cannot write."""
        position = rows.schema.get_field_index("partition")
        broken = pa.array([None, 0], pa.int32())
        return await run_in_spark(session, rows.set_column(position, "partition", broken), **how)

    monkeypatch.setattr(compact_module, "run_in_spark", fail_one)
    bad, good = (await compact(settings, "bad", "good")).topics
    monkeypatch.undo()

    assert (len(bad.failed), bad.rows, good.failed, good.rows) == (1, 0, (), 10)
    assert (await compact_one(settings, "bad")).rows == 10


async def test_a_store_that_cannot_be_reached_is_named(log: Log, settings: CompactionSettings) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(10)))
    away = {"store_url": "s3://bucket?endpoint=http://127.0.0.1:1", "s3_attempts": 1}

    with pytest.raises(SparkJobFailed, match=r"s3://bucket at 127.0.0.1:1.*TIDELOG_STORE_URL"):
        await compact_one(settings.model_copy(update=away), "orders")

    assert (await compact_one(settings, "orders")).rows == 10


async def corrupt_batch(
    store: ObjectStore, sequencer: Sequencer, topic_id: object, at_fraction: float
) -> None:
    """Flips a byte in the middle of the first run of partition 0."""
    [run] = await sequencer.database.run(
        "SELECT s.object_key, r.position, r.length FROM runs r JOIN segments s USING (segment_id)"
        " WHERE r.topic_id = %(topic_id)s AND r.partition = 0 ORDER BY r.base_offset LIMIT 1",
        topic_id=topic_id,
    )
    key = ObjectKey(run.object_key)
    data = bytearray(await store.get(key))
    data[run.position + int(run.length * at_fraction)] ^= 0xFF
    await store.put(key, [bytes(data)])
