"""The list of which instance has the state of which partitions: what it costs, and how long it may be."""

from collections import Counter
from typing import Any, ClassVar
from uuid import UUID

from agent.groups.events import Endpoint, EndpointPartitions, Tasks, TopicShape, TopicsSeen
from agent.groups.settings import GroupSettings
from agent.groups.streams.streams_members import StreamsMember
from agent.groups.streams.streams_membership import StreamsMembership
from agent.groups.streams.streams_roster import StreamsRoster
from agent.groups.streams.task_endpoints import TaskEndpoints
from agent.groups.streams.topology import topology_of
from storage.identifiers import Partition, TopicId
from tests.agent.groups.streams.streams_world import a_part

TOPICS = ("clicks", "views")


class Watched(StreamsMember):
    """Counts how often the endpoints of all members are read."""

    __slots__ = ()
    reads: ClassVar[Counter[str]] = Counter()

    def __getattribute__(self, name: str) -> Any:
        Watched.reads[name] += 1
        return super().__getattribute__(name)


def a_group(partitions: int, **settings: int) -> StreamsMembership:
    group = StreamsMembership(GroupSettings(**settings), StreamsRoster(None), 0)
    shapes = {
        name: TopicShape(topic_id=TopicId(UUID(int=number)), partition_count=partitions)
        for number, name in enumerate(TOPICS, start=1)
    }
    group.adopt(topology_of(0, [a_part("0", *TOPICS)]), 0)
    group.see(TopicsSeen(topics=shapes, asked=group.wanted()), 0)
    return group


def a_member(number: int, *tasks: int, **values: Any) -> StreamsMember:
    assigned = Tasks(active={"0": frozenset(map(Partition, tasks))} if tasks else {})
    endpoint = Endpoint(host=f"host{number:05}", port=80)
    return Watched(member_id=f"m{number}", assigned=assigned, **({"endpoint": endpoint} | values))


def look(endpoints: TaskEndpoints, group: StreamsMembership) -> tuple[int, tuple[EndpointPartitions, ...]]:
    epoch, known = endpoints.look(group)
    assert known is not None
    return epoch, known


def test_a_change_costs_one_look_at_each_member_and_one_new_list() -> None:
    members = 500
    group, endpoints = a_group(members + 1), TaskEndpoints()
    for number in range(members):
        group.roster.put(a_member(number, number))
    first_epoch, first = look(endpoints, group)
    Watched.reads.clear()

    group.roster.put(a_member(7, 7, members))
    Watched.reads.clear()
    epoch, known = look(endpoints, group)

    assert Watched.reads["endpoint"] <= 2 * members
    assert Watched.reads["assigned"] <= 2 * members
    assert epoch != first_epoch
    assert known[7].active == {name: frozenset({7, members}) for name in TOPICS}
    assert [one for one, before in zip(known, first, strict=True) if one is not before] == [known[7]]


def test_members_with_one_endpoint_are_listed_together_in_the_order_of_endpoints() -> None:
    group = a_group(4)
    shared = Endpoint(host="a", port=80)
    group.roster.put(a_member(1, 0))
    group.roster.put(a_member(2, 1, endpoint=shared))
    group.roster.put(a_member(3, 2, endpoint=shared))
    group.roster.put(a_member(4, 3, endpoint=None))

    _, known = look(TaskEndpoints(), group)

    assert [(one.endpoint.host, one.active.get("clicks")) for one in known] == [
        ("a", frozenset({1, 2})),
        ("host00001", frozenset({0})),
    ]


def test_the_epoch_follows_from_the_endpoints_alone() -> None:
    group, endpoints = a_group(4), TaskEndpoints()
    group.roster.put(a_member(1, 0))
    group.roster.put(a_member(2, 1))
    before, _ = look(endpoints, group)

    group.roster.put(a_member(2, 1, epoch=9))

    assert look(endpoints, group)[0] == look(TaskEndpoints(), group)[0] == before
    group.roster.put(a_member(2, 1, 2))
    assert look(endpoints, group)[0] == look(TaskEndpoints(), group)[0] != before


def test_a_list_that_would_be_too_long_is_empty_until_it_fits_again() -> None:
    size = (8 + len("host00001")) + sum(4 + len(name) + 4 * 100 for name in TOPICS)
    group, endpoints = a_group(1_000, group_streams_max_endpoint_bytes=2 * size), TaskEndpoints()
    group.roster.put(a_member(1, *range(100)))
    group.roster.put(a_member(2, *range(100, 200)))
    fits = look(endpoints, group)
    assert len(fits[1]) == 2

    group.roster.put(a_member(2, *range(100, 201)))
    assert look(endpoints, group) == (0, ())
    group.roster.put(a_member(2, *range(100, 200)))
    assert look(endpoints, group) == fits

    for number in range(3, 50):
        group.roster.put(a_member(number))
    assert look(endpoints, group) == (0, ())
