"""Which agent owns what: a consistent hash ring per zone over the live agents
(docs/design/membership.md#the-ring).

Pure. Promises:
- Agents with the same view name the same owner, in whatever order they learned of each other.
- An agent that comes or goes moves only its own share, about 1/n of the keys.
- The ring of a changed view costs only the change: `Ring.of` takes all other points from the previous ring.
- A point's place never changes between versions, so agents of two versions agree (uhashring's default places:
  MD5 of `<node id>-<number>`).

`without` leaves suspects out of a view, for routing."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import md5
from typing import Final

import numpy as np
import numpy.typing as npt

from sequencer.cluster.agents import LiveAgent
from storage.identifiers import NodeId, Partition, TopicId

_POINTS_PER_AGENT: Final = 160
"""Points on the ring per agent: with 160 the largest share among ten agents is about 1.2 times the mean."""
_AGENTS_KEPT: Final = 4_096
"""Agents whose points are remembered, 1.3 KB each: the ring of their zone and that of all zones both need
them."""


class _Circle:
    """The points of some agents, in order. Immutable."""

    __slots__ = ("_nodes", "_points", "_positions", "agents")

    def __init__(
        self, agents: frozenset[NodeId], points: npt.NDArray[np.uint64], nodes: npt.NDArray[np.int64]
    ) -> None:
        """`points` (uint64, sorted) and `nodes` (int64) have one entry per point; `nodes` has the point's
        agent."""
        self.agents = agents
        self._points = points
        self._nodes = nodes
        self._positions = points.data  # bisecting it costs a fifth of bisecting an array

    def of(self, agents: frozenset[NodeId]) -> "_Circle":
        """Makes the circle of these agents from this one."""
        gone, come = self.agents - agents, sorted(agents - self.agents)
        if not gone and not come:
            return self
        points, nodes = self._points, self._nodes
        if gone:
            kept = ~np.isin(nodes, list(gone))
            points, nodes = points[kept], nodes[kept]
        if come:
            new_points = np.concatenate([_points_of(node_id) for node_id in come])
            order = np.argsort(new_points, kind="stable")
            new_points = new_points[order]
            places = np.searchsorted(points, new_points)
            points = np.insert(points, places, new_points)
            nodes = np.insert(nodes, places, np.repeat(np.array(come, np.int64), _POINTS_PER_AGENT)[order])
        return _Circle(agents, points, nodes)

    def behind(self, position: int) -> NodeId:
        """Returns the agent of the first point after a position. There must be at least one agent."""
        place = bisect_right(self._positions, position)
        return NodeId(int(self._nodes[place if place < len(self._nodes) else 0]))

    def all_behind(self, position: int) -> Iterator[NodeId]:
        """Yields the agents in the order of the points after a position, each once per point."""
        place = bisect_right(self._positions, position)
        for part in (self._nodes[place:], self._nodes[:place]):
            yield from map(NodeId, part.tolist())


_NO_AGENTS: Final = _Circle(frozenset(), np.empty(0, np.uint64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One view of the cluster. Immutable: a change of membership makes a new ring."""

    agents: tuple[LiveAgent, ...]
    _by_id: dict[NodeId, LiveAgent]
    _by_zone: dict[str, _Circle]
    _everywhere: _Circle
    _left_out: frozenset[NodeId] = frozenset()

    @classmethod
    def of(cls, agents: Iterable[LiveAgent], before: "Ring | None" = None) -> "Ring":
        """Makes the ring of these agents. If a node has two incarnations, the later one counts. `before` is
        any ring with many of the same agents: it makes this cheaper, and changes nothing in the result."""
        in_order = sorted(agents, key=lambda agent: (agent.node_id, agent.incarnation))
        by_id = {agent.node_id: agent for agent in in_order}
        zones: dict[str, list[NodeId]] = {}
        for node_id, agent in by_id.items():
            zones.setdefault(agent.address.zone, []).append(node_id)
        known = {} if before is None else before._by_zone
        everywhere = _NO_AGENTS if before is None else before._everywhere
        return cls(
            agents=tuple(by_id.values()),
            _by_id=by_id,
            _by_zone={zone: known.get(zone, _NO_AGENTS).of(frozenset(zones[zone])) for zone in sorted(zones)},
            _everywhere=everywhere.of(frozenset(by_id)),
        )

    def without(self, suspects: Set[NodeId]) -> "Ring":
        """Returns the ring that the other agents would make; this one if all are suspects. It is cheap: no
        point moves."""
        left = tuple(agent for agent in self.agents if agent.node_id not in suspects)
        if not left or len(left) == len(self.agents):
            return self
        zones = {agent.address.zone for agent in left}
        return replace(
            self,
            agents=left,
            _by_id={agent.node_id: agent for agent in left},
            _by_zone={zone: circle for zone, circle in self._by_zone.items() if zone in zones},
            _left_out=self._left_out | suspects,
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that have a live agent, in order."""
        return tuple(self._by_zone)

    def agent(self, node_id: NodeId) -> LiveAgent | None:
        return self._by_id.get(node_id)

    def owner(self, zone: str, page_key: str) -> LiveAgent | None:
        """Returns the agent of a zone that loads and keeps a page; None if the zone has no agent."""
        circle = self._by_zone.get(zone)
        return None if circle is None else self._first(circle, _position_of(page_key))

    def partition_leader(self, zone: str, topic_id: TopicId, partition: Partition) -> LiveAgent | None:
        """Returns the agent that a zone's clients are sent to. If the zone has no agent, chooses among all.
        None without agents."""
        if not self.agents:
            return None
        return self._first(self._by_zone.get(zone, self._everywhere), _position_of(f"{topic_id}/{partition}"))

    def coordinator(self, key: str) -> LiveAgent | None:
        """Returns the agent, among all, that coordinates what `key` names. None without agents."""
        return self._first(self._everywhere, _position_of(key)) if self.agents else None

    def replicas(self, topic_id: TopicId, partition: Partition) -> tuple[LiveAgent, ...]:
        """Returns one agent per zone, in the order of zones."""
        position = _position_of(f"{topic_id}/{partition}")
        return tuple(self._first(circle, position) for circle in self._by_zone.values())

    def _first(self, circle: _Circle, position: int) -> LiveAgent:
        """Returns the agent of the first point after a position, suspects left out."""
        node_id = circle.behind(position)
        if node_id in self._left_out:
            node_id = next(other for other in circle.all_behind(position) if other not in self._left_out)
        return self._by_id[node_id]


@lru_cache(maxsize=_AGENTS_KEPT)
def _points_of(node_id: NodeId) -> npt.NDArray[np.uint64]:
    places = (_position_of(f"{node_id}-{number}") for number in range(_POINTS_PER_AGENT))
    return np.fromiter(places, np.uint64, _POINTS_PER_AGENT)


def _position_of(key: str) -> int:
    """The first 64 bits of the key's MD5. Two points at one place do not occur in any real cluster."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:8], "big")
