"""When offsets and groups expire, in what steps, and the races of expiry."""

from functools import partial

import pytest

from sequencer.client import Sequencer
from sequencer.commits.producers import ProducerIdentity
from sequencer.commits.transactions import EndCause, ProducerOfTransactions
from sequencer.groups.committed_offsets import CommittedOffset, CommitVerdict, OffsetCommit
from sequencer.groups.group_retention import SQL, GroupsStep, OffsetKey, OffsetsStep
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition
from tests.sequencer.groups.group_races import claim_within, commit_within, write_within
from tests.sequencer.groups.groups import (
    BOB,
    a_change,
    a_commit,
    a_member,
    a_topic,
    claimed,
    offsets_of,
    with_members,
)
from tests.sequencer.housekeeping.housekeeping import count, time_passes, waits_for_a_lock
from tests.sequencer.plans import generic_plan, pages_touched

RETENTION_S = 1_000.0
GRACE_S = 100.0
DONE = CommitVerdict.DONE


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await a_topic(sequencer)


async def forget(sequencer: Sequencer, cap: int = 100) -> tuple[int, int]:
    """A whole pass; the offsets forgotten for their age, and with their topics."""
    unused = of_deleted_topics = 0
    after: OffsetKey | None = None
    while True:
        step = await sequencer.group_retention.forget_offsets(RETENTION_S, cap, after)
        unused, of_deleted_topics = unused + step.unused, of_deleted_topics + step.of_deleted_topics
        after = step.next_after
        if after is None:
            return unused, of_deleted_topics


async def remove(sequencer: Sequencer, cap: int = 100) -> int:
    removed, step = 0, GroupsStep(removed=0, next_after="")
    while step.next_after is not None:
        step = await sequencer.group_retention.remove_idle_groups(GRACE_S, cap, step.next_after)
        removed += step.removed
    return removed


async def left(sequencer: Sequencer, group_id: str, epoch: int) -> None:
    """Its last member has gone."""
    change = a_change(state="Empty", members={"ann": None}, is_empty=True)
    assert await sequencer.groups.write(group_id, epoch, change)


# --- offsets


async def test_offsets_of_a_group_with_members_never_expire(sequencer: Sequencer, topic: Topic) -> None:
    epoch = await with_members(sequencer, "g", ann=1)
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5, generation=1)])
    await time_passes(sequencer, 100 * RETENTION_S)

    assert await forget(sequencer) == (0, 0)
    assert await offsets_of(sequencer, topic, "g") == {0: 5}


async def test_offsets_of_a_group_expire_together_long_after_its_last_member_left(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = await with_members(sequencer, "g", ann=1)
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5, generation=1)])
    await time_passes(sequencer, 10 * RETENTION_S)
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 6, generation=1, partition=1)])
    await left(sequencer, "g", epoch)

    await time_passes(sequencer, RETENTION_S - 60)
    assert await forget(sequencer) == (0, 0)
    await time_passes(sequencer, 120)
    assert await forget(sequencer) == (2, 0)
    assert await offsets_of(sequencer, topic, "g") == {}


async def test_an_offset_reset_by_an_operator_lives_from_its_commit(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = await with_members(sequencer, "g", ann=1)
    for partition in (0, 1):
        await sequencer.committed_offsets.commit(
            [a_commit(topic, "g", epoch, 5, generation=1, partition=partition)]
        )
    await left(sequencer, "g", epoch)
    await time_passes(sequencer, RETENTION_S - 60)
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 0, partition=1)])

    await time_passes(sequencer, 120)

    assert await forget(sequencer) == (1, 0)
    assert await offsets_of(sequencer, topic, "g", epoch) == {1: 0}


async def test_offsets_of_a_group_that_nobody_joined_expire_each_by_its_own_commit(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5)])
    await time_passes(sequencer, RETENTION_S - 60)
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 6, partition=1)])
    assert await forget(sequencer) == (0, 0)
    await time_passes(sequencer, 120)

    assert await forget(sequencer) == (1, 0)
    assert await offsets_of(sequencer, topic, "g", epoch) == {1: 6}


async def test_offsets_of_deleted_topics_go_whoever_uses_the_group(
    sequencer: Sequencer, topic: Topic
) -> None:
    kept = await a_topic(sequencer, "kept")
    for name in ("a", "b"):
        epoch = await with_members(sequencer, name, ann=1)
        commits = [a_commit(each, name, epoch, 5, generation=1) for each in (topic, kept)]
        assert await sequencer.committed_offsets.commit(commits) == [DONE, DONE]
    await sequencer.topics.delete(topic.name)
    again = await a_topic(sequencer)
    await sequencer.retention.sweep_deleted_topics(partitions_cap=100, rows_cap=100)

    assert await forget(sequencer) == (0, 2)

    assert await count(sequencer, "committed_offsets") == 2
    assert await offsets_of(sequencer, kept, "a") == {0: 5}
    assert await offsets_of(sequencer, again, "a") == {}


@pytest.mark.parametrize("cap", [1, 2, 3, 7, 8])
async def test_a_pass_in_small_steps_finds_all_that_is_due(
    sequencer: Sequencer, topic: Topic, cap: int
) -> None:
    for name in ("a", "b", 'c"\\ü'):
        epoch = (await claimed(sequencer, name)).coordinator_epoch
        key = (topic.topic_id, CommittedOffset(offset=Offset(5)))
        offsets = [(key[0], Partition(partition), key[1]) for partition in range(3)]
        await sequencer.committed_offsets.commit(
            [OffsetCommit(group_id=name, coordinator_epoch=epoch, offsets=offsets)]
        )
    epoch = (await claimed(sequencer, "b")).coordinator_epoch
    await time_passes(sequencer, 2 * RETENTION_S)
    await sequencer.committed_offsets.commit([a_commit(topic, "b", epoch, 9, partition=1)])

    assert await forget(sequencer, cap) == (8, 0)
    assert await offsets_of(sequencer, topic, "b", epoch) == {1: 9}


async def test_an_offset_committed_while_its_group_is_judged_stays(
    sequencer: Sequencer, topic: Topic
) -> None:
    """The commit waits for the judgement and comes after it; or is under way, and the group is passed by."""
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5)])
    await time_passes(sequencer, 2 * RETENTION_S)
    commit = a_commit(topic, "g", epoch, 6)

    async with sequencer.database.transaction() as held:
        assert await commit_within(held, [commit]) == [DONE]
        assert await forget(sequencer) == (0, 0)
    assert await forget(sequencer) == (0, 0)

    await time_passes(sequencer, 2 * RETENTION_S)
    async with sequencer.database.transaction() as held:
        await held.execute("SELECT 1 FROM groups FOR NO KEY UPDATE")
        await held.execute("DELETE FROM committed_offsets")
        waiting = await waits_for_a_lock(sequencer, partial(sequencer.committed_offsets.commit, [commit]))
    assert await waiting == [DONE]
    assert await offsets_of(sequencer, topic, "g", epoch) == {0: 6}


async def test_what_is_due_is_judged_again_once_the_group_is_locked(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Between the look at the page and the deletion a member joined one group, and another's offset was
    committed.
    """
    epochs = {}
    for name in ("committed", "due", "joined"):
        epochs[name] = await with_members(sequencer, name, ann=1)
        await sequencer.committed_offsets.commit([a_commit(topic, name, epochs[name], 5, generation=1)])
        await left(sequencer, name, epochs[name])
    await time_passes(sequencer, 2 * RETENTION_S)

    await sequencer.groups.write("joined", epochs["joined"], a_change(members={"bob": a_member(2)}))
    await sequencer.committed_offsets.commit([a_commit(topic, "committed", epochs["committed"], 6)])
    [row] = await sequencer.database.run(
        SQL["forget_offsets"],
        retention_s=RETENTION_S,
        group_ids=list(epochs),
        after_group_id="",
        after_topic_id=topic.topic_id,
        after_partition=-1,
        to_group_id="zzz",
        to_topic_id=topic.topic_id,
        to_partition=0,
    )

    assert (row.unused, row.of_deleted_topics) == (1, 0)
    assert await offsets_of(sequencer, topic, "committed") == {0: 6}
    assert await offsets_of(sequencer, topic, "joined") == {0: 5}


async def test_an_offset_committed_while_its_topic_is_deleted_is_swept(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.topics.delete(topic.name)
    while (await sequencer.retention.sweep_deleted_topics(partitions_cap=10, rows_cap=10)).topics == 0:
        pass
    assert await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5)]) == [DONE]

    assert await forget(sequencer) == (0, 1)


# --- groups


async def test_a_group_without_members_and_offsets_goes_after_its_grace(
    sequencer: Sequencer, topic: Topic
) -> None:
    epochs = {
        name: await with_members(sequencer, name, ann=1) for name in ("idle", "has members", "has offsets")
    }
    await sequencer.committed_offsets.commit(
        [a_commit(topic, "has offsets", epochs["has offsets"], 5, generation=1)]
    )
    await left(sequencer, "idle", epochs["idle"])
    await left(sequencer, "has offsets", epochs["has offsets"])
    await claimed(sequencer, "never written")

    assert await remove(sequencer) == 0
    await time_passes(sequencer, GRACE_S + 10)
    await claimed(sequencer, "just claimed")
    assert await remove(sequencer, cap=1) == 2

    listed = {group.group_id for group in await sequencer.groups.list()}
    assert listed == {"has members", "has offsets", "just claimed"}
    await time_passes(sequencer, RETENTION_S)
    assert await forget(sequencer) == (1, 0)
    assert await remove(sequencer) == 2


async def test_the_coordinator_of_a_removed_group_is_fenced_also_when_it_is_made_again(
    sequencer: Sequencer, topic: Topic
) -> None:
    asleep = (await claimed(sequencer, "g")).coordinator_epoch
    await time_passes(sequencer, GRACE_S + 10)
    assert await remove(sequencer) == 1
    assert await sequencer.groups.still_held({"g": asleep}) == {}
    await claimed(sequencer, "g", BOB)

    [verdict] = await sequencer.committed_offsets.commit([a_commit(topic, "g", asleep, 5)])

    assert verdict is CommitVerdict.NOT_COORDINATOR
    assert not await sequencer.groups.write("g", asleep, a_change())
    assert await sequencer.groups.still_held({"g": asleep}) == {}


async def test_a_group_in_use_at_this_moment_is_passed_by(sequencer: Sequencer) -> None:
    await claimed(sequencer, "g")
    await time_passes(sequencer, GRACE_S + 10)

    async with sequencer.database.transaction() as held:
        await claim_within(held, "g", BOB)
        assert await remove(sequencer) == 0
    assert await remove(sequencer) == 0, "claimed a moment ago"

    await time_passes(sequencer, GRACE_S + 10)
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await time_passes(sequencer, GRACE_S + 10)
    async with sequencer.database.transaction() as held:
        assert await write_within(held, "g", epoch, members={"ann": a_member(1)})
        assert await remove(sequencer) == 0
    assert await remove(sequencer) == 0


async def test_who_waited_for_the_removal_of_a_group_finds_none_and_makes_it_anew(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await time_passes(sequencer, GRACE_S + 10)
    async with sequencer.database.transaction() as held:
        await held.execute(SQL["remove_groups"], {"grace_s": GRACE_S, "group_ids": ["g"]})
        commit = partial(sequencer.committed_offsets.commit, [a_commit(topic, "g", epoch, 5)])
        waiting = await waits_for_a_lock(sequencer, commit)

    assert await waiting == [CommitVerdict.NOT_COORDINATOR]
    assert (await claimed(sequencer, "g")).coordinator_epoch > epoch
    assert await count(sequencer, "committed_offsets") == 0


# --- cost


async def test_a_step_costs_its_page_not_what_there_is(sequencer: Sequencer, topic: Topic) -> None:
    async def pages() -> dict[str, int]:
        page = {"after_group_id": "g", "after_topic_id": topic.topic_id, "after_partition": -1}
        last = {"to_group_id": "g", "to_topic_id": topic.topic_id, "to_partition": 100}
        statements = {
            "lock_groups_of_page": {**page, "retention_s": RETENTION_S, "cap": 5},
            "forget_offsets": {**page, **last, "retention_s": RETENTION_S, "group_ids": ["g"]},
            "lock_idle_groups": {"after": "g", "cap": 5, "grace_s": GRACE_S},
            "remove_groups": {"group_ids": ["g"], "grace_s": GRACE_S},
        }
        async with sequencer.database.connection() as connection:
            return {
                name: pages_touched(await generic_plan(connection, SQL[name], parameters))
                for name, parameters in statements.items()
            }

    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5)])
    await time_passes(sequencer, 2 * RETENTION_S)
    small = await pages()
    await sequencer.database.run(
        "INSERT INTO groups (group_id, coordinator) SELECT 'group-' || n, 1 FROM generate_series(1, "
        "2000) AS n"
    )
    await sequencer.database.run(
        "INSERT INTO committed_offsets (group_id, topic_id, partition, committed_offset, leader_epoch, "
        "metadata,"
        " committed_at) SELECT group_id, %(topic_id)s, partition, 1, 0, '', 'epoch'"
        " FROM groups, generate_series(1, 10) AS partition WHERE group_id <> 'g'",
        topic_id=topic.topic_id,
    )
    await sequencer.database.run("VACUUM ANALYZE")
    large = await pages()

    # Deeper indexes, and a page more of each. Reading everything would take thousands.
    assert all(large[name] < 2 * small[name] + 100 for name in small), (small, large)


async def test_a_step_tells_where_to_go_on(sequencer: Sequencer, topic: Topic) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    for partition in (0, 1):
        await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5, partition=partition)])

    first = await sequencer.group_retention.forget_offsets(RETENTION_S, 1)
    second = await sequencer.group_retention.forget_offsets(RETENTION_S, 1, first.next_after)
    third = await sequencer.group_retention.forget_offsets(RETENTION_S, 1, second.next_after)

    assert first == OffsetsStep(unused=0, of_deleted_topics=0, next_after=("g", topic.topic_id, Partition(0)))
    assert second.next_after == ("g", topic.topic_id, Partition(1))
    assert third.next_after is None


async def test_a_group_with_pending_offsets_stays(sequencer: Sequencer, topic: Topic) -> None:
    """Else the transaction would be committed without them."""
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    identity = await sequencer.transactions.initialize("tx", 60_000)
    assert isinstance(identity, ProducerIdentity)
    producer = ProducerOfTransactions(
        transactional_id="tx", producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
    )
    pending = a_commit(topic, "g", epoch, 5)
    await sequencer.transactions.commit_offsets(producer, pending, adds_group=True)
    await time_passes(sequencer, GRACE_S + 10)

    assert await remove(sequencer) == 0
    [judged] = await sequencer.database.run(SQL["remove_groups"], group_ids=["g"], grace_s=GRACE_S)
    assert judged.removed == 0, "the offset may be put aside after the look at the page"
    await sequencer.transactions.end(producer, is_commit=True, cause=EndCause.CLIENT_2)

    assert await offsets_of(sequencer, topic, "g") == {0: 5}


async def test_deleted_offsets_do_not_come_back_with_their_transaction(
    sequencer: Sequencer, topic: Topic
) -> None:
    """Neither in a group of the same name."""
    identity = await sequencer.transactions.initialize("tx", 60_000)
    assert isinstance(identity, ProducerIdentity)
    producer = ProducerOfTransactions(
        transactional_id="tx", producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
    )
    epochs = {}
    for name in ("all", "one"):
        epochs[name] = (await claimed(sequencer, name)).coordinator_epoch
        pending = a_commit(topic, name, epochs[name], 5)
        await sequencer.transactions.commit_offsets(producer, pending, adds_group=True)

    await sequencer.groups.delete("all", epochs["all"])
    await sequencer.committed_offsets.delete("one", epochs["one"], [(topic.topic_id, Partition(0))])
    await claimed(sequencer, "all")
    await sequencer.transactions.end(producer, is_commit=True, cause=EndCause.CLIENT_2)

    assert await offsets_of(sequencer, topic, "all") == {}
    assert await offsets_of(sequencer, topic, "one") == {}
