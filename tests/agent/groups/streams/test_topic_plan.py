"""Tasks and internal topics of a topology, and topologies that cannot be."""

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.groups.events import StatusCode, TopicShape
from agent.groups.settings import GroupSettings
from agent.groups.streams.topic_plan import TopicPlan, plan_topics
from agent.groups.streams.topology import (
    InvalidTopology,
    Subtopology,
    Topology,
    check_topology,
    read_topology,
    topology_document,
    topology_of,
)
from storage.identifiers import TopicId
from tests.agent.groups.streams.streams_world import WORD_COUNT, a_part, a_topic


def planned(*parts: Subtopology, most_tasks: int = 1_000, **topics: int) -> TopicPlan:
    shapes = {
        name: TopicShape(topic_id=TopicId(UUID(int=number)), partition_count=count)
        for number, (name, count) in enumerate(topics.items(), start=1)
    }
    return plan_topics(topology_of(0, parts), shapes, most_tasks=most_tasks)


def missing(plan: TopicPlan) -> dict[str, int]:
    return {topic.name: topic.partition_count for topic in plan.missing}


def test_internal_topics_follow_the_widest_source() -> None:
    parts = WORD_COUNT.subtopologies

    first = planned(*parts, lines=4)
    then = planned(*parts, lines=4, words=4, counts=4)

    assert missing(first) == {"words": 4, "counts": 4}
    assert first.problem is not None
    assert first.problem.code is StatusCode.MISSING_INTERNAL_TOPICS
    assert (then.problem, then.task_counts) == (None, {"0": 4, "1": 4})


def test_counts_pass_through_a_chain_of_repartition_topics_in_any_order() -> None:
    parts = [
        a_part("a", repartition_sources=(a_topic("third"),), changelogs=(a_topic("store"),)),
        a_part("b", repartition_sources=(a_topic("second"),), repartition_sinks=("third",)),
        a_part("c", repartition_sources=(a_topic("first"),), repartition_sinks=("second",)),
        a_part("d", "lines", "more", repartition_sinks=("first",)),
    ]

    plan = planned(*parts, lines=2, more=5)

    assert missing(plan) == {"first": 5, "second": 5, "third": 5, "store": 5}


def derived_in_rounds(parts: tuple[Subtopology, ...], known: dict[str, int]) -> dict[str, int]:
    """Looks at all subtopologies in each round. Returns the counts that can be derived."""
    counts = dict(known)
    waiting = {topic.name for part in parts for topic in part.repartition_sources} - counts.keys()
    while waiting:
        widest: dict[str, int] = {}
        unclear: set[str] = set()
        for part in parts:
            read = [counts.get(name, 0) for name in part.all_sources]
            for name in waiting & set(part.repartition_sinks):
                widest[name] = max(widest.get(name, 0), *read)
                if 0 in read:
                    unclear.add(name)
        found = {name: count for name, count in widest.items() if name not in unclear}
        found = found or {name: count for name, count in widest.items() if count}
        if not found:
            break
        counts |= found
        waiting -= found.keys()
    return counts


INNER = tuple("abcdefgh")
SOME = st.sets(st.sampled_from(INNER), max_size=3)
PARTS = st.lists(st.tuples(st.sets(st.sampled_from("xyz"), max_size=1), SOME, SOME), min_size=1, max_size=12)


@given(PARTS, st.dictionaries(st.sampled_from(INNER), st.integers(1, 9), max_size=2))
def test_counts_are_those_of_rounds_over_all_subtopologies(
    drawn: list[tuple[set[str], set[str], set[str]]], fixed: dict[str, int]
) -> None:
    users = {"x": 2, "y": 3, "z": 5}
    topology = topology_of(
        0,
        [
            a_part(
                str(number),
                *(outer or ({"x"} - inner if not inner else ())),
                repartition_sources=tuple(a_topic(name, fixed.get(name, 0)) for name in inner),
                repartition_sinks=tuple(sinks),
            )
            for number, (outer, inner, sinks) in enumerate(drawn)
        ],
    )
    repartition = {topic.name for part in topology.subtopologies for topic in part.repartition_sources}
    known = users | {name: count for name, count in fixed.items() if name in repartition}

    plan = planned(*topology.subtopologies, **users)

    expected = derived_in_rounds(topology.subtopologies, known)
    if repartition <= expected.keys():
        assert missing(plan) == {name: expected[name] for name in repartition}
    else:
        assert plan.problem is not None
        assert str(sorted(repartition - expected.keys())[0]) in plan.problem.detail
        assert not plan.partition_counts


class Watched(Subtopology):
    """Counts how often its sources are read."""

    __slots__ = ()
    reads: ClassVar[int] = 0

    @property
    def all_sources(self) -> Iterator[str]:
        Watched.reads += 1
        yield from self.source_topics
        for topic in self.repartition_sources:
            yield topic.name


@pytest.mark.parametrize("loops", [False, True])
def test_a_long_chain_of_repartition_topics_is_read_a_few_times(*, loops: bool) -> None:
    last = 500
    parts = tuple(
        Watched(
            subtopology_id=str(number),
            source_topics=() if number else ("lines",),
            repartition_sources=(a_topic(f"t{number}"),) if number else (),
            repartition_sinks=(f"t{number + 1}", *((f"t{number}",) if loops and number else ())),
            changelogs=(),
            copartitioned=(),
        )
        for number in reversed(range(last + 1))
    )
    ending = a_part("end", repartition_sources=(a_topic(f"t{last + 1}"),))
    shapes = {"lines": TopicShape(topic_id=TopicId(UUID(int=1)), partition_count=3)}
    Watched.reads = 0

    plan = plan_topics(Topology(epoch=0, subtopologies=(*parts, ending)), shapes, most_tasks=10_000)

    assert set(missing(plan).values()) == {3}
    assert len(plan.missing) == last + 1
    assert Watched.reads <= 3 * len(parts)


def test_a_fixed_count_is_kept_and_copartitioned_topics_adapt_to_it() -> None:
    fixed, free = a_topic("fixed", 6), a_topic("free")
    parts = [
        a_part("0", "lines", repartition_sinks=("fixed", "free")),
        a_part("1", repartition_sources=(fixed, free), copartitioned=(("fixed", "free"),)),
    ]

    assert missing(planned(*parts, lines=2)) == {"fixed": 6, "free": 6}


@pytest.mark.parametrize(
    ("parts", "topics", "code", "says"),
    [
        ([a_part("0", "lines")], {}, StatusCode.MISSING_SOURCE_TOPICS, "lines"),
        (
            [a_part("0", *(f"t{number:03}" for number in range(100)))],
            {},
            StatusCode.MISSING_SOURCE_TOPICS,
            "t019, and 80 more.",
        ),
        (
            [a_part("0", "one", "two", copartitioned=(("one", "two"),))],
            {"one": 2, "two": 3},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "one (2), two (3)",
        ),
        (
            [a_part("0", "lines", changelogs=(a_topic("store"),))],
            {"lines": 2, "store": 3},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "store has 3 partitions. The topology needs 2",
        ),
        (
            [a_part("0", repartition_sources=(a_topic("loop"),), repartition_sinks=("loop",))],
            {},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "loop",
        ),
        ([a_part("0", "lines")], {"lines": 1_001}, StatusCode.INCORRECTLY_PARTITIONED_TOPICS, "MAX_TASKS"),
    ],
)
def test_there_are_no_tasks_while_topics_do_not_fit(
    parts: list[Subtopology], topics: dict[str, int], code: StatusCode, says: str
) -> None:
    plan = planned(*parts, **topics)

    assert plan.problem is not None
    assert plan.problem.code is code
    assert says in plan.problem.detail
    assert not plan.task_counts
    assert not plan.missing


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([a_part("0", "lines"), a_part("0", "lines")], "same id"),
        ([a_part("", "lines")], "1 to 249"),
        ([a_part("0")], "no source topics"),
        ([a_part("0", "no/name")], "illegal"),
        ([a_part("0", "lines", copartitioned=(("other",),))], "copartitions other"),
        ([a_part("0", "lines", changelogs=(a_topic("store", 3),))], "follows its tasks"),
        ([a_part("0", "lines", repartition_sinks=("words",))], "No subtopology reads"),
        ([a_part("0", repartition_sources=(a_topic("words", 10_001),))], "MAX_PARTITIONS_PER_TOPIC"),
        ([a_part("0", repartition_sources=(a_topic("words", -1),))], "-1 partitions"),
        ([a_part("0", "lines", changelogs=(a_topic("store", config={"a": "\0"}),))], "NUL"),
        ([a_part(str(number), "lines") for number in range(2_001)], "MAX_TOPICS"),
        (
            [a_part("0", "lines", changelogs=(a_topic("store", config={"a": "x" * 2_000_000}),))],
            "MAX_TOPOLOGY_BYTES",
        ),
        (
            [
                a_part("0", "lines", changelogs=(a_topic("store"),)),
                a_part("1", "lines", changelogs=(a_topic("store", config={"retention.ms": "1"}),)),
            ],
            "two definitions",
        ),
    ],
)
def test_a_topology_that_cannot_be_is_refused(parts: list[Subtopology], says: str) -> None:
    with pytest.raises(InvalidTopology, match=says):
        check_topology(topology_of(0, parts), GroupSettings(), 10_000)


def test_the_order_of_a_topologys_parts_means_nothing() -> None:
    parts: dict[str, Any] = {"changelogs": (a_topic("x"), a_topic("y")), "copartitioned": (("b", "a"),)}
    turned: dict[str, Any] = {"changelogs": (a_topic("y"), a_topic("x")), "copartitioned": (("a", "b"),)}

    one = topology_of(0, [a_part("0", "a", "b", **parts), a_part("1", "c")])
    other = topology_of(0, [a_part("1", "c"), a_part("0", "b", "a", **turned)])

    assert one == other
    check_topology(one, GroupSettings(), 10_000)
    assert read_topology(topology_document(one)) == one
