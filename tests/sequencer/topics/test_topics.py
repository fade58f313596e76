"""Topics on the real Postgres."""

import asyncio
from collections import Counter

import pytest

from sequencer.client import Sequencer
from sequencer.topics.topic_config import InvalidConfig
from sequencer.topics.topics import (
    CollidingTopicName,
    InvalidPartitionCount,
    InvalidTopicName,
    TopicExists,
    UnknownTopic,
)
from storage.identifiers import Partition


async def test_created_topic_is_found_by_name_and_by_id(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 3, {"retention.ms": "1000"})

    assert await sequencer.topics.by_name(["orders", "absent"]) == {"orders": topic}
    assert await sequencer.topics.by_id([topic.topic_id]) == {topic.topic_id: topic}
    assert await sequencer.topics.list() == [topic]
    assert topic.config == {"retention.ms": "1000"}
    bounds = await sequencer.coordinates.bounds(
        [(topic.topic_id, Partition(partition)) for partition in range(4)]
    )
    assert len(bounds) == 3


async def test_a_name_is_taken_once_and_free_after_deletion(sequencer: Sequencer) -> None:
    first = await sequencer.topics.create("orders", 1, {})
    with pytest.raises(TopicExists):
        await sequencer.topics.create("orders", 1, {})

    assert await sequencer.topics.delete("orders") == first
    second = await sequencer.topics.create("orders", 1, {})

    assert second.topic_id != first.topic_id
    assert await sequencer.topics.by_id([first.topic_id]) == {}


async def test_deleted_topic_is_unknown_to_every_call(sequencer: Sequencer) -> None:
    await sequencer.topics.create("orders", 1, {})
    await sequencer.topics.delete("orders")

    for call in (
        sequencer.topics.delete("orders"),
        sequencer.topics.add_partitions("orders", 2),
        sequencer.topics.alter_config("orders", {"retention.ms": "1"}),
    ):
        with pytest.raises(UnknownTopic):
            await call


async def test_partitions_only_become_more(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("orders", 2, {})

    grown = await sequencer.topics.add_partitions("orders", 5)

    assert grown.partition_count == 5
    partitions = [(topic.topic_id, Partition(partition)) for partition in range(6)]
    assert len(await sequencer.coordinates.bounds(partitions)) == 5
    for wrong in (5, 4, 0, 1_000_000):
        with pytest.raises(InvalidPartitionCount):
            await sequencer.topics.add_partitions("orders", wrong)


async def test_configs_are_set_and_removed_in_one_step(sequencer: Sequencer) -> None:
    await sequencer.topics.create("orders", 1, {"retention.ms": "1000"})

    altered = await sequencer.topics.alter_config(
        "orders", {"retention.bytes": "5"}, remove=["retention.ms", "a\0b"]
    )

    assert altered.config == {"retention.bytes": "5"}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "ü"])
async def test_illegal_names_are_refused(sequencer: Sequencer, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        await sequencer.topics.create(name, 1, {})


@pytest.mark.parametrize("name", ["", "a\0b", "ü", "x" * 1000])
async def test_a_name_that_no_topic_can_have_is_of_none(sequencer: Sequencer, name: str) -> None:
    """Clients ask for any string; one with a NUL cannot even be asked of Postgres."""
    orders = await sequencer.topics.create("orders", 1, {})

    assert await sequencer.topics.by_name([name, "orders"]) == {"orders": orders}
    with pytest.raises(UnknownTopic):
        await sequencer.topics.delete(name)
    with pytest.raises(UnknownTopic):
        await sequencer.topics.add_partitions(name, 2)
    with pytest.raises(UnknownTopic):
        await sequencer.topics.alter_config(name, {})


async def test_a_config_the_log_would_not_honour_is_refused(sequencer: Sequencer) -> None:
    with pytest.raises(InvalidConfig, match=r"cleanup\.policy"):
        await sequencer.topics.create("orders", 1, {"cleanup.policy": "squash"})


async def test_configs_that_contradict_each_other_are_refused_together(sequencer: Sequencer) -> None:
    lags = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}
    with pytest.raises(InvalidConfig, match="conflict"):
        await sequencer.topics.create("orders", 1, lags)
    await sequencer.topics.create("orders", 1, {"min.compaction.lag.ms": "5"})

    with pytest.raises(InvalidConfig, match="conflict"):
        await sequencer.topics.alter_config("orders", {"max.compaction.lag.ms": "4"})
    altered = await sequencer.topics.alter_config(
        "orders", {"max.compaction.lag.ms": "4"}, remove=["min.compaction.lag.ms"]
    )

    assert altered.config == {"max.compaction.lag.ms": "4"}


async def test_of_two_changes_at_once_that_contradict_each_other_one_is_refused(sequencer: Sequencer) -> None:
    await sequencer.topics.create("orders", 1, {})

    outcomes = await asyncio.gather(
        sequencer.topics.alter_config("orders", {"cleanup.policy": "compact"}),
        sequencer.topics.alter_config("orders", {"tidelog.history": "log"}),
        return_exceptions=True,
    )

    assert sorted(isinstance(outcome, InvalidConfig) for outcome in outcomes) == [False, True]


async def test_a_topic_is_deleted_by_its_id_whatever_is_called_so_by_now(sequencer: Sequencer) -> None:
    first = await sequencer.topics.create("orders", 1, {})
    await sequencer.topics.delete("orders")
    second = await sequencer.topics.create("orders", 1, {})

    with pytest.raises(UnknownTopic):
        await sequencer.topics.delete_by_id(first.topic_id)
    assert await sequencer.topics.delete_by_id(second.topic_id) == second
    assert await sequencer.topics.list() == []


@pytest.mark.parametrize(("there", "wanted"), [("a.b", "a_b"), ("a_b.c", "a.b_c"), ("._", "_.")])
async def test_names_that_differ_in_dots_and_underscores_alone_collide(
    sequencer: Sequencer, there: str, wanted: str
) -> None:
    await sequencer.topics.create(there, 1, {})

    with pytest.raises(CollidingTopicName, match="collides with existing topic"):
        await sequencer.topics.create(wanted, 1, {})
    with pytest.raises(TopicExists):
        await sequencer.topics.create(there, 1, {})
    await sequencer.topics.delete(there)
    await sequencer.topics.create(wanted, 1, {})


async def test_topics_made_changed_and_deleted_at_once_are_all_counted(sequencer: Sequencer) -> None:
    """The counter is one row that all of them write: none may wait for another in a circle."""

    async def live(name: str) -> None:
        await sequencer.topics.create(name, 2, {})
        await sequencer.topics.alter_config(name, {"retention.ms": "5"})
        await sequencer.topics.add_partitions(name, 3)
        await sequencer.topics.delete(name)

    before = (await sequencer.topics.changes()).number
    await asyncio.gather(*(live(f"orders-{number}") for number in range(12)))

    changes = await sequencer.topics.changes(before)
    assert changes.number == before + 12 * 4
    assert changes.topics is not None
    assert Counter(name for _, name in changes.topics) == {f"orders-{number}": 4 for number in range(12)}
    assert sequencer.database.counters.deadlocks == 0
