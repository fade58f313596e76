"""Server-side assignors of the new group protocol (KIP-848): `uniform` and `range`.

Pure: subscriptions, partition counts and the previous target come in, the new target goes out.

Promises of both:
- Every partition of a subscribed topic has exactly one owner, and the owner subscribes to the topic.
- The same input gives the same target. A target that is still right stays unchanged (sticky).
- A partition moves only if balance needs it. All others keep their owner.

`uniform` balances over all partitions. If all members subscribe to the same topics, their numbers of
partitions differ by at most one. A member that leaves moves only its own partitions, and one that joins takes
no more than its share. If subscriptions differ, no chain of moves, each to a subscriber of the moved
partition, could take a partition from one member and end at another that has two fewer. If that holds
already, nothing moves.

`range` balances per topic: each subscriber has the topic's share, rounded down or up. Topics with the same
number of partitions and the same subscribers are co-partitioned (for joins): one member owns partition 3 of
all of them. Members are ordered by instance id, then dynamic members by member id. So a static member that
returns under a new member id keeps its place.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from agent.groups.events import Assignment
from storage.identifiers import Partition, TopicId

Held: TypeAlias = dict[str, dict[TopicId, set[Partition]]]


def even_out(
    kept: Held, subscribers: Mapping[TopicId, Sequence[str]], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """Returns a target for every member of `kept`, which has what each keeps if balance allows it."""
    scales = _Scales(held=kept, subscribers=subscribers)
    scales.hand_out(partition_counts)
    scales.move_directly()
    scales.move_in_chains()
    return {
        member: {topic: frozenset(partitions) for topic, partitions in mine.items()}
        for member, mine in kept.items()
    }


@dataclass(slots=True)
class _Scales:
    held: Held
    subscribers: Mapping[TopicId, Sequence[str]]
    loads: dict[str, int] = field(init=False)
    heaps: dict[TopicId, list[tuple[int, str]]] = field(init=False)
    """The subscribers of each topic by load, the least loaded first. Entries may show a smaller load than the
    member has by now.
    """

    def __post_init__(self) -> None:
        self.loads = {member: sum(map(len, mine.values())) for member, mine in self.held.items()}
        self.heaps = {
            topic: sorted((self.loads[member], member) for member in members)
            for topic, members in self.subscribers.items()
        }

    def hand_out(self, partition_counts: Mapping[TopicId, int]) -> None:
        """Gives partitions without an owner to the least loaded subscriber. Topics with the fewest
        subscribers go first.
        """
        free = {topic: set(range(count)) for topic, count in partition_counts.items()}
        for mine in self.held.values():
            for topic, partitions in mine.items():
                free[topic] -= partitions
        for topic in sorted(free, key=lambda topic: (len(self.subscribers[topic]), topic)):
            for partition in sorted(free[topic]):
                member = self._least_loaded(topic)
                self.held[member].setdefault(topic, set()).add(Partition(partition))
                self.loads[member] += 1

    def move_directly(self) -> None:
        for member in sorted(self.loads, key=lambda member: (-self.loads[member], member)):
            for topic in sorted(self.held[member]):
                while topic in self.held[member]:
                    taker = self._least_loaded(topic)
                    if self.loads[taker] + 1 >= self.loads[member]:
                        break
                    self._move(topic, member, taker)

    def move_in_chains(self) -> None:
        """From the most loaded member down, searches breadth-first for a member with two fewer. A failed
        search leads nowhere for less loaded members either, so its members are not searched again.
        """
        in_vain: set[str] = set()
        waiting = [(-load, member) for member, load in self.loads.items()]
        heapq.heapify(waiting)
        while waiting:
            load, member = heapq.heappop(waiting)
            if member in in_vain or -load != self.loads[member]:
                continue
            chain = self._chain_from(member, in_vain)
            for topic, giver, taker in reversed(chain):
                self._move(topic, giver, taker)
            if chain:
                taker = chain[-1][2]
                for moved in (member, taker):
                    heapq.heappush(waiting, (-self.loads[moved], moved))

    def _chain_from(self, start: str, in_vain: set[str]) -> list[tuple[TopicId, str, str]]:
        """Returns the moves (topic, giver, taker) from `start` to a member with two fewer. Empty if there is
        no such chain: then everything that was searched is added to `in_vain`.
        """
        came: dict[str, tuple[TopicId, str] | None] = {start: None}
        topics_done: set[TopicId] = set()
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic in sorted(self.held[giver].keys() - topics_done):
                topics_done.add(topic)
                for taker in self.subscribers[topic]:
                    if taker in came or taker in in_vain:
                        continue
                    came[taker] = (topic, giver)
                    if self.loads[taker] + 2 <= self.loads[start]:
                        return _trace(came, taker)
                    queue.append(taker)
        in_vain.update(came)
        return []

    def _least_loaded(self, topic: TopicId) -> str:
        heap = self.heaps[topic]
        while heap[0][0] != self.loads[heap[0][1]]:
            heapq.heapreplace(heap, (self.loads[heap[0][1]], heap[0][1]))
        return heap[0][1]

    def _move(self, topic: TopicId, giver: str, taker: str) -> None:
        partition = max(self.held[giver][topic])
        self.held[giver][topic].remove(partition)
        if not self.held[giver][topic]:
            del self.held[giver][topic]
        self.held[taker].setdefault(topic, set()).add(partition)
        self.loads[giver] -= 1
        self.loads[taker] += 1


def _trace(came: Mapping[str, tuple[TopicId, str] | None], end: str) -> list[tuple[TopicId, str, str]]:
    chain = []
    taker = end
    while (step := came[taker]) is not None:
        topic, giver = step
        chain.append((topic, giver, taker))
        taker = giver
    chain.reverse()
    return chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]
    """The subscribed topics that exist, by name or by regular expression."""
    target: Assignment
    """Its target until now. Empty for a new member."""


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
    ordered = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id)
    )
    targets: dict[str, dict[TopicId, frozenset[Partition]]] = {member.member_id: {} for member in ordered}
    by_id = {member.member_id: member for member in ordered}
    together: dict[tuple[int, tuple[str, ...]], list[TopicId]] = {}
    for topic, member_ids in _subscribers(ordered).items():
        together.setdefault((partition_counts[topic], tuple(member_ids)), []).append(topic)
    for (count, sharing), topics in together.items():
        shares = _share_numbers(
            {member_id: by_id[member_id].target for member_id in sharing},
            list(map(Partition, range(count))),
            topics,
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
    """Returns for each member the part of its target that exists, is subscribed to and no earlier member
    claimed.
    """
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
    """Returns how many of `total` each member may have, so that no member gives up more than it must. The odd
    ones go to members that have them already, then to the first members.
    """
    share, odd = divmod(total, len(sizes))
    quotas = dict.fromkeys(sizes, share)
    by_need = [member for member in sizes if sizes[member] > share] + [
        member for member in sizes if sizes[member] <= share
    ]
    for member in by_need[:odd]:
        quotas[member] += 1
    return quotas


def _share_all(
    members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """Shares all partitions of all topics among members that subscribe to the same topics."""
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
        member: {topic: frozenset(partitions) for topic, partitions in mine.items()}
        for member, mine in kept.items()
    }


def _give_up(mine: dict[TopicId, set[Partition]], excess: int) -> None:
    """Gives up the highest partition of the topic of which it has most, `excess` times."""
    for _ in range(excess):
        topic = max(mine, key=lambda topic: (len(mine[topic]), topic))
        mine[topic].remove(max(mine[topic]))
        if not mine[topic]:
            del mine[topic]


def _share_numbers(
    targets: Mapping[str, Assignment], numbers: Sequence[Partition], topics: Sequence[TopicId]
) -> dict[str, set[Partition]]:
    """Shares partition numbers, the same for all topics, among these members in this order. A number stays
    with the member that has it of most topics. Numbers without an owner are given out in ranges.
    """
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
