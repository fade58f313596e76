"""The garbage collector's jobs on real stores: what is deleted, when, and what a crash or a late upload
changes (nothing).
"""

from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

import pytest

from compactor.doctor import DoctorSettings, examine
from compactor.garbage_jobs import DoomingJob, GarbageDeletionJob, GarbageScanJob, HistoryGarbageJob
from compactor.job import Job
from compactor.retention_jobs import RetentionJob, TopicSweepJob
from sequencer.client import Sequencer
from sequencer.commits.commits import Committed, SegmentRefused
from sequencer.housekeeping.garbage import BEFORE_ALL, PartitionRules
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK, Moved, PartitionKey
from storage.identifiers import ObjectKey, Offset, Partition
from storage.segments.keys import backups_prefix
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import (
    CLUSTER,
    Segment,
    is_there,
    keys_in,
    pending,
    reserved,
    settings,
    upload,
    written,
)
from tests.compactor.journal import a_writer
from tests.sequencer.housekeeping.housekeeping import count, ready_to_doom, segment_row, state_of, time_passes

GRACE_S = 600.0
LATE_S = 3600.0
DAY_S = 86_400.0


async def finish(job: Job) -> dict[str, int]:
    """Steps until nothing is left, as the housekeeper does. Returns what was done in all."""
    done: dict[str, int] = {}
    progress = None
    while True:
        step = await job.step(progress)
        progress = step.progress
        for what, number in step.done.items():
            done[what] = done.get(what, 0) + number
        if not step.more:
            return done


async def collect(sequencer: Sequencer, store: ObjectStore) -> None:
    """One round of all jobs of the garbage collector."""
    await ready_to_doom(sequencer)
    for job in (
        GarbageScanJob(sequencer, settings()),
        DoomingJob(sequencer, settings()),
        GarbageDeletionJob(sequencer, store, settings()),
        HistoryGarbageJob(sequencer, store, settings()),
    ):
        await finish(job)


async def emptied(sequencer: Sequencer, store: ObjectStore, name: str = "orders") -> Segment:
    """A committed segment without runs."""
    topic = await sequencer.topics.create(name, 1, {})
    segment = await written(sequencer, store, pending(topic))
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    return segment


async def test_an_emptied_segment_goes_step_by_step_and_a_live_one_stays(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    gone = await emptied(sequencer, any_store)
    live = await written(sequencer, any_store, pending(await sequencer.topics.create("live", 1, {})))
    seen = []

    for seconds in (0, GRACE_S - 10, 20, LATE_S, DAY_S):
        await time_passes(sequencer, seconds)
        await collect(sequencer, any_store)
        tombstones = await count(sequencer, "tombstones")
        seen.append((await state_of(sequencer, gone.segment_id), await is_there(any_store, gone), tombstones))

    assert seen == [
        *[("committed", True, 0)] * 2,
        *[("gone", False, 1)] * 2,
        ("gone", False, 0),
    ]
    assert await state_of(sequencer, live.segment_id) == "committed"
    assert await keys_in(any_store) == {live.key}


async def test_backups_of_postgres_outlive_every_job(sequencer: Sequencer, any_store: ObjectStore) -> None:
    gone = await emptied(sequencer, any_store)
    backup = ObjectKey(f"{backups_prefix(CLUSTER)}7711/base/20261122T120000/data.tar.lz4")
    alike = ObjectKey(f"{backups_prefix(CLUSTER)}{gone.key.removeprefix(CLUSTER).strip('/')}")
    for key in (backup, alike):
        await any_store.put(key, [b"not Tidelog's"])

    for seconds in (0, GRACE_S + 10, LATE_S, DAY_S):
        await time_passes(sequencer, seconds)
        await collect(sequencer, any_store)

    assert await state_of(sequencer, gone.segment_id) == "gone"
    assert await keys_in(any_store) == {backup, alike}


async def test_more_garbage_than_one_step_takes_goes_in_several(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    for _ in range(9):
        await written(sequencer, local_store, pending(topic))
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)

    for seconds in (0, GRACE_S + 1, DAY_S):
        await time_passes(sequencer, seconds)
        await collect(sequencer, local_store)

    assert await keys_in(local_store) == set()
    assert await count(sequencer, "segments") == 0


async def test_an_upload_that_arrives_after_the_deletion_is_deleted_again(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    stalled = await reserved(sequencer, [pending(topic)], lease_s=60)
    await time_passes(sequencer, 61)
    await collect(sequencer, any_store)
    await time_passes(sequencer, GRACE_S + 1)
    await collect(sequencer, any_store)

    await upload(any_store, stalled)
    refused = await sequencer.commits.commit([stalled.to_commit])
    late = await examine(sequencer, any_store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    await time_passes(sequencer, LATE_S + settings().tombstone_partition_s)
    await collect(sequencer, any_store)

    assert refused == (SegmentRefused(reason="missing"),)
    assert late.is_healthy
    assert not await is_there(any_store, stalled)
    assert await state_of(sequencer, stalled.segment_id) == "gone"
    assert (
        await examine(sequencer, any_store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    ).orphans == ()


async def test_the_outcome_of_a_commit_is_known_for_as_long_as_an_agent_may_pause(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    segment = await emptied(sequencer, local_store)
    await collect(sequencer, local_store)
    await time_passes(sequencer, GRACE_S + 1)
    await collect(sequencer, local_store)
    await time_passes(sequencer, settings().outcome_retention_s - GRACE_S - 100)
    await collect(sequencer, local_store)

    [answer] = await sequencer.commits.commit([segment.to_commit])

    assert not await is_there(local_store, segment)
    assert isinstance(answer, Committed)


Crash = Callable[[Sequencer, ObjectStore, Segment], Awaitable[object]]


async def after_marking(sequencer: Sequencer, _store: ObjectStore, _segment: Segment) -> None:
    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)


async def after_dooming(sequencer: Sequencer, store: ObjectStore, segment: Segment) -> None:
    await after_marking(sequencer, store, segment)
    await ready_to_doom(sequencer)
    await finish(DoomingJob(sequencer, settings()))


async def after_the_first_deletion(sequencer: Sequencer, store: ObjectStore, segment: Segment) -> None:
    """The object is deleted, but the answer is lost."""
    await after_dooming(sequencer, store, segment)
    await store.delete([segment.key])


async def after_recording_it(sequencer: Sequencer, store: ObjectStore, segment: Segment) -> None:
    await after_the_first_deletion(sequencer, store, segment)
    await sequencer.garbage.bury(
        [segment.segment_id],
        outcome_retention_s=DAY_S,
        partitions=PartitionRules(width_s=600, lock_timeout_ms=10_000),
    )


async def after_the_second_deletion(sequencer: Sequencer, store: ObjectStore, segment: Segment) -> None:
    """The object was deleted again, its row is still there, and a late upload arrived meanwhile."""
    await after_recording_it(sequencer, store, segment)
    await time_passes(sequencer, DAY_S + 1)
    await store.delete([segment.key])
    await upload(store, segment)


@pytest.mark.parametrize(
    "crash",
    [after_marking, after_dooming, after_the_first_deletion, after_recording_it, after_the_second_deletion],
    ids=lambda crash: crash.__name__,
)
async def test_a_crash_between_two_steps_leaves_work_and_no_fault(
    sequencer: Sequencer, local_store: ObjectStore, crash: Crash
) -> None:
    segment = await emptied(sequencer, local_store)

    await crash(sequencer, local_store, segment)
    meanwhile = await examine(
        sequencer, local_store, CLUSTER, verify_contents=True, settings=DoctorSettings()
    )
    for seconds in (0, GRACE_S + 1, DAY_S + 1):
        await time_passes(sequencer, seconds)
        await collect(sequencer, local_store)

    assert meanwhile.is_healthy
    assert await segment_row(sequencer, segment.segment_id) is None
    assert await keys_in(local_store) == set()


async def test_retention_drops_what_is_old_in_every_partition_past_several_steps(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    aged = await sequencer.topics.create("aged", 5, {"retention.ms": "3600000"})
    kept = await sequencer.topics.create("kept", 2, {"retention.ms": "-1"})
    for _ in range(6):
        await written(
            sequencer,
            local_store,
            *(pending(aged, 2, partition=partition) for partition in range(5)),
            *(pending(kept, 2, partition=partition) for partition in range(2)),
        )

    done = await finish(RetentionJob(sequencer, settings()))
    again = await finish(RetentionJob(sequencer, settings()))

    assert (done["runs"], again["runs"]) == (30, 0)
    bounds = await sequencer.coordinates.bounds([(aged.topic_id, Partition(p)) for p in range(5)])
    assert {(each.log_start_offset, each.high_watermark) for each in bounds.values()} == {(12, 12)}
    assert await count(sequencer, "runs") == 12
    assert (
        await examine(sequencer, local_store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    ).is_healthy


async def test_retention_takes_a_transaction_for_many_partitions_and_none_for_those_with_nothing_to_drop(
    sequencer: Sequencer, local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged = await sequencer.topics.create("aged", 300, {"retention.ms": "3600000"})
    busy = range(0, 300, 10)
    for _ in range(3):
        await written(sequencer, local_store, *(pending(aged, 2, partition=partition) for partition in busy))
    expire, transactions = sequencer.retention.expire, []

    async def counted(before: Mapping[PartitionKey, Offset], cap: int) -> Mapping[PartitionKey, Moved]:
        transactions.append(len(before))
        return await expire(before, cap)

    monkeypatch.setattr(sequencer.retention, "expire", counted)
    chosen = settings(
        retention_partitions_per_step=200, retention_partitions_at_once=15, retention_runs_per_step=500
    )
    done = await finish(RetentionJob(sequencer, chosen))

    assert done["runs"] == 90
    assert transactions == [15, 5, 10]
    assert await count(sequencer, "runs") == 0


async def test_one_timestamp_from_the_future_does_not_stop_retention(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {"retention.ms": "3600000"})
    for timestamp_ms in (1_000, 4_102_444_800_000, 2_000):
        await written(sequencer, local_store, pending(topic, timestamp_ms=timestamp_ms))

    at_once = await finish(RetentionJob(sequencer, settings()))
    await time_passes(sequencer, 3700)
    later = await finish(RetentionJob(sequencer, settings()))

    assert (at_once["runs"], later["runs"]) == (1, 2)


async def test_retention_by_bytes_keeps_the_newest_runs_that_fill_the_limit(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {"retention.ms": "-1"})
    for _ in range(5):
        await written(sequencer, local_store, pending(topic))
    [row] = await sequencer.database.run("SELECT max(length) AS length FROM runs")
    await sequencer.topics.alter_config("orders", {"retention.bytes": str(2 * row.length)})

    await finish(RetentionJob(sequencer, settings()))

    bounds = await sequencer.coordinates.bounds([(topic.topic_id, Partition(0))])
    assert bounds[topic.topic_id, Partition(0)].log_start_offset == 3


async def test_what_a_delete_records_left_behind_is_dropped_by_retention(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {"retention.ms": "-1"})
    for _ in range(6):
        await written(sequencer, local_store, pending(topic))
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK, cap=1)

    await finish(RetentionJob(sequencer, settings()))

    assert await count(sequencer, "runs") == 0


async def test_a_deleted_topic_leaves_nothing(sequencer: Sequencer, any_store: ObjectStore) -> None:
    topic = await sequencer.topics.create("orders", 3, {})
    for _ in range(4):
        await written(sequencer, any_store, *(pending(topic, partition=partition) for partition in range(3)))
    await sequencer.topics.delete("orders")

    await finish(TopicSweepJob(sequencer, settings(topic_sweep_rows_per_step=5)))
    for seconds in (0, GRACE_S + 1, DAY_S + 1):
        await time_passes(sequencer, seconds)
        await collect(sequencer, any_store)

    for table in ("topics", "partitions", "runs", "segments", "producer_state"):
        assert await count(sequencer, table) == 0, table
    assert await keys_in(any_store) == set()


async def history_job(sequencer: Sequencer, topic_id: object, prefix: str, state: str) -> None:
    async with sequencer.database.transaction() as connection:
        await connection.execute(
            "INSERT INTO history_jobs (job_id, topic_id, kind, prefix, state, lease_until, ended_at)"
            " VALUES (%s, %s, 'compact', %s, %s, now() + interval '1 minute',"
            " CASE WHEN %s <> 'running' THEN now() END)",
            (uuid4(), topic_id, prefix, state, state),
        )


async def test_what_history_jobs_left_is_swept_by_their_prefix_and_published_files_stay(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    prefix = f"{CLUSTER}/history/{topic.topic_id}"
    await history_job(sequencer, topic.topic_id, f"{prefix}/published/", "published")
    await history_job(sequencer, topic.topic_id, f"{prefix}/killed/", "running")
    names = ["published/a.parquet", "published/retry.parquet", "killed/1.parquet", "killed/2.parquet"]
    for name in names:
        await any_store.put(ObjectKey(f"{prefix}/{name}"), [b"x"])
    await sequencer.database.run(
        "INSERT INTO history_objects (object_key, topic_id) VALUES (%(key)s, %(topic)s)",
        key=f"{prefix}/published/a.parquet",
        topic=topic.topic_id,
    )

    left = []
    for seconds in (0, LATE_S - 100, 200, LATE_S + 1):
        await time_passes(sequencer, seconds)
        await collect(sequencer, any_store)
        left.append({key.removeprefix(f"{prefix}/") for key in await keys_in(any_store)})

    assert left[0] == left[1] == set(names)
    assert left[2] == {"published/a.parquet", "killed/1.parquet", "killed/2.parquet"}
    assert left[3] == {"published/a.parquet"}
    assert (
        await examine(sequencer, any_store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    ).orphans == ()


async def test_history_files_that_no_snapshot_names_wait_for_readers_and_go(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    keys = [ObjectKey(f"{CLUSTER}/history/{topic.topic_id}/job/{number}.parquet") for number in range(6)]
    for key in keys:
        await any_store.put(key, [b"x"])
    await sequencer.database.run(
        "INSERT INTO history_objects (object_key, topic_id, unreferenced_since)"
        " SELECT key, %(topic)s, CASE WHEN key <> %(live)s THEN now() END"
        " FROM unnest(%(keys)s::text[]) AS given (key)",
        keys=keys,
        live=keys[0],
        topic=topic.topic_id,
    )

    await time_passes(sequencer, DAY_S - 100)
    await collect(sequencer, any_store)
    early = await keys_in(any_store)
    await time_passes(sequencer, 200)
    await collect(sequencer, any_store)

    assert early == set(keys)
    assert await keys_in(any_store) == {keys[0]}
    assert await count(sequencer, "history_objects") == 1


async def test_what_was_committed_once_stays_for_the_restore_horizon(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    """[raced] A database restored to an hour ago still refers to it."""
    gone = await emptied(sequencer, local_store)
    horizon = settings(restore_horizon_s=3600)
    seen = []

    for seconds in (0, GRACE_S + 10, 3600 - GRACE_S - 20, 20):
        await time_passes(sequencer, seconds)
        await ready_to_doom(sequencer)
        await finish(GarbageScanJob(sequencer, horizon))
        await finish(DoomingJob(sequencer, horizon))
        await finish(GarbageDeletionJob(sequencer, local_store, horizon))
        seen.append(await is_there(local_store, gone))

    assert seen == [True, True, True, False]


async def test_what_the_last_checkpoint_refers_to_stays_until_the_next(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    """[raced] Checkpoints failed for longer than the horizon: a rebuild from the last one still finds every
    object.
    """
    horizon = settings(restore_horizon_s=3600)
    writer = a_writer(sequencer, local_store, checkpoint_interval_s=1e-6, checkpoint_pace=0)
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await written(sequencer, local_store, pending(topic))
    await writer.write_entry()
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await finish(GarbageScanJob(sequencer, horizon))
    await time_passes(sequencer, 3700)
    await sequencer.database.run("UPDATE journal SET checkpoint_at = checkpoint_at - interval '3700 seconds'")
    seen = []

    for _ in range(2):
        await ready_to_doom(sequencer)
        await finish(DoomingJob(sequencer, horizon))
        seen.append(await state_of(sequencer, segment.segment_id))
        await writer.write_checkpoint_if_due()

    assert seen == ["committed", "doomed"]
