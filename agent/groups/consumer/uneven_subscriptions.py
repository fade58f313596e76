"""Balance where members subscribe to different topics: part of the `uniform` assignor.

Promises that every partition has one owner among its subscribers, and that no chain of moves, each to a subscriber of
the partition moved, would take one from a member and end at another that has two fewer. Where that holds already,
nothing moves.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.groups.events import Assignment
from storage.identifiers import Partition, TopicId

Held: TypeAlias = dict[str, dict[TopicId, set[Partition]]]


def even_out(
    kept: Held, subscribers: Mapping[TopicId, Sequence[str]], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """A target for every member of `kept`, which says what each keeps if balance allows."""
    scales = _Scales(held=kept, subscribers=subscribers)
    scales.hand_out(partition_counts)
    scales.move_directly()
    scales.move_in_chains()
    return {
        member: {topic: frozenset(partitions) for topic, partitions in mine.items()} for member, mine in kept.items()
    }


@dataclass(slots=True)
class _Scales:
    held: Held
    subscribers: Mapping[TopicId, Sequence[str]]
    loads: dict[str, int] = field(init=False)
    heaps: dict[TopicId, list[tuple[int, str]]] = field(init=False)
    """Per topic its subscribers by load, the least loaded first; entries may say less than a member has by now."""

    def __post_init__(self) -> None:
        self.loads = {member: sum(map(len, mine.values())) for member, mine in self.held.items()}
        self.heaps = {
            topic: sorted((self.loads[member], member) for member in members)
            for topic, members in self.subscribers.items()
        }

    def hand_out(self, partition_counts: Mapping[TopicId, int]) -> None:
        """What nobody has goes to the least loaded subscriber, topics with the least choice first."""
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
        """From the most loaded down, a breadth-first search for a member with two fewer. What a search in vain went
        through leads nowhere for the less loaded either, and is not entered again."""
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
        """The moves (topic, giver, taker) from `start` to a member with two fewer; none if there is no such chain, and
        then all that was searched is added to `in_vain`."""
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
