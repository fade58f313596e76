"""Who owns what: a consistent hash ring per zone over the live agents (DESIGN §6, §7).

Pure. Promises that agents with the same view name the same owner, whatever order they learned of each other in, and
that an agent that comes or goes moves only its own share, about 1/n of the keys. `without` leaves suspects out of a
view, for those who route by it."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from uhashring import HashRing

from sequencer.agents import LiveAgent
from storage.identifiers import NodeId, Partition, TopicId

_POINTS_PER_AGENT = 160
"""Points on the ring per agent: with 160 the largest share among ten agents is about 1.2 times the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One view of the cluster. Immutable: a change of membership makes a new ring."""

    agents: tuple[LiveAgent, ...]
    _by_name: dict[str, LiveAgent]
    _by_zone: dict[str, HashRing]
    _everywhere: HashRing
    _left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, agents: Iterable[LiveAgent]) -> "Ring":
        """The ring of these agents; of two incarnations of a node the later one counts."""
        in_order = sorted(agents, key=lambda agent: (agent.node_id, agent.incarnation))
        by_name = {_name(agent.node_id): agent for agent in in_order}
        zones: dict[str, list[str]] = {}
        for name, agent in by_name.items():
            zones.setdefault(agent.address.zone, []).append(name)
        return cls(
            agents=tuple(by_name.values()),
            _by_name=by_name,
            _by_zone={zone: _ring_of(zones[zone]) for zone in sorted(zones)},
            _everywhere=_ring_of(list(by_name)),
        )

    def without(self, suspects: Set[NodeId]) -> "Ring":
        """The ring that the other agents would make; this one if all are suspects. Costs little: no point moves."""
        left = tuple(agent for agent in self.agents if agent.node_id not in suspects)
        if not left or len(left) == len(self.agents):
            return self
        zones = {agent.address.zone for agent in left}
        return replace(
            self,
            agents=left,
            _by_name={_name(agent.node_id): agent for agent in left},
            _by_zone={zone: ring for zone, ring in self._by_zone.items() if zone in zones},
            _left_out=self._left_out | frozenset(map(_name, suspects)),
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that have a live agent, in order."""
        return tuple(self._by_zone)

    def agent(self, node_id: NodeId) -> LiveAgent | None:
        return self._by_name.get(_name(node_id))

    def owner(self, zone: str, page_key: str) -> LiveAgent | None:
        """The agent of a zone that loads and keeps a page; None if the zone has no agent."""
        ring = self._by_zone.get(zone)
        return None if ring is None else self._first(ring, page_key)

    def partition_leader(self, zone: str, topic_id: TopicId, partition: Partition) -> LiveAgent | None:
        """The agent that a zone's clients are sent to, chosen among all agents if the zone has none; None without
        agents."""
        if not self.agents:
            return None
        ring = self._by_zone.get(zone, self._everywhere)
        return self._first(ring, f"{topic_id}/{partition}")

    def coordinator(self, key: str) -> LiveAgent | None:
        """The agent, among all, that coordinates what `key` names; None without agents."""
        return self._first(self._everywhere, key) if self.agents else None

    def replicas(self, topic_id: TopicId, partition: Partition) -> tuple[LiveAgent, ...]:
        """One agent per zone, in zone order."""
        key = f"{topic_id}/{partition}"
        return tuple(self._first(ring, key) for ring in self._by_zone.values())

    def _first(self, ring: HashRing, key: str) -> LiveAgent:
        """The agent at the first point behind the key that is not left out."""
        name: str = ring.get_node(key)
        if name in self._left_out:
            name = next(other for other in ring.iterate_nodes(key) if other not in self._left_out)
        return self._by_name[name]


def _name(node_id: NodeId) -> str:
    return str(node_id)


def _ring_of(names: list[str]) -> HashRing:
    return HashRing(nodes=names, vnodes=_POINTS_PER_AGENT)
