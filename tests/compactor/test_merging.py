"""Merging with a real Postgres and real stores: the log is the same before and after, whatever happens
meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from compactor.doctor import DoctorSettings, examine
from compactor.garbage_jobs import DoomingJob, GarbageDeletionJob, GarbageScanJob
from compactor.merging import ClaimLost
from compactor.retention_jobs import RetentionJob, TopicSweepJob
from sequencer.client import Sequencer
from sequencer.housekeeping.merge_values import TierTotals
from sequencer.settings import SequencerSettings
from sequencer.topics.topics import Topic
from storage.identifiers import ObjectKey, Offset, Partition
from storage.segments.keys import is_merged
from storage.segments.segment import read_footer
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, keys_in, settings
from tests.compactor.gated_store import GatedStore
from tests.compactor.merging import (
    a_log,
    a_merger,
    coordinates,
    discover,
    merge_everything,
    read_all,
    read_back,
)
from tests.compactor.test_garbage_jobs import DAY_S, GRACE_S, finish
from tests.sequencer.housekeeping.housekeeping import ready_to_doom, time_passes, waits_for_a_lock

LEASE_S = 60.0


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 3, {"retention.ms": "-1"})


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Sequencer]:
    """The database connections of another agent, which may die."""
    opened = await Sequencer.open(database_url, SequencerSettings())
    yield opened
    await opened.close()


async def is_healthy(sequencer: Sequencer, store: ObjectStore) -> bool:
    diagnosis = await examine(sequencer, store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    assert diagnosis.is_healthy, diagnosis.summary()
    return True


async def collect_garbage(sequencer: Sequencer, store: ObjectStore) -> None:
    for seconds in (0.0, GRACE_S + 1, 2 * DAY_S, GRACE_S + 1):
        await time_passes(sequencer, seconds)
        await ready_to_doom(sequencer)
        for job in (
            GarbageScanJob(sequencer, settings()),
            DoomingJob(sequencer, settings()),
            GarbageDeletionJob(sequencer, store, settings()),
        ):
            await finish(job)


async def totals(sequencer: Sequencer, tier: int) -> TierTotals:
    return next(each for each in await sequencer.merges.totals() if each.tier == tier)


async def test_many_small_runs_become_few_long_ones_with_every_byte_in_its_place(
    sequencer: Sequencer, any_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, any_store, topic, segments=34)
    before = await read_all(sequencer, any_store, topic)

    merges = await merge_everything(sequencer, any_store)

    after = await read_all(sequencer, any_store, topic)
    assert [each.batches for each in after] == [each.batches for each in before]
    assert [each.runs for each in before] == [34] * 3
    assert [each.runs for each in after] == [3] * 3
    assert merges == 5
    assert await is_healthy(sequencer, any_store)


async def test_a_merged_segments_footer_holds_the_offsets_of_its_runs(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=34)
    await merge_everything(sequencer, local_store)

    in_footers = set()
    for key in await keys_in(local_store):
        for run in read_footer(await local_store.get(ObjectKey(key))).runs:
            if is_merged(ObjectKey(key)):
                in_footers.add(
                    (key, run.partition, run.base_offset, run.last_offset, run.position, run.length)
                )
            else:
                assert (run.base_offset, run.last_offset) == (None, None)
    in_database = {
        (run.object_key, partition, run.base_offset, run.last_offset, run.position, run.length)
        for partition in range(3)
        for run in (await coordinates(sequencer, topic, partition)).runs
        if is_merged(run.object_key)
    }
    assert in_database <= in_footers


async def test_merged_segments_become_garbage_and_go_and_the_log_stays(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    inputs = await a_log(sequencer, local_store, topic, segments=34)
    before = await read_all(sequencer, local_store, topic)
    await merge_everything(sequencer, local_store)

    await collect_garbage(sequencer, local_store)

    after = await read_all(sequencer, local_store, topic)
    left = await keys_in(local_store)
    assert [each.batches for each in after] == [each.batches for each in before]
    assert {key.split("/")[1] for key in left} == {"segments", "merged"}
    assert sum(key.split("/")[1] == "segments" for key in left) == len(inputs) - 32
    assert await is_healthy(sequencer, local_store)


async def test_what_was_merged_is_counted_by_tier(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=34)
    await merge_everything(sequencer, local_store)

    uploaded, first, second = [(await totals(sequencer, tier)).done for tier in (0, 1, 2)]

    assert (uploaded.objects_out, uploaded.runs_out) == (34, 102)
    assert (first.runs_in, first.runs_out, first.objects_in) == (96, 12, 32)
    assert (second.runs_in, second.runs_out) == (12, 3)
    assert uploaded.bytes_out < first.bytes_out + second.bytes_out < 2 * uploaded.bytes_out


async def test_too_few_segments_are_left_alone(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=3)

    assert await merge_everything(sequencer, local_store) == 0


async def test_tiers_end_where_the_setting_says(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=34)

    assert await merge_everything(sequencer, local_store, merge_tiers=0) == 0
    assert await merge_everything(sequencer, local_store, merge_tiers=1) == 4


Meanwhile = Callable[[Sequencer, ObjectStore, Topic], Awaitable[object]]


async def records_deleted(sequencer: Sequencer, _store: ObjectStore, topic: Topic) -> None:
    await sequencer.retention.delete_records(topic.topic_id, Partition(1), Offset(7))
    await sequencer.retention.delete_records(topic.topic_id, Partition(2), Offset(1))


async def retention_at_work(sequencer: Sequencer, _store: ObjectStore, topic: Topic) -> None:
    await sequencer.topics.alter_config(topic.name, {"retention.bytes": "300"}, ())
    await finish(RetentionJob(sequencer, settings()))


async def topic_deleted(sequencer: Sequencer, _store: ObjectStore, topic: Topic) -> None:
    await sequencer.topics.delete(topic.name)
    await finish(TopicSweepJob(sequencer, settings()))


async def more_written(sequencer: Sequencer, store: ObjectStore, topic: Topic) -> None:
    await a_log(sequencer, store, topic, segments=3, first=100)


@pytest.mark.parametrize("meanwhile", [records_deleted, retention_at_work, topic_deleted, more_written])
@pytest.mark.parametrize("step", ["get", "after put"])
async def test_what_changes_during_a_merge_fails_its_swaps_and_nothing_else(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic, meanwhile: Meanwhile, step: str
) -> None:
    kept = await sequencer.topics.create("kept", 2, {"retention.ms": "-1"})
    await a_log(sequencer, local_store, topic, segments=8)
    await a_log(sequencer, local_store, kept, segments=8)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, kept)
    gated = GatedStore(local_store, step)

    merging = asyncio.create_task(a_merger(sequencer, gated).merge_once())
    await asyncio.wait_for(gated.reached.wait(), 60)
    await meanwhile(sequencer, local_store, topic)
    changed = [] if meanwhile is topic_deleted else await read_all(sequencer, local_store, topic)
    gated.opened.set()
    await asyncio.wait_for(merging, 60)
    await merge_everything(sequencer, local_store)

    assert [each.batches for each in await read_all(sequencer, local_store, kept)] == [
        each.batches for each in before
    ]
    for partition, each in enumerate(changed):
        now = await read_back(sequencer, local_store, topic, partition)
        start = (await coordinates(sequencer, topic, partition)).log_start_offset
        assert [batch for batch in now.batches if batch[0] >= start] == [
            b for b in each.batches if b[0] >= start
        ]
    assert await is_healthy(sequencer, local_store)


async def test_two_workers_merge_different_segments_at_once(
    sequencer: Sequencer, other: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=40)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, topic)
    ann, bob = GatedStore(local_store, "put"), GatedStore(local_store, "put")

    tasks = [asyncio.create_task(a_merger(sequencer, ann).merge_once())]
    await asyncio.wait_for(ann.reached.wait(), 60)
    tasks.append(asyncio.create_task(a_merger(other, bob).merge_once()))
    await asyncio.wait_for(bob.reached.wait(), 60)
    ann.opened.set()
    bob.opened.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)

    done = (await totals(sequencer, 1)).done
    assert (done.runs_in, done.swaps_refused) == (2 * 8 * 3, 0)
    await merge_everything(sequencer, local_store)
    after = await read_all(sequencer, local_store, topic)
    assert [each.batches for each in after] == [each.batches for each in before]


@pytest.mark.parametrize("step", ["get", "put", "after put", "publish"])
async def test_a_worker_killed_at_any_step_leaves_a_whole_log_and_work_for_the_next(
    sequencer: Sequencer, other: Sequencer, local_store: ObjectStore, topic: Topic, step: str
) -> None:
    await a_log(sequencer, local_store, topic, segments=8)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, topic)
    gated = GatedStore(local_store, step)
    doomed = a_merger(other, gated)

    if step == "publish":  # of the second partition; the first one is done
        async with sequencer.database.transaction() as held:
            await held.execute("SELECT 1 FROM partitions WHERE partition = 1 FOR UPDATE")
            merging = await waits_for_a_lock(sequencer, doomed.merge_once)
            await other.close()
            merging.cancel()
            await _end_whoever_waits_for_a_lock(sequencer)  # it would go on without its caller
            await _kill(merging, other)
    else:
        merging = asyncio.create_task(doomed.merge_once())
        await asyncio.wait_for(gated.reached.wait(), 60)
        await _kill(merging, other)

    half_done = await read_all(sequencer, local_store, topic)
    at_once = await merge_everything(sequencer, local_store)
    await time_passes(sequencer, LEASE_S + 1)
    later = await merge_everything(sequencer, local_store)
    after = await read_all(sequencer, local_store, topic)

    assert [each.batches for each in half_done] == [each.batches for each in before]
    assert [each.runs for each in half_done] == ([1, 8, 8] if step == "publish" else [8] * 3)
    assert (at_once, later) == (0, 1)
    assert [each.batches for each in after] == [each.batches for each in before]
    assert [each.runs for each in after] == [1] * 3
    await collect_garbage(sequencer, local_store)
    assert {key.split("/")[1] for key in await keys_in(local_store)} == {"merged"}
    assert len(await keys_in(local_store)) == (2 if step == "publish" else 1)
    assert await is_healthy(sequencer, local_store)


async def _kill(merging: asyncio.Task[bool], its_database: Sequencer) -> None:
    """Without its connections it can give nothing back."""
    await its_database.close()
    merging.cancel()
    await asyncio.wait({merging}, timeout=60)
    assert merging.done()


async def _end_whoever_waits_for_a_lock(sequencer: Sequencer) -> None:
    await sequencer.database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )


async def test_a_publish_whose_connection_is_lost_is_repeated_until_its_outcome_is_known(
    sequencer: Sequencer, other: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=8)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, topic)
    merger = a_merger(other, local_store)

    async with sequencer.database.transaction() as held:
        await held.execute("SELECT 1 FROM partitions WHERE partition = 1 FOR UPDATE")
        merging = await waits_for_a_lock(sequencer, merger.merge_once)
        await _end_whoever_waits_for_a_lock(sequencer)
    assert await asyncio.wait_for(merging, 60)

    after = await read_all(sequencer, local_store, topic)
    assert [each.batches for each in after] == [each.batches for each in before]
    assert [each.runs for each in after] == [1] * 3
    assert (await totals(sequencer, 1)).done.swaps_refused == 0
    assert other.database.counters.lost_connections > 0


async def test_a_worker_that_paused_past_its_lease_publishes_nothing(
    sequencer: Sequencer, other: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=8)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, topic)
    gated = GatedStore(local_store, "after put")

    paused = asyncio.create_task(a_merger(other, gated).merge_once())
    await asyncio.wait_for(gated.reached.wait(), 60)
    await time_passes(sequencer, LEASE_S + 1)
    assert await merge_everything(sequencer, local_store) == 1
    await collect_garbage(sequencer, local_store)
    gated.opened.set()
    with pytest.raises(ClaimLost):
        await asyncio.wait_for(paused, 60)

    after = await read_all(sequencer, local_store, topic)
    assert [each.batches for each in after] == [each.batches for each in before]
    assert (await totals(sequencer, 1)).done.swaps_refused == 0
    assert await is_healthy(sequencer, local_store)


async def test_a_damaged_run_stays_as_it_is_and_the_rest_is_merged(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    await a_log(sequencer, local_store, topic, segments=8)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, topic)
    damaged = (await coordinates(sequencer, topic, 1)).runs[3]
    data = bytearray(await local_store.get(damaged.object_key))
    data[damaged.position + damaged.length - 3] ^= 1
    await local_store.put(damaged.object_key, [bytes(data)])

    with caplog.at_level(logging.ERROR):
        await merge_everything(sequencer, local_store)

    after = await read_all(sequencer, local_store, topic)
    assert [each.runs for each in after] == [1, 8, 1]
    assert [after[partition].batches for partition in (0, 2)] == [
        before[partition].batches for partition in (0, 2)
    ]
    assert (await totals(sequencer, 1)).done.runs_damaged == 1
    [alarm] = [record for record in caplog.records if "not what it should be" in record.getMessage()]
    assert alarm.__dict__["object_key"] == damaged.object_key


async def test_a_missing_object_stays_missing_and_the_rest_is_merged(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=8)
    await discover(sequencer)
    beside = await sequencer.topics.create("beside", 1, {"retention.ms": "-1"})
    await local_store.delete([(await coordinates(sequencer, topic, 1)).runs[3].object_key])
    await a_log(sequencer, local_store, beside, segments=8, records=30)

    await merge_everything(sequencer, local_store)

    assert [len((await coordinates(sequencer, topic, partition)).runs) for partition in range(3)] == [8] * 3
    assert (await read_back(sequencer, local_store, beside)).runs == 3
    assert (await totals(sequencer, 1)).done.runs_damaged == 3


async def test_a_merge_whose_time_is_over_goes_on_with_the_next_claim(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=16, records=8)
    await discover(sequencer)
    before = await read_all(sequencer, local_store, topic)
    merger = a_merger(sequencer, local_store, merge_job_s=0.000001, merge_tiers=1, merge_fan_in=16)

    merges = 0
    while await merger.merge_once():
        merges += 1

    after = await read_all(sequencer, local_store, topic)
    assert merges > 2
    assert [each.batches for each in after] == [each.batches for each in before]
    assert await sequencer.database.run("SELECT 1 FROM merge_candidates") == []


async def test_an_overloaded_agent_does_not_merge(
    sequencer: Sequencer, local_store: ObjectStore, topic: Topic
) -> None:
    await a_log(sequencer, local_store, topic, segments=8)
    await discover(sequencer)
    load = 1.0
    merger = a_merger(sequencer, local_store, load=lambda: load, merge_target_s=1000)

    full = await merger.merge_once()
    load = 0.0

    assert not full
    assert await merger.merge_once()
