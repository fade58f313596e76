"""One transaction of a group is held open while another races it: claims, writes, offset commits, deletions.

Where lock and work in one statement would fail, a test shows it: after a wait the group's row is read again,
but its members and offsets as before it. What housekeeping races is in `test_group_retention.py`.
"""

import asyncio
import random
from collections.abc import Sequence
from functools import partial

import pytest

from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import CommitVerdict, OffsetCommit, OffsetQuery
from sequencer.groups.groups import DeleteOutcome
from sequencer.topics.topics import Topic
from storage.identifiers import NodeId, Partition
from tests.sequencer.groups.group_races import (
    FENCINGS,
    IN_ONE_STATEMENT,
    UNLOCKED,
    Connection,
    Fencing,
    claim_within,
    commit_within,
    create_commit_in_one_statement,
    create_commit_without_lock,
    delete_within,
    write_within,
)
from tests.sequencer.groups.groups import (
    ANN,
    BOB,
    a_change,
    a_commit,
    a_member,
    a_topic,
    claimed,
    offsets_of,
    with_members,
)
from tests.sequencer.housekeeping.housekeeping import count, waits_for_a_lock

DONE = CommitVerdict.DONE
each_fencing = pytest.mark.parametrize(
    "fencing", FENCINGS, ids=lambda fencing: fencing.name.replace(" ", "-")
)
in_the_members = pytest.mark.parametrize(
    "fencing",
    [fencing for fencing in FENCINGS if not fencing.is_in_the_groups_row],
    ids=lambda fencing: fencing.name.replace(" ", "-"),
)


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await a_topic(sequencer)


async def a_group(sequencer: Sequencer, topic: Topic) -> int:
    """The group `g` of ann, in generation 1, at offset 1; returns its coordinator epoch."""
    epoch = await with_members(sequencer, "g", generation=1, ann=1)
    assert await sequencer.committed_offsets.commit([of_ann(topic, epoch, 1)]) == [DONE]
    return epoch


def of_ann(topic: Topic, epoch: int, offset: int) -> OffsetCommit:
    return a_commit(topic, "g", epoch, offset, generation=1, member_id="ann", member_epoch=1)


async def commit_with(sequencer: Sequencer, function: str, commit: OffsetCommit) -> CommitVerdict:
    async with sequencer.database.transaction() as connection:
        [verdict] = await commit_within(connection, [commit], function)
    return verdict


async def next_owner_commits(connection: Connection, offset: int) -> None:
    """The partition's owner after the fencing, in the same open transaction."""
    await connection.execute(
        "UPDATE committed_offsets SET committed_offset = %s WHERE group_id = 'g'", (offset,)
    )


# --- claims


async def test_of_two_agents_that_claim_at_once_the_later_has_the_group(sequencer: Sequencer) -> None:
    async with sequencer.database.transaction() as held:
        anns = await claim_within(held, "g", ANN)
        claiming = await waits_for_a_lock(sequencer, lambda: sequencer.groups.claim("g", BOB, create=True))
    bobs = await claiming

    assert bobs is not None
    assert await sequencer.groups.still_held({"g": anns}) == {}
    assert await sequencer.groups.still_held({"g": bobs.coordinator_epoch}) == {"g": {}}


async def test_of_many_that_claim_one_group_one_has_it(sequencer: Sequencer) -> None:
    claims = await asyncio.gather(*(claimed(sequencer, "g", agent) for agent in [ANN, BOB] * 8))

    epochs = {claim.coordinator_epoch for claim in claims}
    assert len(epochs) == len(claims)
    held = [epoch for epoch in epochs if await sequencer.groups.still_held({"g": epoch})]
    assert len(held) == 1
    assert await count(sequencer, "groups") == 1


async def test_a_claim_sees_the_whole_of_a_write_that_it_waited_for(sequencer: Sequencer) -> None:
    epoch = await with_members(sequencer, "g", ann=1)
    async with sequencer.database.transaction() as held:
        assert await write_within(held, "g", epoch, generation=2, members={"ann": None, "bob": a_member(2)})
        claiming = await waits_for_a_lock(sequencer, partial(claimed, sequencer, "g", BOB))

    stored = (await claiming).stored
    assert stored is not None
    assert (stored.generation, stored.members) == (2, {"bob": a_member(2)})


async def test_in_one_statement_a_claim_would_see_half_of_a_write(sequencer: Sequencer) -> None:
    epoch = await with_members(sequencer, "g", ann=1)
    claim = (
        "WITH claimed AS (UPDATE groups SET coordinator_epoch = nextval('coordinator_epochs') WHERE "
        "group_id = 'g'"
        " RETURNING generation) SELECT generation, ARRAY(SELECT member_id FROM group_members) AS members "
        "FROM claimed"
    )
    async with sequencer.database.transaction() as held:
        assert await write_within(held, "g", epoch, generation=2, members={"ann": None, "bob": a_member(2)})
        claiming = await waits_for_a_lock(sequencer, lambda: sequencer.database.run(claim))

    [found] = await claiming
    assert (found.generation, found.members) == (2, ["ann"])


# --- writes


async def test_a_write_that_waited_for_a_claim_writes_nothing(sequencer: Sequencer) -> None:
    epoch = await with_members(sequencer, "g", ann=1)
    change = a_change(generation=2, members={"ann": None, "bob": a_member(2)})
    async with sequencer.database.transaction() as held:
        await claim_within(held, "g", BOB)
        writing = await waits_for_a_lock(sequencer, lambda: sequencer.groups.write("g", epoch, change))

    assert await writing is False
    stored = (await claimed(sequencer, "g")).stored
    assert stored is not None
    assert (stored.generation, stored.members) == (1, {"ann": a_member(1)})


async def test_a_write_removes_a_member_that_the_one_it_waited_for_added(sequencer: Sequencer) -> None:
    """Of one coordinator, whose connection was lost during the first."""
    epoch = await with_members(sequencer, "g", ann=1)
    change = a_change(generation=3, members={"bob": None})
    async with sequencer.database.transaction() as held:
        assert await write_within(held, "g", epoch, generation=2, members={"bob": a_member(2)})
        writing = await waits_for_a_lock(sequencer, lambda: sequencer.groups.write("g", epoch, change))

    assert await writing is True
    stored = (await claimed(sequencer, "g")).stored
    assert stored is not None
    assert stored.members == {"ann": a_member(1)}


# --- offset commits


@each_fencing
async def test_a_commit_that_waited_for_its_fencing_is_refused(
    sequencer: Sequencer, topic: Topic, fencing: Fencing
) -> None:
    epoch = await a_group(sequencer, topic)
    async with sequencer.database.transaction() as held:
        await fencing.by(held, epoch)
        await next_owner_commits(held, 20)
        commit = partial(sequencer.committed_offsets.commit, [of_ann(topic, epoch, 10)])
        waiting = await waits_for_a_lock(sequencer, commit)

    assert await waiting == [fencing.verdict]
    assert await offsets_of(sequencer, topic, "g") == {0: 20}


@pytest.mark.superuser
@each_fencing
async def test_without_its_lock_a_fenced_commit_would_set_the_offset_back(
    sequencer: Sequencer, topic: Topic, fencing: Fencing
) -> None:
    await create_commit_without_lock(sequencer)
    epoch = await a_group(sequencer, topic)
    async with sequencer.database.transaction() as held:
        await fencing.by(held, epoch)
        await next_owner_commits(held, 20)
        commit = partial(commit_with, sequencer, UNLOCKED, of_ann(topic, epoch, 10))
        waiting = await waits_for_a_lock(sequencer, commit)

    assert await waiting is DONE
    assert await offsets_of(sequencer, topic, "g") == {0: 10}


@pytest.mark.superuser
@in_the_members
async def test_in_one_statement_a_commit_would_be_judged_by_the_members_before_its_wait(
    sequencer: Sequencer, topic: Topic, fencing: Fencing
) -> None:
    await create_commit_in_one_statement(sequencer)
    epoch = await a_group(sequencer, topic)
    async with sequencer.database.transaction() as held:
        await fencing.by(held, epoch)
        await next_owner_commits(held, 20)
        commit = partial(commit_with, sequencer, IN_ONE_STATEMENT, of_ann(topic, epoch, 10))
        waiting = await waits_for_a_lock(sequencer, commit)

    assert await waiting is DONE
    assert await offsets_of(sequencer, topic, "g") == {0: 10}


@each_fencing
async def test_whoever_fences_waits_for_a_commit_and_then_finds_its_offset(
    sequencer: Sequencer, topic: Topic, fencing: Fencing
) -> None:
    epoch = await a_group(sequencer, topic)

    async def fence() -> None:
        async with sequencer.database.transaction() as connection:
            await fencing.by(connection, epoch)

    async with sequencer.database.transaction() as held:
        assert await commit_within(held, [of_ann(topic, epoch, 10)]) == [DONE]
        fenced = await waits_for_a_lock(sequencer, fence)
    await fenced

    assert await sequencer.committed_offsets.commit([of_ann(topic, epoch, 11)]) == [fencing.verdict]
    assert await offsets_of(sequencer, topic, "g") == {0: 10}


@pytest.mark.superuser
async def test_without_the_lock_the_next_coordinators_fetch_would_miss_an_accepted_commit(
    sequencer: Sequencer, topic: Topic
) -> None:
    await create_commit_without_lock(sequencer)
    epoch = await a_group(sequencer, topic)
    async with sequencer.database.transaction() as held:
        assert await commit_within(held, [of_ann(topic, epoch, 10)], UNLOCKED) == [DONE]
        bobs = (await claimed(sequencer, "g", BOB)).coordinator_epoch
        fetched = await offsets_of(sequencer, topic, "g", bobs)

    assert fetched == {0: 1}
    assert await offsets_of(sequencer, topic, "g", bobs) == {0: 10}


async def test_a_commit_given_up_on_does_not_come_after_those_of_the_next_claim(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Its outcome is unknown to its agent, which claims the group again; the statement still waits in
    Postgres.
    """
    epoch = await a_group(sequencer, topic)
    async with sequencer.database.transaction() as held:
        again = await claim_within(held, "g", ANN)
        given_up = await waits_for_a_lock(
            sequencer, partial(sequencer.committed_offsets.commit, [of_ann(topic, epoch, 10)])
        )
        assert await commit_within(held, [of_ann(topic, again, 20)]) == [DONE]

    assert await given_up == [CommitVerdict.NOT_COORDINATOR]
    assert await offsets_of(sequencer, topic, "g", again) == {0: 20}


async def test_a_fetch_tells_epoch_and_offsets_of_one_moment(sequencer: Sequencer, topic: Topic) -> None:
    """The old coordinator's fetch is refused as soon as the new one can have committed."""
    epoch = await a_group(sequencer, topic)
    query = OffsetQuery(group_id="g", coordinator_epoch=epoch, partitions=None)

    async def take_over() -> None:
        for number in range(30):
            bobs = (await claimed(sequencer, "g", BOB)).coordinator_epoch
            commit = a_commit(topic, "g", bobs, 100 + number, member_id="ann")
            assert await sequencer.committed_offsets.commit([commit]) == [DONE]

    taking_over = asyncio.create_task(take_over())
    while not taking_over.done():
        [found] = await sequencer.committed_offsets.fetch([query])
        assert found is None or {offset.offset for offset in found.values()} == {1}
    await taking_over


async def test_agents_that_fight_for_a_group_count_on_where_the_last_one_stopped(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Each fetches and commits the next number until it is fenced: no number is accepted twice, none is left
    out.
    """
    accepted: list[int] = []
    chance = random.Random(1)

    async def fight(agent: NodeId) -> None:
        pause_s = 0.0
        while len(accepted) < 40:
            await asyncio.sleep(chance.uniform(0.0, pause_s))
            pause_s = 2 * pause_s + 0.005  # all in step, each would be fenced before it commits
            epoch = (await claimed(sequencer, "g", agent)).coordinator_epoch
            query = OffsetQuery(
                group_id="g", coordinator_epoch=epoch, partitions=[(topic.topic_id, Partition(0))]
            )
            [found] = await sequencer.committed_offsets.fetch([query])
            if found is None:
                continue
            [reached] = (offset.offset for offset in found.values())
            for number in range(max(reached, 0) + 1, reached + 6):
                [verdict] = await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, number)])
                if verdict is not DONE:
                    assert verdict is CommitVerdict.NOT_COORDINATOR
                    break
                accepted.append(number)
                pause_s = 0.0

    await asyncio.gather(*(fight(NodeId(agent)) for agent in range(4)))

    assert sorted(accepted) == list(range(1, len(accepted) + 1))
    assert await offsets_of(sequencer, topic, "g") == {0: len(accepted)}


# --- many groups


async def test_group_rows_are_locked_in_id_order_whatever_the_order_given(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Who waits for the first of them holds none of the others."""
    names = ("Z", "a", "b")  # as bytes; other collations sort them otherwise
    epochs = {name: (await claimed(sequencer, name)).coordinator_epoch for name in names}
    commits = [a_commit(topic, name, epochs[name], 5) for name in ("b", "Z", "a")]
    lock = "SELECT 1 FROM groups WHERE group_id = %s FOR NO KEY UPDATE"
    for first, later in (("Z", "a"), ("a", "b")):
        async with sequencer.database.transaction() as held:
            await held.execute(lock, (first,))
            waiting = await waits_for_a_lock(sequencer, partial(sequencer.committed_offsets.commit, commits))
            await held.execute(f"{lock} NOWAIT", (later,))  # raises LockNotAvailable if the commit has it
        assert await waiting == [DONE] * 3


async def test_the_lock_is_taken_also_by_a_commit_that_changes_nothing(
    sequencer: Sequencer, topic: Topic
) -> None:
    """A lock in a CTE that nothing reads would be dropped from the plan."""
    epoch = await with_members(sequencer, "g", ann=1)
    refused = a_commit(topic, "g", epoch, 5, member_id="eve")
    async with sequencer.database.transaction() as held:
        assert await commit_within(held, [refused]) == [CommitVerdict.UNKNOWN_MEMBER]
        [free] = await sequencer.database.run(
            "SELECT count(*) AS rows FROM (SELECT 1 FROM groups FOR NO KEY UPDATE SKIP LOCKED) AS unlocked"
        )
    assert free.rows == 0


async def test_commits_of_the_same_groups_in_any_order_never_deadlock(
    sequencer: Sequencer, topic: Topic
) -> None:
    names = [f"group-{number}" for number in range(12)]
    epochs = {name: (await claimed(sequencer, name)).coordinator_epoch for name in names}

    async def commit(order: Sequence[str], first: int) -> None:
        for offset in range(first, first + 15):
            commits = [
                a_commit(topic, name, epochs[name], offset, partition=partition)
                for name in order
                for partition in (2, 0, 1)
            ]
            assert set(await sequencer.committed_offsets.commit(commits)) == {DONE}

    shuffled = names[::2] + names[::-2]
    await asyncio.gather(
        *(commit(order, n) for n, order in enumerate((names, names[::-1], shuffled, shuffled[::-1])))
    )

    assert sequencer.database.counters.deadlocks == 0
    assert await count(sequencer, "committed_offsets") == 3 * len(names)


async def test_claims_writes_commits_and_deletions_of_the_same_groups_never_deadlock(
    sequencer: Sequencer, topic: Topic
) -> None:
    names = [f"group-{number}" for number in range(4)]

    async def work(order: Sequence[str]) -> None:
        for number in range(12):
            epochs = {name: (await claimed(sequencer, name)).coordinator_epoch for name in order}
            commits = [a_commit(topic, name, epoch, number) for name, epoch in epochs.items()]
            change = a_change(members={"m": a_member(1) if number % 3 else None}, is_empty=number % 3 == 0)
            await asyncio.gather(
                sequencer.committed_offsets.commit(commits),
                sequencer.committed_offsets.commit(commits[::-1]),
                sequencer.groups.write(order[0], epochs[order[0]], change),
                sequencer.groups.delete(order[1], epochs[order[1]]),
                sequencer.committed_offsets.delete(
                    order[2], epochs[order[2]], [(topic.topic_id, Partition(0))]
                ),
            )

    await asyncio.gather(work(names), work(names[::-1]), work(names[2:] + names[:2]))

    assert sequencer.database.counters.deadlocks == 0
    orphans = await sequencer.database.run(
        "SELECT group_id FROM committed_offsets WHERE group_id NOT IN (SELECT group_id FROM groups)"
        " UNION SELECT group_id FROM group_members WHERE group_id NOT IN (SELECT group_id FROM groups)"
    )
    assert orphans == []


# --- deletion


async def test_a_deletion_takes_the_offset_of_a_commit_that_it_waited_for(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    async with sequencer.database.transaction() as held:
        assert await commit_within(held, [a_commit(topic, "g", epoch, 5)]) == [DONE]
        deleting = await waits_for_a_lock(sequencer, lambda: sequencer.groups.delete("g", epoch))

    assert await deleting is DeleteOutcome.DELETED
    assert await count(sequencer, "committed_offsets") == 0


async def test_in_one_statement_a_deletion_would_leave_that_offset_to_the_next_group_of_the_name(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    delete = (
        "WITH gone AS (DELETE FROM groups WHERE group_id = 'g' RETURNING group_id)"
        " DELETE FROM committed_offsets AS o USING gone WHERE o.group_id = gone.group_id"
    )
    async with sequencer.database.transaction() as held:
        assert await commit_within(held, [a_commit(topic, "g", epoch, 5)]) == [DONE]
        deleting = await waits_for_a_lock(sequencer, lambda: sequencer.database.run(delete))
    await deleting

    assert await offsets_of(sequencer, topic, "g") == {0: 5}


async def test_a_commit_that_waited_for_a_deletion_finds_no_group(sequencer: Sequencer, topic: Topic) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    async with sequencer.database.transaction() as held:
        assert await delete_within(held, "g", epoch) == "deleted"
        commit = partial(sequencer.committed_offsets.commit, [a_commit(topic, "g", epoch, 5)])
        waiting = await waits_for_a_lock(sequencer, commit)

    assert await waiting == [CommitVerdict.NOT_COORDINATOR]
    assert await count(sequencer, "committed_offsets") == 0


@pytest.mark.parametrize("create", [True, False])
async def test_a_claim_that_waited_for_a_deletion_makes_the_group_anew_or_finds_none(
    sequencer: Sequencer, create: bool
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    async with sequencer.database.transaction() as held:
        assert await delete_within(held, "g", epoch) == "deleted"
        claiming = await waits_for_a_lock(sequencer, lambda: sequencer.groups.claim("g", BOB, create=create))

    claim = await claiming
    if create:
        assert claim is not None
        assert claim.coordinator_epoch > epoch
    else:
        assert claim is None
        assert await count(sequencer, "groups") == 0


async def test_a_deletion_that_waited_for_a_member_to_join_deletes_nothing(sequencer: Sequencer) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    async with sequencer.database.transaction() as held:
        assert await write_within(held, "g", epoch, members={"ann": a_member(1)})
        deleting = await waits_for_a_lock(sequencer, lambda: sequencer.groups.delete("g", epoch))

    assert await deleting is DeleteOutcome.NOT_EMPTY
    assert await count(sequencer, "group_members") == 1


async def test_an_offset_committed_while_its_topic_is_deleted_is_told_to_nobody(
    sequencer: Sequencer, topic: Topic
) -> None:
    """The commit does not wait for the topic; what it leaves is swept (`test_group_retention.py`)."""
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    async with sequencer.database.transaction() as held:
        await held.execute(
            "UPDATE topics SET deleted_at = clock_timestamp() WHERE topic_id = %s", (topic.topic_id,)
        )
        await held.execute("UPDATE partitions SET state = 'deleting' WHERE topic_id = %s", (topic.topic_id,))
        assert await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5)]) == [DONE]

    assert await offsets_of(sequencer, topic, "g", epoch) == {}
    assert await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 6)]) == [DONE]
    assert await offsets_of(sequencer, topic, "g", epoch) == {}
