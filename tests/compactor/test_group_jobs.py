"""The jobs of consumer groups: what they leave, in how many steps, and side by side."""

import asyncio

from compactor.housekeeper import Housekeeper
from compactor.job import Job, Step
from compactor.retention_jobs import IdleGroupsJob, OffsetExpiryJob
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.topics.topics import Topic
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import settings
from tests.sequencer.groups.groups import a_change, a_commit, a_topic, claimed, offsets_of, with_members
from tests.sequencer.housekeeping.housekeeping import count, time_passes

WEEK_S = 7 * 86_400.0
SMALL_STEPS = settings(offsets_per_step=3, groups_per_step=2)


async def pass_of(job: Job) -> list[Step]:
    """All steps of one pass."""
    steps = [await job.step(None)]
    while steps[-1].more:
        steps.append(await job.step(steps[-1].progress))
    assert steps[-1].progress is None
    return steps


def total(steps: list[Step], what: str) -> int:
    return sum(step.done[what] for step in steps)


async def simple_groups(sequencer: Sequencer, topic: Topic, *names: str, partitions: int = 2) -> None:
    """Groups without members, each with some offsets."""
    for name in names:
        epoch = (await claimed(sequencer, name)).coordinator_epoch
        await sequencer.committed_offsets.commit(
            [a_commit(topic, name, epoch, 5, partition=partition) for partition in range(partitions)]
        )


async def test_what_nobody_uses_for_a_week_goes_first_the_offsets_then_the_groups(
    sequencer: Sequencer,
) -> None:
    topic = await a_topic(sequencer)
    names = ("a/b", 'strange "\\ü🦀', "x", "y", "z")
    await simple_groups(sequencer, topic, *names)
    used = await with_members(sequencer, "used", ann=1)
    await sequencer.committed_offsets.commit([a_commit(topic, "used", used, 7, generation=1)])
    offsets, groups = OffsetExpiryJob(sequencer, SMALL_STEPS), IdleGroupsJob(sequencer, SMALL_STEPS)

    await time_passes(sequencer, WEEK_S - 3600)
    assert total(await pass_of(offsets), "offsets") == total(await pass_of(groups), "groups") == 0
    await time_passes(sequencer, 7200)
    expired = await pass_of(offsets)
    removed = await pass_of(groups)

    assert len(expired) == 4
    assert total(expired, "offsets") == 2 * len(names)
    assert len(removed) == 4
    assert total(removed, "groups") == len(names)
    assert [group.group_id for group in await sequencer.groups.list()] == ["used"]
    assert await offsets_of(sequencer, topic, "used") == {0: 7}


async def test_the_retention_is_a_setting_in_minutes_as_in_kafka(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    await simple_groups(sequencer, topic, "g", partitions=1)
    job = OffsetExpiryJob(sequencer, HousekeeperSettings(offsets_retention_minutes=2))

    await time_passes(sequencer, 60)
    assert total(await pass_of(job), "offsets") == 0
    await time_passes(sequencer, 61)
    assert total(await pass_of(job), "offsets") == 1


async def test_offsets_of_deleted_topics_are_counted_apart(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    await simple_groups(sequencer, topic, "a", "b", partitions=4)
    await sequencer.topics.delete(topic.name)

    steps = await pass_of(OffsetExpiryJob(sequencer, SMALL_STEPS))

    assert (total(steps, "offsets"), total(steps, "offsets_of_deleted_topics")) == (0, 8)
    assert await count(sequencer, "committed_offsets") == 0


async def test_passes_side_by_side_beside_commits_lose_nothing_that_lives(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    names = [f"group-{number}" for number in range(12)]
    await simple_groups(sequencer, topic, *names)
    await time_passes(sequencer, 2 * WEEK_S)
    awake = {name: (await claimed(sequencer, name)).coordinator_epoch for name in names[::2]}

    async def commit_for_ever() -> None:
        for number in range(20):
            commits = [a_commit(topic, name, epoch, number, partition=3) for name, epoch in awake.items()]
            verdicts = await sequencer.committed_offsets.commit(commits[:: 1 if number % 2 else -1])
            assert {verdict.name for verdict in verdicts} == {"DONE"}

    async def keep_house() -> None:
        for _ in range(5):
            await pass_of(OffsetExpiryJob(sequencer, SMALL_STEPS))
            await pass_of(IdleGroupsJob(sequencer, SMALL_STEPS))

    await asyncio.gather(commit_for_ever(), keep_house(), keep_house())
    await keep_house()

    assert {group.group_id for group in await sequencer.groups.list()} == set(awake)
    for name in awake:
        assert await offsets_of(sequencer, topic, name) == {3: 19}
    assert sequencer.database.counters.deadlocks == 0


async def test_the_housekeeper_does_these_jobs(sequencer: Sequencer, local_store: ObjectStore) -> None:
    topic = await a_topic(sequencer)
    epoch = await with_members(sequencer, "g", ann=1)
    await sequencer.committed_offsets.commit([a_commit(topic, "g", epoch, 5, generation=1)])
    await sequencer.groups.write("g", epoch, a_change(members={"ann": None}, is_empty=True))
    await time_passes(sequencer, WEEK_S + 60)
    housekeeper = Housekeeper(sequencer, local_store, settings())
    jobs = {job.name: job for job in housekeeper.jobs}

    assert await housekeeper.run_once(jobs["offset-expiry"])
    assert await housekeeper.run_once(jobs["idle-groups"])

    assert await count(sequencer, "committed_offsets") == await count(sequencer, "groups") == 0
