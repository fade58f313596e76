"""Merging on the real Postgres: candidates, claims, swaps, and what races them."""

import asyncio
from collections.abc import Collection, Sequence
from itertools import pairwise
from uuid import uuid4

import pytest

from sequencer.client import Sequencer
from sequencer.history.history_values import Advance, Begun, NothingToDo, Publication, Published
from sequencer.housekeeping.garbage import Doomed
from sequencer.housekeeping.merge_values import (
    Candidate,
    MergeClaim,
    MergeDone,
    MergeOutput,
    PlacedSwap,
    SwapsDone,
    SwapsRefused,
)
from sequencer.housekeeping.merges import BEFORE_ALL, BEGINNING, SQL, publish_parameters
from sequencer.housekeeping.retention import TO_HIGH_WATERMARK
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition, SegmentId
from tests.sequencer.builders import reserved
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
from tests.sequencer.housekeeping.merges import (
    LEASE_S,
    LONG,
    a_log,
    an_output,
    claimed,
    discovered,
    everything,
    merge_all,
    planned,
    runs_of,
)
from tests.sequencer.races import commit_within

ALL = SwapsDone(places=frozenset({0, 1, 2}))


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await sequencer.topics.create("orders", 3, {})


async def all_runs(sequencer: Sequencer, topic: Topic) -> list[list[tuple[int, int]]]:
    return [await runs_of(sequencer, topic, partition) for partition in range(topic.partition_count)]


async def prepared(
    sequencer: Sequencer, topic: Topic, segments: int = 4
) -> tuple[MergeClaim, list[PlacedSwap], MergeOutput]:
    """A claim on all of a small log, its swaps, and an output for them."""
    await a_log(sequencer, topic, segments)
    await discovered(sequencer)
    claim = await claimed(sequencer)
    return claim, await planned(sequencer, claim), await an_output(sequencer, claim)


async def test_many_runs_become_one_per_partition_and_the_log_stays_what_it_was(
    sequencer: Sequencer, topic: Topic
) -> None:
    await a_log(sequencer, topic, segments=4)
    before = await sequencer.database.run("SELECT * FROM partitions ORDER BY partition")
    newest = await sequencer.database.run("SELECT max(committed_at) AS at FROM segments")

    _, output, answer = await merge_all(sequencer)

    assert answer == ALL
    assert await all_runs(sequencer, topic) == [[(0, 7)]] * 3
    assert await sequencer.database.run("SELECT * FROM partitions ORDER BY partition") == before
    row = await segment_row(sequencer, output.segment_id)
    assert row is not None
    assert (row.state, row.tier, row.size_bytes, row.committed_at) == ("committed", 1, 10_000, newest[0].at)
    [run] = await sequencer.database.run("SELECT * FROM runs WHERE partition = 0")
    assert (run.min_timestamp_ms, run.max_timestamp_ms, run.running_max_timestamp_ms) == (1_000, 1_003, 1_003)
    assert (run.segment_id, run.length) == (output.segment_id, 400)


async def test_a_publish_repeated_after_an_unknown_outcome_gives_the_same_answer(
    sequencer: Sequencer, topic: Topic
) -> None:
    claim, swaps, output = await prepared(sequencer, topic)

    answers = [await sequencer.merges.publish(claim, output, swaps) for _ in range(2)]

    assert answers == [ALL, ALL]
    assert await all_runs(sequencer, topic) == [[(0, 7)]] * 3


async def test_a_commit_that_is_repeated_after_its_runs_were_merged_returns_its_first_outcome(
    sequencer: Sequencer, topic: Topic
) -> None:
    segment = await reserved(sequencer, [records_of(topic, 3)])
    first = await sequencer.commits.commit([segment])
    await a_log(sequencer, topic, 2)
    await merge_all(sequencer)

    assert await sequencer.commits.commit([segment]) == first
    assert await runs_of(sequencer, topic) == [(0, 6)]


async def test_a_partition_that_lost_records_keeps_its_runs_and_the_others_are_merged(
    sequencer: Sequencer, topic: Topic
) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.retention.delete_records(topic.topic_id, Partition(1), Offset(3))

    answer = await sequencer.merges.publish(claim, output, swaps)

    assert answer == SwapsDone(places=frozenset({0, 2}))
    assert await all_runs(sequencer, topic) == [[(0, 7)], [(2, 3), (4, 5), (6, 7)], [(0, 7)]]


async def test_a_log_start_that_moved_into_a_run_does_not_hinder(sequencer: Sequencer, topic: Topic) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(1))

    assert await sequencer.merges.publish(claim, output, swaps) == ALL
    found = await sequencer.retention.delete_records(topic.topic_id, Partition(0), Offset(8))
    assert found.dropped_runs == 1  # type: ignore[union-attr]
    rows = await sequencer.database.run("SELECT size_bytes FROM partitions ORDER BY partition")
    assert [row.size_bytes for row in rows] == [0, 400, 400]


async def test_raced_a_deletion_that_a_publish_waits_for_is_seen(sequencer: Sequencer, topic: Topic) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    key = {"topic_id": topic.topic_id, "partition": 1}
    this = "WHERE topic_id = %(topic_id)s AND partition = %(partition)s"

    async with sequencer.database.transaction() as held:
        await held.execute(f"SELECT 1 FROM partitions {this} FOR NO KEY UPDATE", key)
        publishing = await waits_for_a_lock(sequencer, lambda: sequencer.merges.publish(claim, output, swaps))
        await held.execute(f"UPDATE partitions SET log_start_offset = 2 {this}", key)
        await held.execute(f"DELETE FROM runs {this} AND base_offset < 2", key)

    assert await publishing == SwapsDone(places=frozenset({0, 2}))
    assert await runs_of(sequencer, topic, 1) == [(2, 3), (4, 5), (6, 7)]


async def test_raced_a_commit_that_a_publish_waits_for_stays_behind_the_merged_run(
    sequencer: Sequencer, topic: Topic
) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    more = await reserved(sequencer, [records_of(topic, 5)])

    async with sequencer.database.transaction() as held:
        await commit_within(held, [more])
        publishing = await waits_for_a_lock(sequencer, lambda: sequencer.merges.publish(claim, output, swaps))

    assert await publishing == ALL
    assert await runs_of(sequencer, topic) == [(0, 7), (8, 12)]


async def test_raced_two_merges_of_the_same_runs_one_of_them_is_refused(
    sequencer: Sequencer, topic: Topic
) -> None:
    """As if a merge continued after its claim lapsed. Its output is still held here, so only the runs show
    this.
    """
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.database.run("UPDATE merge_candidates SET claimed_by = NULL")
    other = await claimed(sequencer)
    others_output = await an_output(sequencer, other)

    answers = await asyncio.gather(
        sequencer.merges.publish(claim, output, swaps), sequencer.merges.publish(other, others_output, swaps)
    )

    done = [answer.places for answer in answers if isinstance(answer, SwapsDone)]
    assert len(done) == 2
    assert not done[0] & done[1]
    assert done[0] | done[1] == {0, 1, 2}
    assert await all_runs(sequencer, topic) == [[(0, 7)]] * 3


async def test_a_deleted_topic_is_not_published(sequencer: Sequencer, topic: Topic) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.topics.delete("orders")

    answer = await sequencer.merges.publish(claim, output, swaps)

    assert answer == SwapsDone(places=frozenset())
    swept = await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=100)
    assert (swept.runs, swept.partitions) == (12, 3)
    assert await state_of(sequencer, output.segment_id) == "reserved"


async def test_raced_a_publish_of_a_lapsed_job_is_refused(sequencer: Sequencer, topic: Topic) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    assert await sequencer.merges.publish(claim, output, swaps[:1]) == SwapsDone(places=frozenset({0}))

    await time_passes(sequencer, LEASE_S + 1)

    assert await sequencer.merges.publish(claim, output, swaps[1:]) == SwapsRefused(reason="lapsed")
    assert not await sequencer.holds.renew(claim.job_id, lease_s=LEASE_S)
    assert await all_runs(sequencer, topic) == [[(0, 7)], *[[(0, 1), (2, 3), (4, 5), (6, 7)]] * 2]


async def test_raced_an_output_published_emptied_and_doomed_is_not_published_again(
    sequencer: Sequencer, topic: Topic
) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.merges.publish(claim, output, swaps[:1])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await time_passes(sequencer, LEASE_S + 1)
    await sequencer.garbage.mark_unreferenced(SegmentId(BEFORE_ALL[0]), 100)
    await time_passes(sequencer, GRACE_S + 1)
    await doom(sequencer)
    await sequencer.holds.take(claim.job_id, [output.segment_id], lease_s=LEASE_S)

    assert await state_of(sequencer, output.segment_id) == "doomed"
    assert await sequencer.merges.publish(claim, output, swaps[1:]) == SwapsRefused(reason="doomed")


async def test_raced_a_publish_that_dooming_meets_keeps_its_object(
    sequencer: Sequencer, topic: Topic
) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.merges.publish(claim, output, swaps[:1])
    await sequencer.retention.delete_records(topic.topic_id, Partition(0), TO_HIGH_WATERMARK)
    await sequencer.database.run("UPDATE segments SET unreferenced_since = clock_timestamp()")
    await time_passes(sequencer, GRACE_S + 1)
    await sequencer.database.run("UPDATE holds SET lease_until = clock_timestamp() + interval '1 minute'")
    await ready_to_doom(sequencer)

    async with sequencer.database.transaction() as publishing:
        await publishing.execute(SQL["publish"], publish_parameters(claim, output, swaps[1:]))
        beside = await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)
    await sequencer.holds.release(claim.job_id)
    await sequencer.garbage.doom(RULES, grace_s=GRACE_S, cap=10)

    assert isinstance(beside, Doomed)
    assert await state_of(sequencer, output.segment_id) == "committed"
    assert await runs_of(sequencer, topic, 2) == [(0, 7)]


async def test_raced_a_publish_that_waits_for_dooming_is_refused(sequencer: Sequencer, topic: Topic) -> None:
    claim, swaps, output = await prepared(sequencer, topic)

    async with sequencer.database.transaction() as dooming:
        await dooming.execute(
            "UPDATE segments SET state = 'doomed' WHERE segment_id = %s", (output.segment_id,)
        )
        late = await waits_for_a_lock(sequencer, lambda: sequencer.merges.publish(claim, output, swaps))

    assert await late == SwapsRefused(reason="doomed")
    assert await count(sequencer, "runs") == 12


async def test_an_output_that_nobody_reserved_is_refused(sequencer: Sequencer, topic: Topic) -> None:
    claim, swaps, output = await prepared(sequencer, topic)
    await sequencer.database.run("DELETE FROM segments WHERE segment_id = %(id)s", id=output.segment_id)

    assert await sequencer.merges.publish(claim, output, swaps) == SwapsRefused(reason="missing")


async def test_inputs_and_output_are_held_and_inputs_become_garbage_after_the_end(
    sequencer: Sequencer, topic: Topic
) -> None:
    await a_log(sequencer, topic, 4)
    claim, output, _ = await merge_all(sequencer)

    held = await sequencer.garbage.mark_unreferenced(SegmentId(BEFORE_ALL[0]), 100)
    await sequencer.merges.end(
        claim, [output.segment_id], MergeDone(runs_in=12, runs_out=3), is_complete=True
    )
    free = await sequencer.garbage.mark_unreferenced(SegmentId(BEFORE_ALL[0]), 100)

    assert (held.marked, free.marked) == (0, len(claim.inputs))
    assert await count(sequencer, "holds") == 0


async def test_history_of_runs_that_were_merged_meanwhile_is_published_and_its_inputs_are_held(
    sequencer: Sequencer, topic: Topic
) -> None:
    await a_log(sequencer, topic, 4)
    ends = await sequencer.history.ends(topic.topic_id)
    begun = await sequencer.history.begin_compaction(
        topic.topic_id, ends, cluster="c", lease_s=LEASE_S, runs_per_partition=100
    )
    assert isinstance(begun, Begun)
    claim, output, merged = await merge_all(sequencer)
    await sequencer.merges.end(claim, [output.segment_id], MergeDone(), is_complete=True)

    held = await sequencer.garbage.mark_unreferenced(SegmentId(BEFORE_ALL[0]), 100)
    advances = tuple(
        Advance(partition=Partition(partition), from_offset=Offset(0), to_offset=Offset(8))
        for partition in range(3)
    )
    published = await sequencer.history.publish(begun.job, Publication(version=None, advances=advances))
    free = await sequencer.garbage.mark_unreferenced(SegmentId(BEFORE_ALL[0]), 100)

    assert merged == ALL
    assert published == Published()
    assert (held.marked, free.marked) == (0, 4)
    again = await sequencer.history.begin_compaction(
        topic.topic_id, ends, cluster="c", lease_s=LEASE_S, runs_per_partition=100
    )
    assert again == NothingToDo()


@pytest.fixture
async def candidates(sequencer: Sequencer, topic: Topic) -> None:
    """Four of them."""
    await a_log(sequencer, topic, 4)
    await discovered(sequencer)


async def claim_of(sequencer: Sequencer, first: int, last: int, tier: int = 0) -> MergeClaim | None:
    def choose(candidates: Sequence[Candidate]) -> Collection[SegmentId]:
        return list(everything(candidates))[first:last]

    return await sequencer.merges.claim(tier, choose, cap=100, lease_s=LEASE_S, long_run_bytes=LONG)


@pytest.mark.usefixtures("candidates")
async def test_two_claims_have_nothing_in_common_and_a_lapsed_one_is_claimed_again(
    sequencer: Sequencer,
) -> None:
    ann, bob = await claim_of(sequencer, 0, 2), await claim_of(sequencer, 0, 9)
    nothing = await claim_of(sequencer, 0, 9)
    not_yet = await sequencer.merges.free_lapsed(100)
    await time_passes(sequencer, LEASE_S + 1)
    freed = await sequencer.merges.free_lapsed(100)
    again = await claim_of(sequencer, 0, 9)

    assert (not_yet, freed) == (0, 4)
    assert ann is not None
    assert bob is not None
    assert again is not None
    assert nothing is None
    assert (len(ann.inputs), len(bob.inputs), len(again.inputs)) == (2, 2, 4)
    assert not set(ann.inputs) & set(bob.inputs)


@pytest.mark.usefixtures("candidates")
async def test_raced_a_claim_that_was_made_during_the_wait_is_not_made_again(sequencer: Sequencer) -> None:
    """After the wait the row shows its new claimant. The judgement does not need its hold."""
    async with sequencer.database.transaction() as ann, sequencer.database.transaction() as bob:
        waiting = SQL["lock_candidates"].replace("SKIP LOCKED", "")
        rows = await (await ann.execute(SQL["lock_candidates"], {"tier": 0, "cap": 10})).fetchall()
        ids = [row.segment_id for row in rows]
        job = uuid4()

        async def lock_as_bob() -> list[SegmentId]:
            found = await (await bob.execute(waiting, {"tier": 0, "cap": 10})).fetchall()
            return [row.segment_id for row in found]

        locking = await waits_for_a_lock(sequencer, lock_as_bob)
        await ann.execute(
            "INSERT INTO holds SELECT unnest(%s::uuid[]), %s, clock_timestamp() + interval '1 minute'",
            (ids, job),
        )
        await ann.execute(SQL["claim_candidates"], {"segment_ids": ids, "job_id": job})
        await ann.execute("COMMIT")
        locked = await locking
        await ann.execute("BEGIN")  # for the end of the block

    assert len(ids) == 4
    assert locked == []


@pytest.mark.usefixtures("candidates")
async def test_a_dead_jobs_outputs_and_inputs_are_claimed_by_the_next(sequencer: Sequencer) -> None:
    ann = await claim_of(sequencer, 0, 9)
    assert ann is not None
    swaps, output = await planned(sequencer, ann), await an_output(sequencer, ann)
    await sequencer.merges.publish(ann, output, swaps[:2])
    busy = await claim_of(sequencer, 0, 9, tier=1)

    await time_passes(sequencer, LEASE_S + 1)
    assert await sequencer.merges.free_lapsed(100) == 5
    inputs, outputs = await claim_of(sequencer, 0, 9), await claim_of(sequencer, 0, 9, tier=1)

    assert busy is None
    assert inputs is not None
    assert outputs is not None
    assert list(outputs.inputs) == [output.segment_id]
    assert [run.partition for run in await sequencer.merges.runs(inputs, BEFORE_ALL, 100)] == [2] * 4


@pytest.mark.usefixtures("candidates")
async def test_an_unfinished_claim_leaves_what_is_left_and_forgets_what_is_empty(
    sequencer: Sequencer,
) -> None:
    claim = await claim_of(sequencer, 0, 9)
    assert claim is not None
    swaps, output = await planned(sequencer, claim), await an_output(sequencer, claim)
    await sequencer.merges.publish(claim, output, swaps)

    await sequencer.merges.end(claim, [output.segment_id], MergeDone(), is_complete=False)

    assert await claim_of(sequencer, 0, 9) is None
    above = await claim_of(sequencer, 0, 9, tier=1)
    assert above is not None
    assert list(above.inputs) == [output.segment_id]
    assert await count(sequencer, "merge_candidates") == 1


@pytest.mark.usefixtures("candidates")
async def test_raced_what_is_claimed_again_is_not_taken_from_its_new_job(sequencer: Sequencer) -> None:
    """A lapsed claim is given back while another transaction has its candidates locked: these are passed
    by.
    """
    await claim_of(sequencer, 0, 9)
    await time_passes(sequencer, LEASE_S + 1)

    async with sequencer.database.transaction() as held:
        await held.execute("SELECT FROM merge_candidates FOR UPDATE")
        assert await sequencer.merges.free_lapsed(100) == 0
    assert await sequencer.merges.free_lapsed(3) == 3
    ann = await claim_of(sequencer, 0, 9)

    assert ann is not None
    assert await sequencer.merges.free_lapsed(100) == 1
    assert await sequencer.merges.free_lapsed(100) == 0


@pytest.mark.usefixtures("candidates")
async def test_a_claim_forgets_segments_whose_runs_are_gone(sequencer: Sequencer, topic: Topic) -> None:
    for partition in range(3):
        await sequencer.retention.delete_records(topic.topic_id, Partition(partition), Offset(4))

    claim = await claim_of(sequencer, 0, 9)

    assert claim is not None
    assert len(claim.inputs) == 2
    assert await count(sequencer, "merge_candidates") == 2


async def test_discovery_goes_through_all_segments_once_and_passes_long_runs(
    sequencer: Sequencer, topic: Topic
) -> None:
    await a_log(sequencer, topic, 5)
    pages = []
    after, more = BEGINNING, True
    while more:
        page = await sequencer.merges.discover(after, settle_s=0, long_run_bytes=LONG, cap=2)
        pages.append(page.added)
        after, more = page.reached, page.more
    none = await sequencer.merges.discover(BEGINNING, settle_s=0, long_run_bytes=10, cap=100)

    assert pages == [2, 2, 1]
    assert (none.added, await count(sequencer, "merge_candidates")) == (0, 5)
    [backlog] = (await observed(sequencer)).backlog.tiers
    assert (backlog.tier, backlog.segments, backlog.units, backlog.size_bytes) == (
        0,
        5,
        5,
        5 * (3 * 100 + 128),
    )


async def test_raced_discovery_does_not_pass_a_segment_whose_commit_is_not_over(
    sequencer: Sequencer, topic: Topic
) -> None:
    late = await reserved(sequencer, [records_of(topic)])

    async with sequencer.database.transaction() as held:
        await commit_within(held, [late])
        await a_log(sequencer, await sequencer.topics.create("others", 1, {}), 2)
        early = await sequencer.merges.discover(BEGINNING, settle_s=0, long_run_bytes=LONG, cap=100)
    later = await sequencer.merges.discover(early.reached, settle_s=0, long_run_bytes=LONG, cap=100)

    assert (early.added, later.added) == (0, 3)


async def test_what_is_younger_than_settling_takes_is_not_discovered(
    sequencer: Sequencer, topic: Topic
) -> None:
    await a_log(sequencer, topic, 2)

    young = await sequencer.merges.discover(BEGINNING, settle_s=60, long_run_bytes=LONG, cap=100)
    await time_passes(sequencer, 61)
    old = await sequencer.merges.discover(BEGINNING, settle_s=60, long_run_bytes=LONG, cap=100)

    assert (young.added, old.added) == (0, 2)


async def test_time_lookups_find_the_same_offsets_in_merged_runs(sequencer: Sequencer, topic: Topic) -> None:
    await a_log(sequencer, topic, 4)
    await merge_all(sequencer)
    await a_log(sequencer, topic, 1)

    found = [
        await sequencer.coordinates.candidate_run_for_timestamp(topic.topic_id, Partition(0), timestamp)
        for timestamp in (0, 1_003, 1_004)
    ]

    assert [run and run.base_offset for run in found] == [0, 0, None]
    maxima = await sequencer.database.run(
        "SELECT running_max_timestamp_ms AS at FROM runs WHERE partition = 0 ORDER BY base_offset"
    )
    assert all(a.at <= b.at for a, b in pairwise(maxima))
