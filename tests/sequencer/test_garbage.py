"""Garbage on the real Postgres: what may go, when, and that nothing can come to refer to what went."""

import asyncio
from uuid import uuid4

from sequencer.client import Sequencer
from sequencer.commits import Assigned, Committed, Refused
from sequencer.garbage import BEFORE_ALL, Doomed, DoomingPaused
from sequencer.observations import Census
from sequencer.retention import TO_HIGH_WATERMARK
from storage.identifiers import Partition, ProducerId, SegmentId
from tests.sequencer.builders import ABatch, accepted, committed, reserved
from tests.sequencer.housekeeping import (
    GRACE_S,
    RULES,
    doom,
    observed,
    ready_to_doom,
    records_of,
    segment_row,
    state_of,
    time_passes,
    waits_for_a_lock,
)

DAY_S = 86_400.0


async def record_deletion(sequencer: Sequencer) -> list[SegmentId]:
    due = await sequencer.garbage.due_for_deletion(grace_s=GRACE_S, cap=100)
    ids = [each.segment_id for each in due]
    await sequencer.garbage.record_deletion(ids, late_write_window_s=3600, outcome_retention_s=DAY_S)
    return ids


async def test_nothing_is_doomed_for_one_lease_after_the_first_look(sequencer: Sequencer) -> None:
    first = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    await sequencer.database.fetch("UPDATE dooming SET paused_until = clock_timestamp()")
    second = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)

    assert isinstance(first, DoomingPaused)
    assert first.reason == "start"
    assert RULES.reservation_lease_s - 60 < first.pause_s <= RULES.reservation_lease_s
    assert second == Doomed(reservations=0, unreferenced=0)


async def test_dooming_pauses_for_one_lease_after_an_outage(sequencer: Sequencer) -> None:
    await ready_to_doom(sequencer)
    await sequencer.database.fetch("UPDATE dooming SET last_seen_at = last_seen_at - interval '61 seconds'")

    after_a_gap = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    await ready_to_doom(sequencer)
    after_a_failure = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10, outage_seen=True)

    for pause in (after_a_gap, after_a_failure):
        assert isinstance(pause, DoomingPaused)
        assert pause.reason == "outage"
        assert pause.pause_s > RULES.reservation_lease_s - 60


async def test_dooming_pauses_for_the_failover_hold_when_the_timeline_changed(sequencer: Sequencer) -> None:
    await ready_to_doom(sequencer)
    await sequencer.database.fetch("UPDATE dooming SET timeline = timeline - 1")

    failed_over = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    later = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10, outage_seen=True)

    for pause in (failed_over, later):
        assert isinstance(pause, DoomingPaused)
        assert pause.reason == "failover"
        assert pause.pause_s > RULES.failover_hold_s - 60


async def test_dooming_sees_the_same_database_as_every_new_connection(sequencer: Sequencer) -> None:
    await ready_to_doom(sequencer)

    [seen] = await sequencer.database.fetch("SELECT system_identifier, timeline FROM dooming")

    identity = await sequencer.database.read_identity()
    assert (seen.system_identifier, seen.timeline) == (identity.system_identifier, identity.timeline)


async def test_an_expired_reservation_is_doomed_and_its_commit_refused(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    early = await reserved(sequencer, [records_of(topic)], lease_s=100)
    late = await reserved(sequencer, [records_of(topic)], lease_s=50)
    await time_passes(sequencer, 60)

    doomed = await doom(sequencer)
    answers = await sequencer.commits.commit([early, late])

    assert doomed == Doomed(reservations=1, unreferenced=0)
    assert isinstance(answers[0], Committed)
    assert answers[1] == Refused(reason="doomed")


async def test_raced_a_commit_that_waits_for_dooming_is_refused(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)], lease_s=1)

    async with sequencer.database.transaction() as dooming:
        await dooming.execute("UPDATE segments SET state = 'doomed', doomed_at = clock_timestamp()")
        commit = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))

    assert await commit == (Refused(reason="doomed"),)


async def test_raced_dooming_passes_by_a_reservation_that_is_being_committed(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)], lease_s=1)
    await time_passes(sequencer, 60)
    await ready_to_doom(sequencer)

    async with sequencer.database.transaction() as commit:
        await commit.execute("SELECT FROM segments FOR NO KEY UPDATE")
        beside = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
        await commit.execute(
            "UPDATE segments SET state = 'committed', committed_at = clock_timestamp(), outcome = '{0}'"
        )
    after = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)

    assert beside == after == Doomed(reservations=0, unreferenced=0)
    assert await state_of(sequencer, segment.segment_id) == "committed"


async def test_a_segment_without_runs_waits_the_grace_period_and_is_doomed(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    emptied = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([emptied])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await committed(sequencer, [records_of(topic)])

    page = await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S - 10)
    early = await doom(sequencer)
    await time_passes(sequencer, 20)
    late = await doom(sequencer)

    assert (page.marked, page.last_seen) == (1, None)
    assert (early.unreferenced, late.unreferenced) == (0, 1)
    assert await state_of(sequencer, emptied.segment_id) == "doomed"


async def test_the_scan_passes_over_all_segments_in_pages(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    for _ in range(5):
        await committed(sequencer, [records_of(topic)])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)

    marked, after = [], BEFORE_ALL
    while True:
        page = await sequencer.garbage.mark_unreferenced(after, 2)
        marked.append(page.marked)
        if page.last_seen is None:
            break
        after = page.last_seen

    assert marked == [2, 2, 1]


async def test_what_is_held_is_not_garbage_until_the_hold_lapses(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([segment])
    await sequencer.holds.take(uuid4(), [segment.segment_id], lease_s=GRACE_S * 3)
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)

    held = await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S * 3 + 1)
    lapsed = await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)

    assert (held.marked, lapsed.marked) == (0, 1)


async def test_what_is_referred_to_again_within_the_grace_period_lives(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([segment])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    await sequencer.holds.take(uuid4(), [segment.segment_id], lease_s=60)

    doomed = await doom(sequencer)
    row = await segment_row(sequencer, segment.segment_id)

    assert doomed.unreferenced == 0
    assert row is not None
    assert (row.state, row.unreferenced_since) == ("committed", None)


async def test_a_commit_that_accepted_nothing_is_garbage_and_repeats_its_outcome(
    sequencer: Sequencer,
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    batch = ABatch(topic_id=topic.topic_id, partition=Partition(0), records=3, producer_id=ProducerId(7), sequence=0)
    first = await committed(sequencer, [batch])
    duplicate = await reserved(sequencer, [batch])
    answer = accepted((await sequencer.commits.commit([duplicate]))[0])

    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    doomed = await doom(sequencer)
    repeated = accepted((await sequencer.commits.commit([duplicate]))[0])

    assert first.outcomes == (Assigned(base_offset=0),)
    assert doomed == Doomed(reservations=0, unreferenced=1)
    assert repeated == answer


async def test_a_tombstone_goes_after_the_late_write_window_when_nobody_can_ask_for_its_outcome(
    sequencer: Sequencer,
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    never_committed = await reserved(sequencer, [records_of(topic)], lease_s=1)
    emptied = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([emptied])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    await doom(sequencer)
    at_first = await record_deletion(sequencer)
    await time_passes(sequencer, GRACE_S + 1)
    after_grace = await record_deletion(sequencer)

    due = {0: await sequencer.garbage.due_for_forgetting(10)}
    for seconds in (3601, DAY_S):
        await time_passes(sequencer, seconds)
        due[seconds] = await sequencer.garbage.due_for_forgetting(10)
    await sequencer.garbage.forget([each.segment_id for each in due[DAY_S]])

    assert (at_first, after_grace) == ([emptied.segment_id], [never_committed.segment_id])
    assert [each.segment_id for each in due[0]] == []
    assert [each.segment_id for each in due[3601]] == [never_committed.segment_id]
    assert {each.segment_id for each in due[DAY_S]} == {never_committed.segment_id, emptied.segment_id}
    assert await state_of(sequencer, emptied.segment_id) == "gone"
    assert await sequencer.commits.commit([never_committed]) == (Refused(reason="missing"),)


async def test_only_tombstones_that_are_due_are_forgotten(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    live = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([live])
    expired = await reserved(sequencer, [records_of(topic)], lease_s=1)
    await time_passes(sequencer, 10)
    await doom(sequencer)

    for segment in (live, expired):
        await sequencer.garbage.record_deletion([live.segment_id], late_write_window_s=60, outcome_retention_s=0)
        await sequencer.garbage.forget([segment.segment_id])

    assert await state_of(sequencer, live.segment_id) == "committed"
    assert await state_of(sequencer, expired.segment_id) == "doomed"
    assert (await observed(sequencer)).census == Census(reserved=0, unreferenced=0, doomed=1, tombstones=0)


async def test_several_housekeepers_doom_each_segment_once(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    for _ in range(20):
        await reserved(sequencer, [records_of(topic)], lease_s=1)
    await time_passes(sequencer, 10)
    await ready_to_doom(sequencer)

    steps = await asyncio.gather(*(sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=7) for _ in range(4)))

    assert sum(step.reservations for step in steps if isinstance(step, Doomed)) == 20
