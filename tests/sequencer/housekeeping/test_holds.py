"""Holds on the real Postgres: what is held stays, and what is published was held."""

from uuid import uuid4

from sequencer.client import Sequencer
from storage.identifiers import SegmentId, new_segment_id
from tests.sequencer.builders import a_key, committed, reserved
from tests.sequencer.housekeeping.housekeeping import (
    count,
    doom,
    records_of,
    state_of,
    time_passes,
    waits_for_a_lock,
)

LEASE_S = 300.0


async def an_output(sequencer: Sequencer) -> SegmentId:
    """A merged object in the making: reserved, not yet published for any partition."""
    segment_id = new_segment_id()
    await sequencer.reservations.reserve({segment_id: a_key(segment_id)}, 900.0, "merge")
    return segment_id


async def test_a_job_holds_what_is_not_doomed_and_learns_which(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    kept = (await committed(sequencer, [records_of(topic)])).runs[0].object_key
    lost = await reserved(sequencer, [records_of(topic)], lease_s=1.0)
    await time_passes(sequencer, 10)
    await doom(sequencer)
    rows = await sequencer.database.run("SELECT segment_id, object_key FROM segments")
    segment_ids = {row.object_key: row.segment_id for row in rows}

    held = await sequencer.holds.take(uuid4(), [*segment_ids.values(), new_segment_id()], lease_s=LEASE_S)

    assert await state_of(sequencer, lost.segment_id) == "doomed"
    assert held == {segment_ids[kept]}


async def test_a_lapsed_hold_cannot_be_renewed_and_a_released_one_is_gone(sequencer: Sequencer) -> None:
    job, output = uuid4(), await an_output(sequencer)
    await sequencer.holds.take(job, [output], lease_s=LEASE_S)

    assert await sequencer.holds.renew(job, lease_s=LEASE_S)
    await time_passes(sequencer, LEASE_S + 1)
    assert not await sequencer.holds.renew(job, lease_s=LEASE_S)
    await sequencer.holds.release(job)
    assert not await sequencer.holds.renew(job, lease_s=LEASE_S)
    assert await count(sequencer, "holds") == 0


async def test_holds_that_lapsed_long_ago_are_purged_in_bounded_steps(sequencer: Sequencer) -> None:
    job = uuid4()
    outputs = [await an_output(sequencer) for _ in range(3)]
    await sequencer.holds.take(job, outputs, lease_s=LEASE_S)
    await time_passes(sequencer, LEASE_S + 100)
    await sequencer.holds.take(uuid4(), outputs, lease_s=LEASE_S)

    purged = [await sequencer.holds.purge_lapsed(older_than_s=60, cap=2) for _ in range(3)]

    assert purged == [2, 1, 0]
    assert await count(sequencer, "holds") == 3


async def test_raced_a_hold_that_waits_for_dooming_holds_nothing(sequencer: Sequencer) -> None:
    output = await an_output(sequencer)

    async with sequencer.database.transaction() as dooming:
        await dooming.execute("UPDATE segments SET state = 'doomed'")
        late = await waits_for_a_lock(
            sequencer, lambda: sequencer.holds.take(uuid4(), [output], lease_s=LEASE_S)
        )

    assert await late == frozenset()
    assert await count(sequencer, "holds") == 0
