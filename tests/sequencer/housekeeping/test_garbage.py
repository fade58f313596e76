"""Garbage on the real Postgres: what may be deleted, when, and that nothing can refer to it later."""

import asyncio
from dataclasses import replace
from uuid import uuid4

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned, Committed, SegmentRefused, SegmentToCommit
from sequencer.housekeeping.garbage import BEFORE_ALL, Doomed, DoomingPaused, PartitionRules
from sequencer.housekeeping.observations import Census
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from storage.identifiers import Offset, Partition, ProducerId, SegmentId
from tests.sequencer.builders import ABatch, accepted, committed, reserved
from tests.sequencer.housekeeping.housekeeping import (
    GRACE_S,
    RULES,
    count,
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
LATE_S = 3600.0
PARTITIONS = PartitionRules(width_s=600, lock_timeout_ms=10_000)


async def bury(sequencer: Sequencer) -> list[SegmentId]:
    due = await sequencer.garbage.due_for_deletion(grace_s=GRACE_S, cap=100)
    ids = [each.segment_id for each in due]
    assert await sequencer.garbage.bury(ids, outcome_retention_s=DAY_S, partitions=PARTITIONS) == len(ids)
    return ids


async def forget_tombstones(sequencer: Sequencer, cap: int = 100) -> list[SegmentId]:
    """All due segments, page by page."""
    forgotten: list[SegmentId] = []
    while page := await sequencer.garbage.due_tombstones(late_write_window_s=LATE_S, cap=cap):
        forgotten += [each.segment_id for each in page.due]
        assert await sequencer.garbage.sweep(page, PARTITIONS)
    return forgotten


async def forget_outcomes(sequencer: Sequencer) -> None:
    while await sequencer.garbage.forget_outcomes(
        outcome_retention_s=DAY_S, outage_after_s=60, partitions=PARTITIONS
    ):
        pass


async def test_nothing_is_doomed_for_one_lease_after_the_first_look(sequencer: Sequencer) -> None:
    first = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    await sequencer.database.run("UPDATE dooming SET paused_until = clock_timestamp()")
    second = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)

    assert isinstance(first, DoomingPaused)
    assert first.reason == "start"
    assert RULES.reservation_lease_s - 60 < first.pause_s <= RULES.reservation_lease_s
    assert second == Doomed(reservations=0, unreferenced=0)


async def test_dooming_pauses_for_one_lease_after_an_outage(sequencer: Sequencer) -> None:
    await ready_to_doom(sequencer)
    await sequencer.database.run("UPDATE dooming SET last_seen_at = last_seen_at - interval '61 seconds'")

    after_a_gap = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    await ready_to_doom(sequencer)
    after_a_failure = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10, outage_seen=True)

    for pause in (after_a_gap, after_a_failure):
        assert isinstance(pause, DoomingPaused)
        assert pause.reason == "outage"
        assert pause.pause_s > RULES.reservation_lease_s - 60


async def test_dooming_pauses_for_the_failover_hold_when_the_timeline_changed(sequencer: Sequencer) -> None:
    await ready_to_doom(sequencer)
    await sequencer.database.run("UPDATE dooming SET timeline = timeline - 1")

    failed_over = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    later = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10, outage_seen=True)

    for pause in (failed_over, later):
        assert isinstance(pause, DoomingPaused)
        assert pause.reason == "failover"
        assert pause.pause_s > RULES.failover_hold_s - 60


async def test_dooming_sees_the_same_database_as_every_new_connection(sequencer: Sequencer) -> None:
    await ready_to_doom(sequencer)

    [seen] = await sequencer.database.run("SELECT system_identifier, timeline FROM dooming")

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
    assert answers[1] == SegmentRefused(reason="doomed")


async def test_raced_a_commit_that_waits_for_dooming_is_refused(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)], lease_s=1)

    async with sequencer.database.transaction() as dooming:
        await dooming.execute("UPDATE segments SET state = 'doomed', doomed_at = clock_timestamp()")
        commit = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))

    assert await commit == (SegmentRefused(reason="doomed"),)


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
    batch = ABatch(
        topic_id=topic.topic_id, partition=Partition(0), records=3, producer_id=ProducerId(7), sequence=0
    )
    first = await committed(sequencer, [batch])
    duplicate = await reserved(sequencer, [batch])
    answer = accepted((await sequencer.commits.commit([duplicate]))[0])

    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    doomed = await doom(sequencer)
    repeated = accepted((await sequencer.commits.commit([duplicate]))[0])

    assert first.outcomes == (Assigned(base_offset=Offset(0)),)
    assert doomed == Doomed(reservations=0, unreferenced=1)
    assert repeated == answer


async def partitions_of(sequencer: Sequencer, table: str) -> set[str]:
    rows = await sequencer.database.run(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = %(table)s::regclass",
        table=table,
    )
    return {row.name for row in rows}


async def a_grave(sequencer: Sequencer, segments: int = 1) -> list[SegmentToCommit]:
    """Segments that were committed, emptied, doomed and deleted: tombstones, whose outcomes are kept."""
    topic = await sequencer.topics.create("orders", 1, {})
    emptied = [await reserved(sequencer, [records_of(topic)]) for _ in range(segments)]
    await sequencer.commits.commit(emptied)
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    await doom(sequencer)
    assert set(await bury(sequencer)) == {each.segment_id for each in emptied}
    return emptied


async def test_tombstones_go_after_the_late_write_window_and_outcomes_when_nobody_can_ask(
    sequencer: Sequencer,
) -> None:
    [segment] = await a_grave(sequencer)
    forgotten: list[list[SegmentId]] = []
    answers: list[Committed | SegmentRefused] = []

    for seconds in (0, LATE_S, PARTITIONS.width_s, DAY_S):
        await time_passes(sequencer, seconds)
        await ready_to_doom(sequencer)
        forgotten.append(await forget_tombstones(sequencer))
        await forget_outcomes(sequencer)
        answers += await sequencer.commits.commit([segment])

    assert forgotten == [[], [], [segment.segment_id], []]
    assert [accepted(answer).outcomes for answer in answers[:3]] == [(Assigned(base_offset=Offset(0)),)] * 3
    assert answers[3] == SegmentRefused(reason="missing")
    assert await count(sequencer, "tombstones") == await count(sequencer, "outcomes") == 0


async def test_a_segment_that_never_was_committed_leaves_a_tombstone_alone(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)], lease_s=1)
    await time_passes(sequencer, 10)
    await doom(sequencer)
    await time_passes(sequencer, GRACE_S + 1)
    await bury(sequencer)

    assert (await observed(sequencer)).census == Census(reserved=0, unreferenced=0, doomed=0, tombstones=1)
    assert await count(sequencer, "outcomes") == 0
    assert await sequencer.commits.commit([segment]) == (SegmentRefused(reason="missing"),)


async def test_a_live_segment_is_not_buried(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    live = await reserved(sequencer, [records_of(topic)])
    await sequencer.commits.commit([live])

    buried = await sequencer.garbage.bury([live.segment_id], outcome_retention_s=DAY_S, partitions=PARTITIONS)

    assert buried == 0
    assert await state_of(sequencer, live.segment_id) == "committed"


async def test_tombstones_go_in_pages_and_then_with_their_partition_as_a_whole(sequencer: Sequencer) -> None:
    segments = await a_grave(sequencer, 5)
    before = await partitions_of(sequencer, "tombstones")
    await time_passes(sequencer, LATE_S + PARTITIONS.width_s)

    pages = []
    while page := await sequencer.garbage.due_tombstones(late_write_window_s=LATE_S, cap=2):
        pages.append(len(page.due))
        await sequencer.garbage.sweep(page, PARTITIONS)

    assert [due for due in pages if due] == [2, 2, 1]  # partitions made before may be empty
    assert len(segments) == 5
    assert len(before - await partitions_of(sequencer, "tombstones")) >= 2
    assert await count(sequencer, "tombstones") == 0


async def test_a_day_without_a_housekeeper_leaves_no_gap_for_tombstones(sequencer: Sequencer) -> None:
    first = await a_grave(sequencer)
    await time_passes(sequencer, DAY_S)
    await sequencer.topics.delete("orders")
    later = await a_grave(sequencer)

    rows = await sequencer.database.run("SELECT segment_id FROM tombstones ORDER BY segment_id")

    assert [row.segment_id for row in rows] == sorted(each.segment_id for each in (*first, *later))


async def test_without_a_partition_nothing_is_buried_and_nothing_is_lost(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)], lease_s=1)
    await time_passes(sequencer, 10)
    await doom(sequencer)
    await time_passes(sequencer, DAY_S)

    rows = await sequencer.database.run(
        "SELECT bury_segments(%(ids)s::uuid[], 0) AS buried", ids=[segment.segment_id]
    )

    assert rows[0].buried == 0
    assert await state_of(sequencer, segment.segment_id) == "doomed"


async def test_after_the_clock_was_set_back_tombstones_go_in_their_time(sequencer: Sequencer) -> None:
    """While it was ahead, partitions were made for a time to come."""
    await sequencer.database.run(
        "UPDATE time_partitions SET begins_at = begins_at + interval '1 day', ends_at = ends_at + "
        "interval '1 day'"
    )

    segments = await a_grave(sequencer, 3)
    await time_passes(sequencer, LATE_S + PARTITIONS.width_s)

    assert set(await forget_tombstones(sequencer)) == {each.segment_id for each in segments}


async def test_a_grave_in_use_is_swept_once_and_goes_later(sequencer: Sequencer) -> None:
    segments = await a_grave(sequencer, 3)
    await time_passes(sequencer, LATE_S)
    # The first partition was made with the database, and is empty.
    assert await forget_tombstones(sequencer) == []
    await time_passes(sequencer, PARTITIONS.width_s)
    impatient = replace(PARTITIONS, lock_timeout_ms=10)
    swept, is_swept = [], []

    async with sequencer.database.transaction() as reader:
        await reader.execute("SELECT FROM tombstones")
        for _ in range(3):
            page = await sequencer.garbage.due_tombstones(late_write_window_s=LATE_S, cap=100)
            assert page is not None
            swept += [each.segment_id for each in page.due]
            is_swept.append(await sequencer.garbage.sweep(page, impatient))
    swept += await forget_tombstones(sequencer)

    assert is_swept == [False] * 3
    assert sorted(swept) == sorted(each.segment_id for each in segments)
    assert await count(sequencer, "tombstones") == 0


async def test_a_partition_in_use_is_not_dropped_and_keeps_nobody_waiting(sequencer: Sequencer) -> None:
    [segment] = await a_grave(sequencer)
    await time_passes(sequencer, DAY_S)
    await ready_to_doom(sequencer)

    async with sequencer.database.transaction() as reader:
        await reader.execute("SELECT FROM outcomes")
        dropped = await sequencer.garbage.forget_outcomes(
            outcome_retention_s=60, outage_after_s=60, partitions=replace(PARTITIONS, lock_timeout_ms=10)
        )
        [meanwhile] = await sequencer.commits.commit([segment])
    await forget_outcomes(sequencer)
    await sequencer.garbage.forget_outcomes(outcome_retention_s=60, outage_after_s=60, partitions=PARTITIONS)
    [afterwards] = await sequencer.commits.commit([segment])

    assert not dropped
    assert isinstance(meanwhile, Committed)
    assert afterwards == SegmentRefused(reason="missing")


async def test_outcomes_stay_while_dooming_pauses_after_an_outage(sequencer: Sequencer) -> None:
    [segment] = await a_grave(sequencer)
    await time_passes(sequencer, DAY_S * 2)  # nobody kept house: the database was away

    await forget_outcomes(sequencer)
    await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=1)
    await forget_outcomes(sequencer)
    [answer] = await sequencer.commits.commit([segment])

    assert isinstance(answer, Committed)


async def test_an_old_outcome_is_kept_if_its_segment_is_buried_after_an_outage(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    first = await sequencer.commits.commit([segment])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    await doom(sequencer)
    await time_passes(sequencer, DAY_S * 2)  # the database was away
    paused = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=1)

    await bury(sequencer)

    assert isinstance(paused, DoomingPaused)
    assert await sequencer.commits.commit([segment]) == first


async def test_raced_a_repeat_that_comes_as_its_outcome_expires_is_committed_at_most_once(
    sequencer: Sequencer,
) -> None:
    [segment] = await a_grave(sequencer)
    [before] = await sequencer.commits.commit([segment])
    await time_passes(sequencer, DAY_S * 2)
    await ready_to_doom(sequencer)

    async with sequencer.database.transaction() as dropping:
        await dropping.execute("UPDATE time_partitions SET is_closed = true WHERE of_table = 'outcomes'")
        await dropping.execute(
            "SELECT drop_time_partition(of_table, number, 1000) FROM time_partitions WHERE of_table = "
            "'outcomes'"
        )
        repeat = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))
    [during] = await repeat
    [after] = await sequencer.commits.commit([segment])

    assert isinstance(before, Committed)
    assert (during, after) == (SegmentRefused(reason="missing"), SegmentRefused(reason="missing"))
    assert await count(sequencer, "runs") == 0
    [bounds] = (await sequencer.coordinates.bounds([(segment.batches[0].topic_id, Partition(0))])).values()
    assert bounds.high_watermark == 1


async def test_raced_a_repeat_that_waits_while_its_segment_is_buried_gets_the_first_outcome(
    sequencer: Sequencer,
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [records_of(topic)])
    [first] = await sequencer.commits.commit([segment])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.garbage.mark_unreferenced(BEFORE_ALL, 100)
    await time_passes(sequencer, GRACE_S + 1)
    await doom(sequencer)

    await sequencer.garbage.bury([], outcome_retention_s=DAY_S, partitions=PARTITIONS)  # makes partitions
    async with sequencer.database.transaction() as burying:
        await burying.execute("SELECT bury_segments(%s::uuid[], 86400)", ([segment.segment_id],))
        repeat = await waits_for_a_lock(sequencer, lambda: sequencer.commits.commit([segment]))

    assert await repeat == (first,)
    assert await count(sequencer, "segments") == 0


async def test_a_segments_row_overrules_its_tombstone(sequencer: Sequencer) -> None:
    [segment] = await a_grave(sequencer)
    await sequencer.database.run(
        "INSERT INTO segments (segment_id, object_key, writer, lease_until, state)"
        " VALUES (%(id)s, 'key', 'recovery', clock_timestamp(), 'committed')",
        id=segment.segment_id,
    )
    await time_passes(sequencer, DAY_S)

    assert await forget_tombstones(sequencer) == []
    assert await count(sequencer, "tombstones") == 0
    assert await state_of(sequencer, segment.segment_id) == "committed"


async def test_several_housekeepers_doom_each_segment_once(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    for _ in range(20):
        await reserved(sequencer, [records_of(topic)], lease_s=1)
    await time_passes(sequencer, 10)
    await ready_to_doom(sequencer)

    steps = await asyncio.gather(*(sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=7) for _ in range(4)))

    assert sum(step.reservations for step in steps if isinstance(step, Doomed)) == 20
