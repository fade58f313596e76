"""Jobs on the real Postgres: one holder at a time, taken over when it dies, resumed where it stopped."""

import asyncio
from uuid import uuid4

from sequencer.client import Sequencer
from tests.sequencer.housekeeping.housekeeping import time_passes

ANN, BOB = uuid4(), uuid4()


async def test_a_job_has_one_holder_and_a_dead_one_is_replaced(sequencer: Sequencer) -> None:
    jobs = sequencer.jobs

    claim = await jobs.claim("sweep", ANN, lease_s=60)
    assert claim is not None
    assert await jobs.claim("sweep", BOB, lease_s=60) is None
    assert await jobs.claim("scan", BOB, lease_s=60) is not None
    await time_passes(sequencer, 61)
    assert await jobs.claim("sweep", BOB, lease_s=60) is not None

    assert not await jobs.renew(claim, lease_s=60, progress="half")
    await jobs.succeed(claim, progress=None)
    assert [status.running for status in await jobs.statuses()] == [False, True]


async def test_of_many_that_claim_at_once_one_gets_it(sequencer: Sequencer) -> None:
    claims = await asyncio.gather(*(sequencer.jobs.claim("sweep", uuid4(), lease_s=60) for _ in range(6)))

    assert len([claim for claim in claims if claim]) == 1


async def test_a_job_that_succeeded_is_not_due_before_its_interval(sequencer: Sequencer) -> None:
    claim = await sequencer.jobs.claim("sweep", ANN, lease_s=60)
    assert claim is not None
    await sequencer.jobs.succeed(claim, progress=None)

    assert await sequencer.jobs.claim("sweep", BOB, lease_s=60, min_interval_s=30) is None
    await time_passes(sequencer, 31)
    assert await sequencer.jobs.claim("sweep", BOB, lease_s=60, min_interval_s=30) is not None


async def test_a_pass_goes_on_where_its_last_holder_stopped(sequencer: Sequencer) -> None:
    first = await sequencer.jobs.claim("scan", ANN, lease_s=60)
    assert first is not None
    assert first.progress is None
    assert await sequencer.jobs.renew(first, lease_s=60, progress="half")
    await sequencer.jobs.fail(first, "the store is away")

    second = await sequencer.jobs.claim("scan", BOB, lease_s=60, min_interval_s=30)
    assert second is not None
    assert second.progress == "half"
    await sequencer.jobs.succeed(second, progress=None)
    await time_passes(sequencer, 31)
    third = await sequencer.jobs.claim("scan", ANN, lease_s=60, min_interval_s=30)

    assert third is not None
    assert third.progress is None


async def test_statuses_tell_the_age_of_the_last_success_and_the_last_error(sequencer: Sequencer) -> None:
    claim = await sequencer.jobs.claim("scan", ANN, lease_s=60)
    assert claim is not None
    await sequencer.jobs.succeed(claim, progress=None)
    await time_passes(sequencer, 100)
    again = await sequencer.jobs.claim("scan", ANN, lease_s=60)
    assert again is not None
    await sequencer.jobs.fail(again, "x" * 2_000)

    [status] = await sequencer.jobs.statuses()

    assert status.name == "scan"
    assert not status.running
    assert status.success_age_s is not None
    assert status.success_age_s >= 100
    assert status.last_error == "x" * 500


async def test_who_comes_too_early_waits_for_no_lock_and_takes_none(sequencer: Sequencer) -> None:
    claim = await sequencer.jobs.claim("sweep", ANN, lease_s=60)
    assert claim is not None
    async with sequencer.database.transaction() as held:
        await held.execute("SELECT FROM jobs FOR UPDATE")

        assert await sequencer.jobs.claim("sweep", BOB, lease_s=60) is None
        assert await sequencer.jobs.claim("sweep", BOB, lease_s=60, min_interval_s=30) is None
