"""The promises of the server-side assignors, on random groups."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.groups.consumer.assignors import ASSIGNORS, Assignor, Subscriber, range_, uniform
from agent.groups.events import Assignment
from agent.groups.partition_sets import partitions_of
from storage.identifiers import Partition, TopicId

TOPICS = [TopicId(UUID(int=number + 1)) for number in range(5)]

Targets = Mapping[str, Assignment]
Counts = Mapping[TopicId, int]

every_assignor = pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())


def a_member(number: int, topics: Sequence[TopicId] = TOPICS, instance: str | None = None) -> Subscriber:
    return Subscriber(member_id=f"m{number:03}", instance_id=instance, topics=frozenset(topics), target={})


def going_on(members: Sequence[Subscriber], targets: Targets) -> list[Subscriber]:
    return [replace(member, target=targets.get(member.member_id, {})) for member in members]


def moved(before: Targets, after: Targets) -> set[tuple[TopicId, Partition]]:
    """Partitions that moved from one member to another."""
    owner = {one: member for member, target in after.items() for one in partitions_of(target)}
    return {
        one
        for member, target in before.items()
        for one in partitions_of(target)
        if owner.get(one, member) != member
    }


def sizes(targets: Targets) -> list[int]:
    return [len(list(partitions_of(target))) for target in targets.values()]


counts = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})
even_members = st.integers(1, 9).map(lambda count: [a_member(number) for number in range(count)])
uneven_members = st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=9).map(
    lambda subscriptions: [a_member(number, sorted(topics)) for number, topics in enumerate(subscriptions)]
)
any_members = st.one_of(even_members, uneven_members)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Subscriber], Counts, Targets]:
    """Members after a few changes of everything, with targets that may be old."""
    members, topic_counts = draw(any_members), draw(counts)
    targets: Targets = {}
    for _ in range(draw(st.integers(0, 3))):
        targets = draw(st.sampled_from(list(ASSIGNORS.values())))(going_on(members, targets), topic_counts)
        members, topic_counts = draw(any_members), draw(counts)
    return members, topic_counts, targets


@every_assignor
@settings(max_examples=100)
@given(history=histories())
def test_each_partition_goes_to_one_of_its_subscribers(
    assign: Assignor, history: tuple[list[Subscriber], Counts, Targets]
) -> None:
    members, topic_counts, targets = history

    assigned = assign(going_on(members, targets), topic_counts)

    given_out = [one for target in assigned.values() for one in partitions_of(target)]
    wanted = {topic for member in members for topic in member.topics}
    assert sorted(given_out) == [
        (topic, number) for topic in sorted(wanted) for number in range(topic_counts[topic])
    ]
    assert assigned.keys() == {member.member_id for member in members}
    for member in members:
        assert assigned[member.member_id].keys() <= member.topics
        assert all(assigned[member.member_id].values())


@every_assignor
@settings(max_examples=100)
@given(history=histories())
def test_nothing_moves_while_nothing_changes(
    assign: Assignor, history: tuple[list[Subscriber], Counts, Targets]
) -> None:
    members, topic_counts, targets = history
    assigned = assign(going_on(members, targets), topic_counts)

    again = assign(going_on(members, assigned), topic_counts)

    assert again == assigned


@settings(max_examples=100)
@given(history=histories(), members=even_members)
def test_uniform_gives_members_of_one_subscription_equal_counts_up_to_one(
    history: tuple[list[Subscriber], Counts, Targets], members: list[Subscriber]
) -> None:
    _, topic_counts, targets = history

    had = sizes(uniform(going_on(members, targets), topic_counts))

    assert max(had) - min(had) <= 1


@settings(max_examples=100)
@given(history=histories())
def test_uniform_leaves_no_single_move_that_would_even_members_out(
    history: tuple[list[Subscriber], Counts, Targets],
) -> None:
    members, topic_counts, targets = history

    assigned = uniform(going_on(members, targets), topic_counts)

    load = {member: len(list(partitions_of(target))) for member, target in assigned.items()}
    for member in members:
        for topic in assigned[member.member_id]:
            takers = [load[other.member_id] for other in members if topic in other.topics]
            assert load[member.member_id] - min(takers) <= 1


def test_uniform_evens_out_along_chains_of_subscriptions() -> None:
    first, second = TOPICS[:2]
    members = [a_member(0, [first]), a_member(1, [first, second]), a_member(2, [second])]
    held = {
        "m000": {first: frozenset(map(Partition, range(4)))},
        "m001": {second: frozenset(map(Partition, range(3)))},
        "m002": {second: frozenset(map(Partition, range(3, 5)))},
    }

    assigned = uniform(going_on(members, held), {first: 4, second: 5})

    assert sizes(assigned) == [3, 3, 3]
    assert len(moved(held, assigned)) == 2


@given(
    members=even_members.filter(lambda members: len(members) > 1),
    topic_counts=counts,
    leaves=st.integers(0, 8),
)
def test_uniform_moves_only_the_partitions_of_a_member_that_left(
    members: list[Subscriber], topic_counts: Counts, leaves: int
) -> None:
    before = uniform(members, topic_counts)
    gone = members.pop(leaves % len(members)).member_id

    after = uniform(going_on(members, before), topic_counts)

    assert moved(before, after) == set(partitions_of(before[gone]))


@given(members=even_members, topic_counts=counts)
def test_uniform_moves_a_joining_member_its_share_and_nothing_else(
    members: list[Subscriber], topic_counts: Counts
) -> None:
    before = uniform(members, topic_counts)
    members.append(a_member(999))

    after = uniform(going_on(members, before), topic_counts)

    assert moved(before, after) == set(partitions_of(after["m999"]))


@settings(max_examples=100)
@given(history=histories())
def test_range_shares_each_topic_evenly(history: tuple[list[Subscriber], Counts, Targets]) -> None:
    members, topic_counts, targets = history

    assigned = range_(going_on(members, targets), topic_counts)

    for topic in TOPICS:
        had = [len(assigned[member.member_id].get(topic, ())) for member in members if topic in member.topics]
        assert not had or max(had) - min(had) <= 1


@given(history=histories(), members=even_members, count=st.integers(0, 12))
def test_range_gives_the_same_numbers_of_co_partitioned_topics_to_one_member(
    history: tuple[list[Subscriber], Counts, Targets], members: list[Subscriber], count: int
) -> None:
    _, _, targets = history

    assigned = range_(going_on(members, targets), dict.fromkeys(TOPICS, count))

    for target in assigned.values():
        assert len(set(target.values())) <= 1


@given(
    members=even_members.filter(lambda members: len(members) > 1),
    topic_counts=counts,
    leaves=st.integers(0, 8),
)
def test_range_moves_only_the_partitions_of_a_member_that_left(
    members: list[Subscriber], topic_counts: Counts, leaves: int
) -> None:
    before = range_(members, topic_counts)
    gone = members.pop(leaves % len(members)).member_id

    after = range_(going_on(members, before), topic_counts)

    assert moved(before, after) == set(partitions_of(before[gone]))


def test_range_gives_out_ranges_in_the_order_of_instance_ids() -> None:
    topic = TOPICS[0]
    members = [a_member(0, [topic]), a_member(1, [topic], "z"), a_member(2, [topic], "a")]

    assigned = range_(members, {topic: 7})

    assert {member: sorted(target[topic]) for member, target in assigned.items()} == {
        "m002": [0, 1, 2],
        "m001": [3, 4],
        "m000": [5, 6],
    }


@every_assignor
def test_one_of_five_hundred_members_leaves_and_only_its_partitions_move(assign: Assignor) -> None:
    topics = [TopicId(UUID(int=number)) for number in range(20)]
    members = [a_member(number, topics) for number in range(500)]
    before = assign(members, dict.fromkeys(topics, 50))

    after = assign(going_on(members[1:], before), dict.fromkeys(topics, 50))

    assert moved(before, after) == set(partitions_of(before["m000"]))
