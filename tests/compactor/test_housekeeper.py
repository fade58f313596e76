"""The housekeeper: its loops do the jobs, share them, survive outages, and stop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr, ValidationError

from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from compactor.diagnosis import Diagnosis
from compactor.doctor import DoctorSettings, examine
from compactor.housekeeper import Housekeeper
from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from sequencer.settings import SequencerSettings
from storage.identifiers import Partition
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.compactor.builders import CLUSTER, keys_in, pending, reserved, settings, upload, written
from tests.compactor.journal import rebuilt
from tests.sequencer.housekeeping.housekeeping import count, observed, time_passes

QUICK = settings(
    **{
        f"{name}_interval_s": 0.05
        for name in ("retention", "topic_sweep", "producer_expiry", "dooming", "garbage")
    },
    ownership_ratchet_s=0.5,
    garbage_grace_s=1.01,
    late_write_window_s=1.01,
    outcome_retention_s=0,
    reservation_lease_s=0.1,
    job_retry_s=0.02,
)


@asynccontextmanager
async def running(*housekeepers: Housekeeper) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(housekeeper.run()) for housekeeper in housekeepers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Until the awaited condition is true."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110 - what is waited for is in Postgres and the store
            await asyncio.sleep(0.05)


def metric(housekeeper: Housekeeper, name: str, **labels: str) -> float:
    return housekeeper.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_two_housekeepers_empty_a_cluster_of_what_nobody_wants(
    sequencer: Sequencer, any_store: ObjectStore
) -> None:
    aged = await sequencer.topics.create("aged", 4, {"retention.ms": "0"})
    deleted = await sequencer.topics.create("deleted", 4, {})
    kept = await sequencer.topics.create("kept", 1, {"retention.ms": "-1"})
    for _ in range(6):
        await written(
            sequencer,
            any_store,
            *(pending(topic, partition=partition) for topic in (aged, deleted) for partition in range(4)),
        )
    await upload(any_store, await reserved(sequencer, [pending(aged)], lease_s=0.01))
    live = await written(sequencer, any_store, pending(kept))
    await sequencer.topics.delete("deleted")
    ann, bob = (Housekeeper(sequencer, any_store, QUICK) for _ in range(2))

    async def is_empty() -> bool:
        return await keys_in(any_store) == {live.key} and await count(sequencer, "segments") == 1

    async with running(ann, bob):
        await eventually(is_empty)

    assert await count(sequencer, "runs") == 1
    assert {topic.name for topic in await sequencer.topics.list()} == {"aged", "kept"}
    swept = [metric(each, "tidelog_job_done_total", job="topic-sweep", what="topics") for each in (ann, bob)]
    assert sum(swept) == 1
    assert [metric(each, "tidelog_job_failures_total", job="retention") for each in (ann, bob)] == [0, 0]


async def test_a_stopped_housekeeper_gives_its_jobs_back_at_once(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    housekeeper = Housekeeper(sequencer, local_store, settings())
    job = EndlessJob()

    task = asyncio.create_task(housekeeper.run_once(job))
    await asyncio.wait_for(job.began.wait(), 60)
    assert not await Housekeeper(sequencer, local_store, settings()).run_once(job)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    [status] = await sequencer.jobs.statuses()
    assert not status.running
    assert status.last_error == "stopped"


class EndlessJob:
    """A job whose step never ends."""

    name = "endless"
    interval_s = 60.0

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def step(self, progress: str | None) -> Step:
        self.began.set()
        await asyncio.Event().wait()
        return Step(progress=progress)


async def test_a_job_is_not_run_more_often_than_half_its_interval(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    ann, bob = (Housekeeper(sequencer, local_store, settings()) for _ in range(2))
    retention = ann.jobs[0]

    assert await ann.run_once(retention)
    assert not await bob.run_once(bob.jobs[0])
    await time_passes(sequencer, retention.interval_s / 2 + 1)
    assert await bob.run_once(bob.jobs[0])


async def test_jobs_export_the_age_of_their_last_success(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    housekeeper = Housekeeper(sequencer, local_store, settings())
    for job in housekeeper.jobs:
        await housekeeper.run_once(job)
    await time_passes(sequencer, 500)

    await observed(sequencer)
    await housekeeper.read_observation()

    for job in housekeeper.jobs:
        assert metric(housekeeper, "tidelog_job_last_success_age_seconds", job=job.name) >= 500


async def test_a_store_that_is_away_is_logged_once_and_retried_until_it_is_back(
    sequencer: Sequencer, local_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await sequencer.topics.create("orders", 1, {"retention.ms": "0"})
    await written(sequencer, local_store, pending(topic))
    away = await open_store(
        "s3://bucket/prefix?endpoint=http://127.0.0.1:9",
        StoreSettings.model_validate({"s3_access_key": "a", "s3_secret_key": "b", "s3_attempts": 1}),
    )
    housekeeper = Housekeeper(sequencer, away, QUICK)

    async def has_failed_often() -> bool:
        return metric(housekeeper, "tidelog_job_failures_total", job="garbage-deletion") >= 4

    with caplog.at_level(logging.INFO, logger="tidelog"):
        async with running(housekeeper):
            await eventually(has_failed_often)
    await away.close()

    logged = [record for record in caplog.records if getattr(record, "job", None) == "garbage-deletion"]
    assert [record.levelname for record in logged] == ["WARNING"]
    assert await count(sequencer, "runs") == 0
    assert len(await keys_in(local_store)) == 1
    [status] = [each for each in await sequencer.jobs.statuses() if each.name == "garbage-deletion"]
    assert status.last_error is not None


class BrokenJob:
    """A job with a bug."""

    name = "broken"
    interval_s = 0.05

    async def step(self, progress: str | None) -> Step:
        raise ZeroDivisionError(progress)


async def test_a_job_with_a_mistake_in_it_stops_no_other(
    sequencer: Sequencer, local_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    housekeeper = Housekeeper(sequencer, local_store, QUICK)
    housekeeper.jobs = (BrokenJob(), *housekeeper.jobs)

    async def others_go_on() -> bool:
        statuses = {status.name: status for status in await sequencer.jobs.statuses()}
        return (
            metric(housekeeper, "tidelog_job_failures_total", job="broken") >= 3
            and len(statuses) == len(housekeeper.jobs)
            and all(status.success_age_s is not None for name, status in statuses.items() if name != "broken")
        )

    async with running(housekeeper):
        await eventually(others_go_on)
        [status] = [each for each in await sequencer.jobs.statuses() if each.name == "broken"]

    logged = [record for record in caplog.records if getattr(record, "job", None) == "broken"]
    assert [record.levelname for record in logged] == ["ERROR"]
    assert logged[0].exc_info is not None
    assert status.last_error == "ZeroDivisionError: None"


async def test_a_database_that_is_away_stops_no_loop_and_pauses_dooming(
    local_store: ObjectStore, sequencer: Sequencer
) -> None:
    patience = SequencerSettings.model_validate(
        {"database_pool_timeout_s": 0.2, "database_connect_timeout_s": 2}
    )
    nobody = await Sequencer.open("postgresql://127.0.0.1:9/tidelog", patience)
    housekeeper = Housekeeper(nobody, local_store, QUICK)

    async def has_failed_often() -> bool:
        return all(
            metric(housekeeper, "tidelog_job_failures_total", job=job.name) >= 2 for job in housekeeper.jobs
        )

    async with running(housekeeper):
        await eventually(has_failed_often)
    await nobody.close()

    assert await count(sequencer, "jobs") == 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"job_run_s": 40}, "TIDELOG_JOB_LEASE_S"),
        ({"dooming_interval_s": 50}, "TIDELOG_DATABASE_OUTAGE_AFTER_S"),
        ({"ownership_ratchet_s": 300}, "TIDELOG_GARBAGE_GRACE_S .* TIDELOG_OWNERSHIP_RATCHET_S"),
        ({"late_write_window_s": 120}, "TIDELOG_LATE_WRITE_WINDOW_S .* TIDELOG_OWNERSHIP_RATCHET_S"),
        ({"history_reader_grace_s": 60}, "TIDELOG_HISTORY_READER_GRACE_S .* TIDELOG_OWNERSHIP_RATCHET_S"),
        ({"checkpoint_interval_s": 2000}, "TIDELOG_CHECKPOINT_INTERVAL_S .* TIDELOG_RESTORE_HORIZON_S"),
        ({"journal_interval_s": 61}, "TIDELOG_JOURNAL_INTERVAL_S .* TIDELOG_JOURNAL_HEARTBEAT_S"),
        ({"retention_runs_per_step": 0}, "retention_runs_per_step"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(given: dict[str, float], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        HousekeeperSettings.model_validate(given)


def test_defaults_fit_the_agents_waits() -> None:
    """An object outlives every coordinate an agent may still use; a tombstone outlives every upload
    (docs/design/read-path.md#coordinates)."""
    housekeeping, agent = (
        HousekeeperSettings(),
        AgentSettings(database_url=SecretStr("postgresql://"), store_url="memory://test"),
    )
    longest_upload_s = agent.upload_attempts * agent.upload_timeout_s

    assert housekeeping.garbage_grace_s > 2 * ReadPathSettings().coordinate_max_age_s
    assert housekeeping.reservation_lease_s == agent.reservation_lease_s
    assert housekeeping.late_write_window_s > longest_upload_s + agent.reservation_lease_s


async def test_two_housekeepers_under_traffic_leave_a_sound_log(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    """The fixture fails this test for any deadlock."""
    kept = await sequencer.topics.create("kept", 2, {"retention.ms": "-1"})
    busy = asyncio.Event()

    async def produce(segments: int) -> None:
        for number in range(segments):
            passing = await sequencer.topics.create(f"passing-{id(asyncio.current_task())}-{number}", 2, {})
            aged = await sequencer.topics.create(f"aged-{passing.name}", 2, {"retention.ms": "0"})
            both = [pending(topic, partition=p) for topic in (kept, passing, aged) for p in range(2)]
            await written(sequencer, local_store, *both)
            await asyncio.gather(
                sequencer.topics.delete(passing.name),
                written(sequencer, local_store, *both),
                sequencer.retention.delete_records(aged.topic_id, Partition(0), TO_HIGH_WATERMARK),
            )

    async def keep_examining() -> list[Diagnosis]:
        diagnoses = []
        while not busy.is_set():
            diagnoses.append(
                await examine(
                    sequencer, local_store, CLUSTER, verify_contents=True, settings=DoctorSettings()
                )
            )
        return diagnoses

    async with running(*(Housekeeper(sequencer, local_store, QUICK) for _ in range(2))):
        examining = asyncio.create_task(keep_examining())
        await asyncio.gather(*(produce(8) for _ in range(3)))
        busy.set()
        diagnoses = await examining

    bounds = await sequencer.coordinates.bounds([(kept.topic_id, Partition(p)) for p in range(2)])
    assert {(each.log_start_offset, each.high_watermark) for each in bounds.values()} == {(0, 48)}
    assert [finding for diagnosis in diagnoses for finding in diagnosis.findings] == []
    assert (
        await examine(sequencer, local_store, CLUSTER, verify_contents=True, settings=DoctorSettings())
    ).is_healthy


class SlowJob:
    """A job whose one step takes longer than its lease."""

    name = "slow"
    interval_s = 60.0

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = False

    async def step(self, progress: str | None) -> Step:
        self.began.set()
        try:
            await self.may_end.wait()
        finally:
            self.ended = True
        return Step(progress=progress, done={"steps": 1})


QUICK_LEASES = settings(job_lease_s=0.3, job_run_s=0.1)


async def test_a_step_that_outlasts_its_lease_keeps_its_claim(
    sequencer: Sequencer, local_store: ObjectStore
) -> None:
    ann, bob = (Housekeeper(sequencer, local_store, QUICK_LEASES) for _ in range(2))
    job = SlowJob()
    task = asyncio.create_task(ann.run_once(job))
    await asyncio.wait_for(job.began.wait(), 60)
    [first] = await sequencer.database.run("SELECT lease_until FROM jobs WHERE name = 'slow'")

    async def was_renewed() -> bool:
        [row] = await sequencer.database.run("SELECT lease_until FROM jobs WHERE name = 'slow'")
        return bool(row.lease_until > first.lease_until)

    await eventually(was_renewed)
    assert not await bob.run_once(SlowJob())
    job.may_end.set()
    assert await task
    [status] = await sequencer.jobs.statuses()
    assert status.success_age_s is not None


async def test_a_step_whose_claim_was_lost_ends(sequencer: Sequencer, local_store: ObjectStore) -> None:
    job = SlowJob()
    task = asyncio.create_task(Housekeeper(sequencer, local_store, QUICK_LEASES).run_once(job))
    await asyncio.wait_for(job.began.wait(), 60)

    await sequencer.database.run("UPDATE jobs SET holder = gen_random_uuid()")

    await asyncio.wait_for(task, 60)
    assert job.ended


async def test_housekeepers_keep_a_journal_that_holds_everything(
    sequencer: Sequencer, local_store: ObjectStore, empty_database_url: str
) -> None:
    quick = settings(journal_interval_s=0.05, checkpoint_interval_s=0.5, observation_interval_s=0.05)
    ann, bob = (Housekeeper(sequencer, local_store, quick) for _ in range(2))
    orders = await sequencer.topics.create("orders", 2, {"retention.ms": "-1"})
    segments = []

    async def holds_everything() -> bool:
        state = await sequencer.journal.state()
        [row] = await sequencer.database.run(
            "SELECT max(committed_at) < (SELECT taken_at FROM journal) AS is_in FROM segments"
        )
        return bool(row.is_in) and state.checkpoint_number >= 3

    async with running(ann, bob):
        for number in range(20):
            segments.append(await written(sequencer, local_store, pending(orders, 2, partition=number % 2)))
            await asyncio.sleep(0.02)
        await eventually(holds_everything)

        async def is_shown() -> bool:
            return metric(ann, "tidelog_journal_bytes", kind="entries") > 0

        await eventually(is_shown)

    async with rebuilt(local_store, empty_database_url) as (copy, left_out):
        assert left_out == []
        rows = await copy.database.run("SELECT segment_id FROM runs")
        assert {row.segment_id for row in rows} == {segment.segment_id for segment in segments}
    assert [metric(each, "tidelog_job_failures_total", job="journal") for each in (ann, bob)] == [0, 0]
