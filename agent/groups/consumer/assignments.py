"""Sets of partitions by topic id, as the new group protocol assigns them (pure). No topic is there without any."""

from collections.abc import Callable, Iterator

from agent.groups.events import Assignment
from storage.identifiers import Partition, TopicId

NOTHING: Assignment = {}


def partitions_of(assignment: Assignment) -> Iterator[tuple[TopicId, Partition]]:
    for topic, partitions in assignment.items():
        for partition in partitions:
            yield topic, partition


def united(one: Assignment, other: Assignment) -> Assignment:
    if not other:
        return one
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in one.keys() | other.keys()}


def common(one: Assignment, other: Assignment) -> Assignment:
    return _tidy({topic: partitions & other[topic] for topic, partitions in one.items() if topic in other})


def without(one: Assignment, other: Assignment) -> Assignment:
    return _tidy({topic: partitions - other.get(topic, frozenset()) for topic, partitions in one.items()})


def chosen(assignment: Assignment, choose: Callable[[TopicId, Partition], bool]) -> Assignment:
    """What of it `choose` says yes to."""
    return _tidy(
        {
            topic: frozenset(partition for partition in partitions if choose(topic, partition))
            for topic, partitions in assignment.items()
        }
    )


def is_part(one: Assignment, other: Assignment) -> bool:
    """Whether all of `one` is in `other`."""
    return all(partitions <= other.get(topic, frozenset()) for topic, partitions in one.items())


def _tidy(assignment: dict[TopicId, frozenset[Partition]]) -> Assignment:
    return {topic: partitions for topic, partitions in assignment.items() if partitions}
