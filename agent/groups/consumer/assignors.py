"""Server-side assignors of the new group protocol (KIP-848): `uniform` and `range`.

Pure: subscriptions, partition counts and the previous target in, the new target out. Both promise that
- every partition of a topic somebody subscribes to has exactly one owner, who subscribes to it;
- the same input gives the same target, and a target that is still right is given again unchanged (sticky);
- a partition moves only where balance asks for it: all others stay with whom they were.

`uniform` promises balance over all partitions: where all members subscribe to the same topics, their numbers of
partitions differ by at most one, a member that leaves moves only its own partitions, and one that joins takes no more
than its share. Where subscriptions differ, no chain of moves along subscriptions would bring two members nearer
(`uneven_subscriptions.py`).

`range` promises it per topic: each subscriber has the topic's share, rounded down or up. Topics with the same number of
partitions and the same subscribers are co-partitioned: who owns partition 3 of one owns it of all (for joins). Members
come in the order of their instance ids, dynamic ones after them by member id, so that a static member that returns
under a new member id stands where it stood.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from agent.groups.consumer.uneven_subscriptions import even_out
from agent.groups.events import Assignment
from storage.identifiers import Partition, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]
    """Those that exist, by name or by regular expression."""
    target: Assignment
    """What it was to have until now; empty for a new member."""


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], dict[str, Assignment]]
"""Takes the members and each topic's number of partitions, and returns a target for every member."""


def uniform(members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]) -> dict[str, Assignment]:
    ordered = sorted(members, key=lambda member: member.member_id)
    if not ordered:
        return {}
    if all(member.topics == ordered[0].topics for member in ordered):
        return _share_all(ordered, {topic: partition_counts[topic] for topic in sorted(ordered[0].topics)})
    subscribers = _subscribers(ordered)
    kept = _keep_valid(ordered, {topic: partition_counts[topic] for topic in subscribers})
    return even_out(kept, subscribers, {topic: partition_counts[topic] for topic in subscribers})


def range_(members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]) -> dict[str, Assignment]:
    ordered = sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
    targets: dict[str, dict[TopicId, frozenset[Partition]]] = {member.member_id: {} for member in ordered}
    by_id = {member.member_id: member for member in ordered}
    together: dict[tuple[int, tuple[str, ...]], list[TopicId]] = {}
    for topic, member_ids in _subscribers(ordered).items():
        together.setdefault((partition_counts[topic], tuple(member_ids)), []).append(topic)
    for (count, sharing), topics in together.items():
        shares = _share_numbers(
            {member_id: by_id[member_id].target for member_id in sharing}, list(map(Partition, range(count))), topics
        )
        for member_id, numbers in shares.items():
            if numbers:
                targets[member_id].update(dict.fromkeys(topics, frozenset(numbers)))
    return {**targets}


DEFAULT_ASSIGNOR: Final = "uniform"
ASSIGNORS: Final[Mapping[str, Assignor]] = {DEFAULT_ASSIGNOR: uniform, "range": range_}


def _subscribers(members: Iterable[Subscriber]) -> dict[TopicId, list[str]]:
    found: dict[TopicId, list[str]] = {}
    for member in members:
        for topic in member.topics:
            found.setdefault(topic, []).append(member.member_id)
    return found


def _keep_valid(
    members: Iterable[Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, dict[TopicId, set[Partition]]]:
    """Of each member's target, what exists, is subscribed to and was not claimed by a member before it."""
    free = {topic: set(map(Partition, range(count))) for topic, count in partition_counts.items()}
    kept: dict[str, dict[TopicId, set[Partition]]] = {}
    for member in members:
        mine: dict[TopicId, set[Partition]] = {}
        for topic, partitions in member.target.items():
            if topic in member.topics and (still := free[topic] & partitions):
                free[topic] -= still
                mine[topic] = still
        kept[member.member_id] = mine
    return kept


def _quotas(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """How many each may have, so that all `total` are had and nobody gives up more than it must: the odd ones go to
    those who have them, then to the first."""
    share, odd = divmod(total, len(sizes))
    quotas = dict.fromkeys(sizes, share)
    by_need = [member for member in sizes if sizes[member] > share] + [
        member for member in sizes if sizes[member] <= share
    ]
    for member in by_need[:odd]:
        quotas[member] += 1
    return quotas


def _share_all(members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]) -> dict[str, Assignment]:
    """All partitions of all topics over members that subscribe to the same."""
    kept = _keep_valid(members, partition_counts)
    sizes = {member: sum(map(len, mine.values())) for member, mine in kept.items()}
    quotas = _quotas(sizes, sum(partition_counts.values()))
    for member, mine in kept.items():
        _give_up(mine, sizes[member] - quotas[member])
    free = {topic: set(map(Partition, range(count))) for topic, count in partition_counts.items()}
    for mine in kept.values():
        for topic, held in mine.items():
            free[topic] -= held
    waiting = [member for member in kept if sizes[member] < quotas[member]]
    missing = {member: quotas[member] - sizes[member] for member in waiting}
    turn = 0
    for topic, partitions in free.items():
        for partition in sorted(partitions):
            turn %= len(waiting)
            member = waiting[turn]
            kept[member].setdefault(topic, set()).add(partition)
            missing[member] -= 1
            if missing[member] == 0:
                waiting.pop(turn)
            else:
                turn += 1
    return {
        member: {topic: frozenset(partitions) for topic, partitions in mine.items()} for member, mine in kept.items()
    }


def _give_up(mine: dict[TopicId, set[Partition]], excess: int) -> None:
    """The highest partition of the topic of which it has most, `excess` times."""
    for _ in range(excess):
        topic = max(mine, key=lambda topic: (len(mine[topic]), topic))
        mine[topic].remove(max(mine[topic]))
        if not mine[topic]:
            del mine[topic]


def _share_numbers(
    targets: Mapping[str, Assignment], numbers: Sequence[Partition], topics: Sequence[TopicId]
) -> dict[str, set[Partition]]:
    """Partition numbers, the same of all topics, over these members in this order. A number stays with whoever has it
    of most topics; those without an owner go out in ranges."""
    votes: dict[Partition, dict[str, int]] = {number: {} for number in numbers}
    for member, target in targets.items():
        for topic in topics:
            for number in target.get(topic, ()):
                if number in votes:
                    votes[number][member] = votes[number].get(member, 0) + 1
    had: dict[str, list[Partition]] = {member: [] for member in targets}
    for number, topics_had in votes.items():
        if topics_had:
            most = max(topics_had.values())
            had[next(member for member, count in topics_had.items() if count == most)].append(number)
    quotas = _quotas({member: len(mine) for member, mine in had.items()}, len(numbers))
    shares = {member: set(mine[: quotas[member]]) for member, mine in had.items()}
    taken = set().union(*shares.values())
    free = [number for number in numbers if number not in taken]
    for member, share in shares.items():
        missing = quotas[member] - len(share)
        share.update(free[:missing])
        free = free[missing:]
    return shares
