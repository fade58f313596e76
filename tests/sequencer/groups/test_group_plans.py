"""Offset commits and fetches are index look-ups: they cost what they name, not what all groups hold."""

from collections.abc import Mapping

from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import SQL, OffsetCommit, commit_parameters
from sequencer.groups.groups import SQL as GROUPS_SQL
from sequencer.topics.topics import Topic
from tests.sequencer.groups.groups import a_commit, a_topic, with_members
from tests.sequencer.plans import generic_plan, pages_touched, work_statement

GROUPS = 2_000
PARTITIONS = 20
NAMED = ("group-0", "group-1000", "group-1999")


async def test_the_work_of_an_offset_commit_and_of_a_fetch_does_not_grow_with_the_groups(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer, partitions=PARTITIONS)
    epochs = {name: await with_members(sequencer, name, member=1) for name in NAMED}
    small = await _pages_touched(sequencer, topic, epochs)
    await _fill(sequencer, topic)
    large = await _pages_touched(sequencer, topic, epochs)

    # Indexes over 40,000 offsets are a level or two deeper than over none; a scan would touch their 1,000
    # pages.
    assert large.keys() == small.keys()
    for statement, pages in large.items():
        assert pages < small[statement] + 60, (statement, small, large)
        assert pages < 250, (statement, large)


async def _pages_touched(sequencer: Sequencer, topic: Topic, epochs: Mapping[str, int]) -> Mapping[str, int]:
    """Of a commit of three groups by member, a fetch of one partition each, and the look at what is still
    held.
    """
    commits: list[OffsetCommit] = [
        a_commit(topic, name, epoch, 5, partition=partition, member_id="member", member_epoch=1)
        for partition, (name, epoch) in enumerate(epochs.items(), start=7)
    ]
    fetched = {
        "group_ids": list(epochs),
        "coordinator_epochs": list(epochs.values()),
        "everything": [False] * len(epochs),
        "of_groups": [1, 2, 3],
        "topic_ids": [topic.topic_id] * 3,
        "partitions": [7, 8, 9],
    }
    async with sequencer.database.connection() as connection:
        work = await work_statement(connection, "commit_offsets")
        parameters = commit_parameters(commits)
        plans = {
            "lock": await generic_plan(connection, LOCK, {"group_ids": parameters["group_ids"]}),
            "commit": await generic_plan(connection, work, {**parameters, "pending_of": None}),
            "fetch": await generic_plan(connection, SQL["fetch"], fetched),
            "still held": await generic_plan(connection, GROUPS_SQL["still_held"], fetched),
        }
    return {name: pages_touched(plan) for name, plan in plans.items()}


LOCK = "SELECT 1 FROM groups WHERE group_id = ANY (%(group_ids)s::text[]) ORDER BY group_id FOR NO KEY UPDATE"


async def _fill(sequencer: Sequencer, topic: Topic) -> None:
    """Thousands of other groups, each with a member and an offset in every partition."""
    await sequencer.database.run(
        "INSERT INTO groups (group_id, coordinator)"
        " SELECT 'group-' || n, 1 FROM generate_series(0, %(groups)s - 1) AS n ON CONFLICT DO NOTHING",
        groups=GROUPS,
    )
    await sequencer.database.run(
        "INSERT INTO group_members (group_id, member_id, epoch, document) SELECT group_id, 'other', 1, "
        "'{}' FROM groups"
    )
    await sequencer.database.run(
        "INSERT INTO committed_offsets (group_id, topic_id, partition, committed_offset, leader_epoch, "
        "metadata) SELECT group_id, %(topic_id)s, partition, 1, 0, ''"
        " FROM groups, generate_series(0, %(partitions)s - 1) AS partition",
        topic_id=topic.topic_id,
        partitions=PARTITIONS,
    )
    await sequencer.database.run("VACUUM ANALYZE")
