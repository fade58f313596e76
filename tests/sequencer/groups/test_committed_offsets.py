"""Committed offsets in Postgres: who may commit, what a fetch tells, and that updates stay on their pages."""

from collections.abc import Sequence
from uuid import uuid4

import pytest

from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import (
    NOT_COMMITTED,
    CommittedOffset,
    CommitVerdict,
    OffsetCommit,
    OffsetQuery,
    PartitionKey,
)
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition, TopicId
from tests.sequencer.groups.groups import BOB, a_change, a_commit, a_topic, claimed, offsets_of, with_members
from tests.sequencer.housekeeping.housekeeping import count

DONE = CommitVerdict.DONE


@pytest.fixture
async def topic(sequencer: Sequencer) -> Topic:
    return await a_topic(sequencer)


def keys(topic: Topic, *partitions: int) -> list[PartitionKey]:
    return [(topic.topic_id, Partition(partition)) for partition in partitions]


def a_query(group_id: str, epoch: int, partitions: Sequence[PartitionKey] | None = None) -> OffsetQuery:
    return OffsetQuery(group_id=group_id, coordinator_epoch=epoch, partitions=partitions)


async def test_offsets_are_told_as_they_were_committed(sequencer: Sequencer, topic: Topic) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    offsets = [
        CommittedOffset(offset=Offset(2**62), leader_epoch=2**31 - 1, metadata="höhe 🦀\0 end"),
        CommittedOffset(offset=Offset(0), leader_epoch=-1, metadata=""),
        CommittedOffset(offset=Offset(3), leader_epoch=0, metadata="x" * 4096),
    ]
    commit = OffsetCommit(
        group_id="g",
        coordinator_epoch=epoch,
        offsets=[(topic.topic_id, Partition(partition), offset) for partition, offset in enumerate(offsets)],
    )

    assert await sequencer.committed_offsets.commit([commit]) == [DONE]

    asked = keys(topic, 0, 2, 3)
    everything, some = await sequencer.committed_offsets.fetch(
        [a_query("g", epoch), a_query("g", epoch, asked)]
    )
    assert everything == dict(zip(keys(topic, 0, 1, 2), offsets, strict=True))
    assert some == {asked[0]: offsets[0], asked[1]: offsets[2], asked[2]: NOT_COMMITTED}


async def test_commits_of_many_groups_go_in_one_call(sequencer: Sequencer, topic: Topic) -> None:
    epochs = {name: (await claimed(sequencer, name)).coordinator_epoch for name in "cab"}

    verdicts = await sequencer.committed_offsets.commit(
        [
            a_commit(topic, name, epochs[name] + (name == "b"), 10 + partition, partition=partition)
            for partition in range(3)
            for name in "cab"
        ]
    )

    assert verdicts == [DONE, DONE, CommitVerdict.NOT_COORDINATOR] * 3
    found = await sequencer.committed_offsets.fetch([a_query(name, epochs[name]) for name in "abc"])
    assert [{key[1]: offset.offset for key, offset in (each or {}).items()} for each in found] == [
        {0: 10, 1: 11, 2: 12},
        {},
        {0: 10, 1: 11, 2: 12},
    ]


async def test_what_is_committed_last_counts_within_one_commit_and_one_call(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = await with_members(sequencer, "g", m=1)
    twice = OffsetCommit(
        group_id="g",
        coordinator_epoch=epoch,
        offsets=[(*keys(topic, 1)[0], CommittedOffset(offset=Offset(offset))) for offset in (5, 9, 4)],
        member_id="m",
    )
    other_partition = [a_commit(topic, "g", epoch, offset, member_id="m") for offset in (20, 30)]
    refused = a_commit(topic, "g", epoch, 99, member_id="unknown")

    verdicts = await sequencer.committed_offsets.commit([twice, *other_partition, refused])

    assert verdicts == [DONE, DONE, DONE, CommitVerdict.UNKNOWN_MEMBER]
    assert await offsets_of(sequencer, topic, "g", epoch) == {0: 30, 1: 4}


@pytest.mark.parametrize(
    ("fence", "verdict"),
    [
        ({"generation": 7}, DONE),
        ({"generation": 6}, CommitVerdict.ILLEGAL_GENERATION),
        ({"generation": 8}, CommitVerdict.ILLEGAL_GENERATION),
        ({"generation": 0}, CommitVerdict.ILLEGAL_GENERATION),
        ({"generation": 7, "member_id": "ann"}, DONE),
        ({"generation": 7, "member_id": "eve"}, CommitVerdict.UNKNOWN_MEMBER),
        ({"generation": 6, "member_id": "eve"}, CommitVerdict.UNKNOWN_MEMBER),
        ({"member_id": "ann", "member_epoch": 3}, DONE),
        ({"member_id": "ann", "member_epoch": 2}, CommitVerdict.STALE_MEMBER_EPOCH),
        ({"member_id": "ann", "member_epoch": 4}, CommitVerdict.STALE_MEMBER_EPOCH),
        ({"member_id": "bob", "member_epoch": 0}, DONE),
        ({"member_id": "eve", "member_epoch": 3}, CommitVerdict.UNKNOWN_MEMBER),
        ({}, CommitVerdict.UNKNOWN_MEMBER),
    ],
    ids=str,
)
async def test_a_commit_is_fenced_by_all_that_it_says_of_its_member(
    sequencer: Sequencer, topic: Topic, fence: dict[str, int | str], verdict: CommitVerdict
) -> None:
    epoch = await with_members(sequencer, "g", generation=7, ann=3, bob=0)
    await with_members(sequencer, "other", generation=6, eve=3)

    assert await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5, **fence)]) == [verdict]

    assert await offsets_of(sequencer, topic, "g", epoch) == ({0: 5} if verdict is DONE else {})
    other_coordinator = a_commit(topic, "g", epoch - 1, 6, **fence)
    assert await sequencer.committed_offsets.commit([other_coordinator]) == [CommitVerdict.NOT_COORDINATOR]


async def test_without_a_member_a_commit_needs_a_group_without_members(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = await with_members(sequencer, "g", m=1)
    commit = a_commit(topic, "g", epoch, 5)

    assert await sequencer.committed_offsets.commit([commit]) == [CommitVerdict.UNKNOWN_MEMBER]
    await sequencer.groups.write("g", epoch, a_change(members={"m": None}, is_empty=True))
    assert await sequencer.committed_offsets.commit([commit]) == [DONE]


async def test_commits_of_nothing_and_for_groups_that_are_not_there(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = await with_members(sequencer, "g", m=1)
    nothing = OffsetCommit(group_id="g", coordinator_epoch=epoch, offsets=[], member_id="m")

    assert await sequencer.committed_offsets.commit([]) == []
    assert await sequencer.committed_offsets.commit([nothing]) == [DONE]
    [verdict] = await sequencer.committed_offsets.commit([a_commit(topic, "missing", epoch, 5)])
    assert verdict is CommitVerdict.NOT_COORDINATOR


async def test_a_fetch_of_a_fenced_coordinator_or_a_missing_group_is_refused(
    sequencer: Sequencer, topic: Topic
) -> None:
    old = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.committed_offsets.commit([a_commit(topic, "g", old, 5)])
    new = (await claimed(sequencer, "g", BOB)).coordinator_epoch

    queries = [
        a_query("g", old),
        a_query("g", new),
        a_query("missing", new),
        a_query("g", old, keys(topic, 0)),
    ]

    taken, held, missing, some = await sequencer.committed_offsets.fetch(queries)
    assert (taken, missing, some) == (None, None, None)
    assert held == {keys(topic, 0)[0]: CommittedOffset(offset=Offset(5))}
    assert await sequencer.committed_offsets.fetch([]) == []


async def test_offsets_of_a_deleted_topic_are_told_to_nobody_not_even_under_its_name(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5)])
    await sequencer.topics.delete(topic.name)
    again = await a_topic(sequencer)

    asked = [*keys(topic, 0), *keys(again, 0), (TopicId(uuid4()), Partition(0))]

    everything, some = await sequencer.committed_offsets.fetch(
        [a_query("g", epoch), a_query("g", epoch, asked)]
    )
    assert everything == {}
    assert some == dict.fromkeys(asked, NOT_COMMITTED)


async def test_offsets_are_forgotten_one_by_one_by_the_coordinator_alone(
    sequencer: Sequencer, topic: Topic
) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    for partition in range(3):
        await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5, partition=partition)])

    assert await sequencer.committed_offsets.delete("g", epoch, keys(topic, 0, 2, 3))

    assert await offsets_of(sequencer, topic, "g", epoch) == {1: 5}
    await claimed(sequencer, "g", BOB)
    assert not await sequencer.committed_offsets.delete("g", epoch, keys(topic, 1))
    assert not await sequencer.committed_offsets.delete("missing", epoch, keys(topic, 1))
    assert await count(sequencer, "committed_offsets") == 1


@pytest.mark.superuser
async def test_offset_commits_stay_on_their_pages(sequencer: Sequencer, topic: Topic) -> None:
    """HOT updates: no index grows, and dead versions are pruned by the next to come, without a vacuum."""
    groups, rounds = 50, 120
    for table in ("committed_offsets", "groups"):
        await sequencer.database.run(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    epochs = {f"group-{n}": await with_members(sequencer, f"group-{n}", member=1) for n in range(groups)}
    sizes = []
    for number in range(rounds):
        verdicts = await sequencer.committed_offsets.commit(
            [a_commit(topic, name, epoch, number, generation=1) for name, epoch in epochs.items()]
        )
        assert set(verdicts) == {DONE}
        sizes.append(await _pages(sequencer))

    updates = await _updates(sequencer)
    assert updates["committed_offsets"]["updated"] == groups * (rounds - 1)
    assert updates["committed_offsets"]["hot"] > 0.9 * groups * (rounds - 1), updates
    assert updates["groups"]["updated"] <= 2 * groups, "a commit locks the group's row and leaves it as it is"
    assert sizes[-1] <= 20, ("without pruning there are some 100", sizes)


async def _pages(sequencer: Sequencer) -> int:
    [row] = await sequencer.database.run(
        "SELECT (pg_relation_size('committed_offsets') + pg_relation_size('committed_offsets_pkey')"
        " + pg_relation_size('groups')) / 8192 AS pages"
    )
    return int(row.pages)


async def _updates(sequencer: Sequencer) -> dict[str, dict[str, int]]:
    """What Postgres counted; a connection tells its counts when it is idle or asked to."""
    async with sequencer.database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
    rows = await sequencer.database.run(
        "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname IN ('committed_offsets', 'groups')"
    )
    return {row.relname: {"updated": row.n_tup_upd, "hot": row.n_tup_hot_upd} for row in rows}
