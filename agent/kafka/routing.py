"""Which agent Metadata names for a partition, and when a connection is told that it has moved (DESIGN §7).

"Leader" is a routing hint: any agent serves any partition. The choice is the ring's, among the agents of the client's
zone.
"""

from dataclasses import dataclass

from agent.kafka.context import RequestContext
from cache_ring.ring import Ring
from sequencer.agents import LiveAgent
from storage.identifiers import NodeId, Partition, TopicId

NO_NODE = NodeId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What Metadata says of one partition."""

    leader: NodeId
    replicas: tuple[NodeId, ...]


class RoutingTable:
    """The routes of one view of the ring, computed once per partition and zone. Bounded by `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._ring: Ring | None = None
        self._routes: dict[tuple[str, TopicId, Partition], Route] = {}

    def route(self, ring: Ring, zone: str, topic_id: TopicId, partition: Partition) -> Route:
        if ring is not self._ring or len(self._routes) >= self._max_entries:
            self._ring = ring
            self._routes.clear()
        key = (zone, topic_id, partition)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _route(ring, zone, topic_id, partition)
        return route


def _route(ring: Ring, zone: str, topic_id: TopicId, partition: Partition) -> Route:
    leader = ring.partition_leader(zone, topic_id, partition)
    replicas = tuple(agent.node_id for agent in ring.replicas(topic_id, partition))
    if leader is None:
        return Route(leader=NO_NODE, replicas=replicas)
    return Route(
        leader=leader.node_id, replicas=replicas if leader.node_id in replicas else (leader.node_id, *replicas)
    )


def agents_of(context: RequestContext) -> tuple[LiveAgent, ...]:
    """The agents a client may be told of."""
    return context.parts.membership.ring.agents


def route_of(context: RequestContext, topic_id: TopicId, partition: Partition) -> Route:
    """The agent for a partition among those of the client's zone, and one replica per zone."""
    return context.parts.routes.route(context.parts.membership.ring, context.client_zone, topic_id, partition)


def has_moved(context: RequestContext, topic_id: TopicId, partition: Partition) -> bool:
    """Whether to answer NOT_LEADER_OR_FOLLOWER: the ring now names another agent, and this connection was not told so
    before.

    It is told for `redirect_window_s`, since what it has pipelined behind the first such answer is better refused too
    than written out of order. Afterwards it is served: views of the ring may differ, and a wrong route costs a little,
    a refused client everything.
    """
    self_ = context.parts.membership.self_
    leader = route_of(context, topic_id, partition).leader
    if self_ is None or leader in (NO_NODE, self_.node_id):
        return False
    redirected = context.connection.redirected
    first_told_s = redirected.get((topic_id, partition))
    if first_told_s is None:
        if len(redirected) >= context.settings.max_redirects_per_connection:
            return False
        redirected[topic_id, partition] = context.received_at_s
        return True
    return context.received_at_s < first_told_s + context.settings.redirect_window_s
