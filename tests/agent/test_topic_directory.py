"""Topics looked up through the cache: bounded age in both directions, the agent's own changes visible at
once, bounded size.
"""

from collections.abc import Collection
from typing import Any

import pytest

from agent.settings import AgentSettings
from agent.topic_directory import TopicDirectory
from sequencer.client import Sequencer
from sequencer.topics.topics import Topic, TopicChanges, Topics, UnknownTopic


class Lookups:
    """A directory on the test's clock."""

    def __init__(self, sequencer: Sequencer, **settings: Any) -> None:
        self.now_s = 0.0
        given = {"topic_cache_s": 5.0, "unknown_topic_cache_s": 0.25, **settings}
        self.directory = TopicDirectory(sequencer.topics, AgentSettings(**given), lambda: self.now_s)

    async def exists(self, *names: str) -> set[str]:
        return set(await self.directory.by_name(names))


async def test_a_topic_deleted_elsewhere_is_trusted_for_a_bounded_time(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    await sequencer.topics.create("orders", 1, {})
    assert await lookups.exists("orders") == {"orders"}

    await sequencer.topics.delete("orders")

    assert await lookups.exists("orders") == {"orders"}
    lookups.now_s += 5.1
    assert await lookups.exists("orders") == set()


async def test_a_topic_created_elsewhere_is_found_after_a_short_time(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    assert await lookups.exists("orders") == set()

    await sequencer.topics.create("orders", 1, {})

    assert await lookups.exists("orders") == set()
    lookups.now_s += 0.3
    assert await lookups.exists("orders") == {"orders"}


async def test_the_next_lookup_sees_this_agents_own_change(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    directory = lookups.directory
    assert await lookups.exists("orders") == set()

    created = await directory.create("orders", 1, {})
    assert (await directory.by_name(["orders"]))["orders"].topic_id == created.topic_id
    await directory.add_partitions("orders", 3)
    assert (await directory.by_id([created.topic_id]))[created.topic_id].partition_count == 3
    await directory.alter_config("orders", {"retention.ms": "7"}, [])
    assert (await directory.by_name(["orders"]))["orders"].config == {"retention.ms": "7"}
    await directory.delete("orders")

    assert await lookups.exists("orders") == set()
    assert await directory.by_id([created.topic_id]) == {}


async def test_a_topic_created_again_is_distinct_from_the_old_one(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    old = await lookups.directory.create("orders", 1, {})
    assert await lookups.exists("orders") == {"orders"}
    await sequencer.topics.delete("orders")
    new = await sequencer.topics.create("orders", 1, {})

    lookups.directory.forget(old.topic_id)

    found = await lookups.directory.by_name(["orders"])
    assert found["orders"].topic_id == new.topic_id


async def test_the_cache_is_bounded(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer, topic_cache_entries=2)

    for number in range(50):
        await lookups.exists(f"nowhere-{number}")

    assert len(lookups.directory) <= 4


async def test_all_topics_are_always_looked_up_and_remembered(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    for name in ("a", "b"):
        await sequencer.topics.create(name, 1, {})

    assert names_of(await lookups.directory.all()) == ["a", "b"]
    await sequencer.topics.delete("a")

    assert names_of(await lookups.directory.all()) == ["b"]


def names_of(topics: Collection[Topic]) -> list[str]:
    return sorted(topic.name for topic in topics)


async def test_an_administrator_sees_a_change_made_elsewhere_and_so_do_later_lookups(
    sequencer: Sequencer,
) -> None:
    lookups = Lookups(sequencer)
    old = await sequencer.topics.create("orders", 1, {})
    assert await lookups.exists("orders", "payments") == {"orders"}
    await sequencer.topics.delete("orders")
    new = await sequencer.topics.create("orders", 2, {})
    await sequencer.topics.create("payments", 1, {})

    fresh = await lookups.directory.fresh(["orders", "payments", "nowhere"])

    assert fresh.keys() == {"orders", "payments"}
    assert fresh["orders"].topic_id == new.topic_id
    assert await lookups.exists("orders", "payments") == {"orders", "payments"}
    assert await lookups.directory.by_id([old.topic_id]) == {}


async def test_a_change_made_elsewhere_is_noticed_long_before_the_cache_is_old(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    directory = lookups.directory
    await sequencer.topics.create("orders", 1, {})
    await directory.notice_changes()

    for change, expected in (
        (sequencer.topics.add_partitions("orders", 2), (2, {})),
        (sequencer.topics.alter_config("orders", {"retention.ms": "7"}), (2, {"retention.ms": "7"})),
    ):
        await lookups.exists("orders", "payments")
        await change
        await directory.notice_changes()
        orders = (await directory.by_name(["orders"]))["orders"]
        assert (orders.partition_count, orders.config) == expected
    await sequencer.topics.delete("orders")
    await sequencer.topics.create("payments", 1, {})
    await directory.notice_changes()

    assert await lookups.exists("orders", "payments") == {"payments"}


async def test_entries_stay_while_nothing_changes(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    await sequencer.topics.create("orders", 1, {})
    await lookups.directory.notice_changes()
    await lookups.exists("orders")

    await lookups.directory.notice_changes()

    assert len(lookups.directory) == 2


async def test_an_answer_overtaken_by_a_change_is_not_kept(sequencer: Sequencer) -> None:
    """The lookup was sent before the change and is answered after it was noticed."""
    lookups = Lookups(sequencer)
    directory = lookups.directory
    await sequencer.topics.create("orders", 1, {})
    await directory.notice_changes()
    before = (await sequencer.topics.by_name(["orders"]))["orders"]
    await sequencer.topics.add_partitions("orders", 2)

    class Overtaken:
        """Topics whose lookups are answered with an earlier state."""

        async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
            await TopicDirectory.notice_changes(directory)
            return dict.fromkeys(names, before)

        def __getattr__(self, name: str) -> object:
            return getattr(sequencer.topics, name)

    directory._topics = Overtaken()  # type: ignore[assignment]
    await directory.by_name(["orders"])
    directory._topics = sequencer.topics

    assert (await directory.by_name(["orders"]))["orders"].partition_count == 2


class Counted:
    """Topics whose lookups are counted."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.asked: list[str] = []

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        self.asked += names
        return await self._topics.by_name(names)

    def __getattr__(self, name: str) -> object:
        return getattr(self._topics, name)


async def test_a_change_of_one_topic_costs_no_other_a_lookup(sequencer: Sequencer) -> None:
    lookups, counted = Lookups(sequencer), Counted(sequencer.topics)
    directory = lookups.directory
    directory._topics = counted  # type: ignore[assignment]
    for name in ("orders", "payments"):
        await sequencer.topics.create(name, 1, {})
    await directory.notice_changes()
    await lookups.exists("orders", "payments")
    counted.asked.clear()

    for number in range(20):
        await sequencer.topics.create(f"churn-{number}", 1, {})
        await sequencer.topics.add_partitions("payments", 2 + number)
        await directory.notice_changes()
        assert await lookups.exists("orders", "payments") == {"orders", "payments"}

    assert counted.asked == ["payments"] * 20
    assert (await directory.by_name(["payments"]))["payments"].partition_count == 21


async def test_an_unchanged_topic_is_looked_up_once(
    sequencer: Sequencer,
) -> None:
    lookups, counted = Lookups(sequencer), Counted(sequencer.topics)
    directory = lookups.directory
    directory._topics = counted  # type: ignore[assignment]
    await sequencer.topics.create("orders", 1, {})
    for _ in range(10):
        await directory.notice_changes()
        assert await lookups.exists("orders") == {"orders"}
        lookups.now_s += 4.0
    assert counted.asked == ["orders"]

    lookups.now_s += 5.1

    await lookups.exists("orders")
    assert counted.asked == ["orders"] * 2, "nothing was heard for too long"


async def test_too_many_changes_make_the_agent_look_everything_up_again(sequencer: Sequencer) -> None:
    lookups = Lookups(sequencer)
    await sequencer.topics.create("orders", 1, {})
    await lookups.directory.notice_changes()
    await lookups.exists("orders")
    await sequencer.topics.add_partitions("orders", 3)
    for number in range(1001):
        await sequencer.topics.alter_config("orders", {"retention.ms": str(number)})

    await lookups.directory.notice_changes()

    assert (await lookups.directory.by_name(["orders"]))["orders"].partition_count == 3
    [kept] = await sequencer.database.run("SELECT count(*) AS rows FROM changed_topics")
    assert kept.rows == 1000


async def test_the_answer_of_an_earlier_lookup_does_not_undo_this_agents_change(
    sequencer: Sequencer,
) -> None:
    lookups = Lookups(sequencer)
    directory = lookups.directory

    class Slow:
        """A lookup that is answered after a topic was created."""

        async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
            found = await sequencer.topics.by_name(names)
            directory._topics = sequencer.topics
            await directory.create("orders", 1, {})
            return found

    directory._topics = Slow()  # type: ignore[assignment]
    assert await lookups.exists("orders") == set()

    assert await lookups.exists("orders") == {"orders"}


async def test_a_statement_that_changes_no_topic_is_no_change(sequencer: Sequencer) -> None:
    await sequencer.topics.create("orders", 1, {})
    before = await sequencer.topics.changes()

    with pytest.raises(UnknownTopic):
        await sequencer.topics.delete("nowhere")

    assert (await sequencer.topics.changes(before.number)) == TopicChanges(number=before.number, topics=())
