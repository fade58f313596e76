"""Without a confirmed ownership nothing is doomed or deleted. Once it is lost, no job of the cluster runs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from compactor.diagnosis import Fault
from compactor.doctor import DoctorSettings, examine
from compactor.garbage_jobs import DoomingJob, GarbageDeletionJob, GarbageScanJob, HistoryGarbageJob
from compactor.housekeeper import Housekeeper, OwnershipJob
from compactor.job import Job
from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.housekeeping.garbage import PartitionRules
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from storage.identifiers import ObjectKey, Partition
from storage.segments.keys import ownership_key
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, is_there, pending, settings, written
from tests.compactor.gated_store import GatedStore
from tests.compactor.test_garbage_jobs import finish
from tests.sequencer.housekeeping.housekeeping import count, ready_to_doom, state_of, time_passes

GRACE_S, LATE_S, DAY_S = 600.0, 3600.0, 86_400.0

Take = Callable[[Sequencer], Awaitable[object]]


async def let_it_lapse(sequencer: Sequencer) -> None:
    await sequencer.database.run(
        "UPDATE ownership SET confirmed_at = confirmed_at - interval '2 minutes 1 second'"
    )


async def find_another_owner(sequencer: Sequencer) -> None:
    await sequencer.ownership.stop("another database owns the bucket")


async def restart_postgres(sequencer: Sequencer) -> None:
    await sequencer.database.run(
        "UPDATE ownership SET postmaster_started_at = postmaster_started_at - interval '1s'"
    )


@pytest.fixture
async def owned(sequencer: Sequencer, local_store: ObjectStore) -> Sequencer:
    """It has ratcheted once, a moment ago."""
    await sequencer.database.run("UPDATE ownership SET confirmed_at = NULL, system_identifier = NULL")
    await finish(OwnershipJob(sequencer, local_store, CLUSTER, settings()))
    await sequencer.ownership.demand()
    return sequencer


@pytest.mark.parametrize("take", [let_it_lapse, find_another_owner, restart_postgres])
async def test_garbage_stays_while_the_ownership_is_not_confirmed(
    owned: Sequencer, local_store: ObjectStore, take: Take
) -> None:
    topic = await owned.topics.create("orders", 1, {})
    doomed, undoomed = [await written(owned, local_store, pending(topic)) for _ in range(2)]
    await owned.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await finish(GarbageScanJob(owned, settings()))
    await time_passes(owned, GRACE_S + 1)
    await owned.database.run("UPDATE segments SET unreferenced_since = NULL WHERE segment_id = %(id)s",
                               id=undoomed.segment_id)  # fmt: skip
    await ready_to_doom(owned)
    await finish(DoomingJob(owned, settings()))
    await finish(GarbageScanJob(owned, settings()))
    await time_passes(owned, GRACE_S + 1)

    await take(owned)
    await ready_to_doom(owned)
    assert await finish(DoomingJob(owned, settings())) == {}
    with pytest.raises(OwnershipUnconfirmed):
        await finish(GarbageDeletionJob(owned, local_store, settings()))

    assert [await state_of(owned, each.segment_id) for each in (doomed, undoomed)] == ["doomed", "committed"]
    assert [await is_there(local_store, each) for each in (doomed, undoomed)] == [True, True]


async def test_a_tombstones_second_deletion_and_historys_wait_for_the_ownership(
    owned: Sequencer, local_store: ObjectStore
) -> None:
    topic = await owned.topics.create("orders", 1, {})
    segment = await written(owned, local_store, pending(topic))
    await owned.database.run("UPDATE segments SET state = 'doomed', doomed_at = clock_timestamp()")
    partitions = PartitionRules(width_s=600, lock_timeout_ms=10_000)
    await owned.garbage.bury([segment.segment_id], outcome_retention_s=0, partitions=partitions)
    await time_passes(owned, 86_400)
    await owned.database.run(
        "INSERT INTO history_objects (object_key, topic_id, unreferenced_since)"
        " VALUES (%(key)s, %(topic_id)s, clock_timestamp() - interval '2 days')",
        key=f"{CLUSTER}/history/x",
        topic_id=topic.topic_id,
    )
    await let_it_lapse(owned)

    for job in (
        GarbageDeletionJob(owned, local_store, settings()),
        HistoryGarbageJob(owned, local_store, settings()),
    ):
        with pytest.raises(OwnershipUnconfirmed):
            await finish(job)

    assert await is_there(local_store, segment)
    assert await count(owned, "tombstones") == 1


async def test_no_job_runs_while_another_database_owns_the_bucket(
    owned: Sequencer, local_store: ObjectStore
) -> None:
    housekeeper = Housekeeper(owned, local_store, settings())
    [before] = [info async for info in local_store.list(ownership_key(CLUSTER))]
    await find_another_owner(owned)

    assert [await housekeeper.run_once(job) for job in housekeeper.jobs] == [False] * len(housekeeper.jobs)
    assert [info async for info in local_store.list(ownership_key(CLUSTER))] == [before]

    await owned.ownership.take_over(local_store, CLUSTER)
    assert all([await housekeeper.run_once(job) for job in housekeeper.jobs])


async def test_a_ratchet_costs_three_requests_and_several_housekeepers_no_more(
    owned: Sequencer, local_store: ObjectStore
) -> None:
    jobs: list[Job] = [OwnershipJob(owned, local_store, CLUSTER, settings()) for _ in range(5)]

    ratchets = sum([(await finish(job))["ratchets"] for job in jobs])

    assert ratchets == 0, "the last one was a moment ago"


async def test_the_doctor_says_that_another_database_owns_the_bucket(
    owned: Sequencer, local_store: ObjectStore
) -> None:
    assert (
        await examine(owned, local_store, CLUSTER, verify_contents=False, settings=DoctorSettings())
    ).is_healthy
    await find_another_owner(owned)

    [finding] = (
        await examine(owned, local_store, CLUSTER, verify_contents=False, settings=DoctorSettings())
    ).findings

    assert (finding.fault, finding.what) == (Fault.NOT_OWNED, "another database owns the bucket")


class _StalledStore(GatedStore):
    """A store that repeats a deletion for longer than an ownership counts."""

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        await asyncio.sleep(60)
        await super().delete(keys)


async def test_a_deletion_that_takes_longer_than_the_ownership_counts_is_given_up(
    owned: Sequencer, local_store: ObjectStore
) -> None:
    topic = await owned.topics.create("orders", 1, {})
    segment = await written(owned, local_store, pending(topic))
    await owned.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await finish(GarbageScanJob(owned, settings()))
    await time_passes(owned, GRACE_S + 1)
    await ready_to_doom(owned)
    await finish(DoomingJob(owned, settings()))
    await time_passes(owned, GRACE_S + 1)

    await owned.database.run("UPDATE ownership SET confirmed_at = clock_timestamp() - interval '119 seconds'")
    async with asyncio.timeout(20):
        with pytest.raises(OwnershipUnconfirmed, match="not confirmed again"):
            await finish(GarbageDeletionJob(owned, _StalledStore(local_store, "none"), settings()))

    assert await is_there(local_store, segment)
