"""One housekeeper measures for all. The others read, take over when it dies, and ignore old results."""

import asyncio
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from compactor.housekeeper import Housekeeper, LastObservation, ObserverJob
from compactor.merging import Merger
from compactor.metrics import MergeMetrics
from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.settings import SequencerSettings
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER, settings
from tests.compactor.merging import FAN_IN, a_log, discover, merge_settings
from tests.sequencer.housekeeping.housekeeping import observed, time_passes, waits_for_a_lock
from tests.support.waiting import until

QUICK = settings(observation_interval_s=0.05, job_lease_s=60.0)


def observer_of(housekeeper: Housekeeper) -> ObserverJob:
    [job] = [job for job in housekeeper.jobs if isinstance(job, ObserverJob)]
    return job


def age_s(housekeeper: Housekeeper) -> float:
    value = housekeeper.metrics.registry.get_sample_value("tidelog_observation_age_seconds")
    assert value is not None
    return value


async def test_one_housekeeper_observes_at_a_time(sequencer: Sequencer, local_store: ObjectStore) -> None:
    ann, bob = (Housekeeper(sequencer, local_store, settings()) for _ in range(2))
    async with sequencer.database.transaction() as held:
        await held.execute("INSERT INTO observation VALUES (true, '-infinity', '{}')")
        running = await waits_for_a_lock(sequencer, lambda: ann.run_once(observer_of(ann)))
        assert not await bob.run_once(observer_of(bob))

    assert await running
    assert not await bob.run_once(observer_of(bob)), "it was measured just now"
    await time_passes(sequencer, settings().observation_interval_s)
    assert await bob.run_once(observer_of(bob))


async def test_all_read_what_one_observed(sequencer: Sequencer, local_store: ObjectStore) -> None:
    ann, bob = (Housekeeper(sequencer, local_store, settings()) for _ in range(2))
    topic = await sequencer.topics.create("orders", 1, {})
    await a_log(sequencer, local_store, topic, 3)
    await discover(sequencer)

    assert await ann.run_once(observer_of(ann))
    await bob.read_observation()

    sample = bob.metrics.registry.get_sample_value
    assert sample("tidelog_merge_backlog_segments", {"tier": "0"}) == 3
    assert sample("tidelog_segments_waiting", {"state": "reserved"}) == 0
    assert age_s(bob) < settings().observation_stale_s


async def test_an_observer_that_dies_while_it_measures_is_replaced_when_its_lease_is_over(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    dead = await sequencer.jobs.claim(ObserverJob.name, uuid4(), lease_s=QUICK.job_lease_s)
    assert dead is not None
    heir = Housekeeper(sequencer, local_store, QUICK)
    running = asyncio.create_task(heir.run())
    try:
        await until(lambda: _done(heir, "retention", "runs") is not None)
        assert await sequencer.observations.latest() is None
        await time_passes(sequencer, QUICK.job_lease_s + 1)
        await until(lambda: heir.observed.fresh() is not None)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_observer_that_is_stopped_is_replaced_at_once(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    ann, bob = (Housekeeper(sequencer, local_store, QUICK) for _ in range(2))
    running = [asyncio.create_task(each.run()) for each in (ann, bob)]
    try:
        await until(lambda: _measured(ann) and bob.observed.fresh() is not None)
        running[0].cancel()
        await asyncio.gather(running[0], return_exceptions=True)
        before = _measured(bob)

        await until(lambda: _measured(bob) > before)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _done(housekeeper: Housekeeper, job: str, what: str) -> float | None:
    return housekeeper.metrics.registry.get_sample_value("tidelog_job_done_total", {"job": job, "what": what})


def _measured(housekeeper: Housekeeper) -> float:
    return _done(housekeeper, ObserverJob.name, "measured") or 0.0


async def test_nothing_is_merged_by_a_stale_observation(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    chosen = merge_settings()
    topic = await sequencer.topics.create("orders", 1, {})
    await a_log(sequencer, local_store, topic, 16 * FAN_IN)
    await discover(sequencer)
    last = LastObservation(sequencer, chosen)
    merger = Merger(sequencer, local_store, CLUSTER, chosen, MergeMetrics(CollectorRegistry()), last.backlog)

    assert not await merger.merge_once(), "nothing was observed yet"
    await observed(sequencer)
    await time_passes(sequencer, chosen.observation_stale_s + 1)
    await last.read()
    assert last.age_s > chosen.observation_stale_s
    assert not await merger.merge_once()
    await observed(sequencer)
    await last.read()
    assert await merger.merge_once()


async def test_the_age_grows_while_the_database_is_away(database_url: str, sequencer: Sequencer) -> None:
    await observed(sequencer)
    agent = await Sequencer.open(database_url, SequencerSettings())
    last = LastObservation(agent, settings())
    await last.read()
    await agent.close()
    before_s = last.age_s

    with pytest.raises(SequencerUnavailable):
        await last.read()

    await until(lambda: last.age_s > before_s)
