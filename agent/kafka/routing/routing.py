"""Which agents clients see, which agent to ask for a partition or a group, and when a connection is
redirected because a partition moved (docs/design/zones.md#partitions-that-move).

A leader is only a routing hint: any agent serves any partition. The ring chooses it among the agents of the
client's zone. Behind one address (`one_address`), clients see one node, whichever agents stand behind it, and
no partition ever moves.

A client sees the addresses of the listener that it came to. While the agents' listeners differ, it does not
see the agents that lack its listener, and the agent that it asks serves their partitions.

A client names its zone in its `client.id` (docs/design/zones.md#the-choice-of-an-agent): `tidelog_zone=a`
anywhere in the id, separated by one of `,;&|` or white space. The spellings for other diskless logs mean the
same: `diskless_az=`, `ws_az=`, `warpstream_az=`. The first one counts.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesMembership
from agent.settings import split_address
from cache_ring.ring.ring import Ring
from sequencer.cluster.agents import LiveAgent
from storage.identifiers import NodeId, Partition, TopicId

_ZONE = re.compile(
    r"(?:^|[,;&|\s])(?:tidelog_zone|diskless_az|ws_az|warpstream_az)=([A-Za-z0-9._-]{1,64})(?![A-Za-z0-9._-])"
)


@lru_cache(maxsize=4096)
def zone_of_client(client_id: str | None) -> str | None:
    found = _ZONE.search(client_id or "")
    return found.group(1) if found else None


NO_NODE = NodeId(-1)
ONE_NODE = NodeId(0)
"""The node that stands for all agents behind one address. Agents' own ids begin at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An agent, or all of them behind one address, as clients see it."""

    node_id: NodeId
    host: str
    port: int
    zone: str | None
    """None: no particular zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What Metadata says of one partition."""

    leader: NodeId
    replicas: tuple[NodeId, ...]


_ONE_ROUTE = Route(leader=ONE_NODE, replicas=(ONE_NODE,))


class RoutingTable:
    """The routes of one view of the ring, computed once per partition and zone. Bounded by `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._ring: Ring | None = None
        self._routes: dict[tuple[str, TopicId, Partition], Route] = {}
        self._led: dict[tuple[str, TopicId, NodeId], set[int]] = {}
        self._lacking: dict[str, tuple[Ring, frozenset[NodeId]]] = {}

    def lacking(self, ring: Ring, listener: str) -> frozenset[NodeId]:
        """Returns the agents without this listener. Computed once per view of the ring."""
        known = self._lacking.get(listener)
        if known is None or known[0] is not ring:
            lacking = frozenset(
                agent.node_id for agent in ring.agents if agent.address.of_listener(listener) is None
            )
            known = self._lacking[listener] = (ring, lacking)
        return known[1]

    def route(self, ring: Ring, zone: str, topic_id: TopicId, partition: Partition) -> Route:
        if ring is not self._ring or len(self._routes) >= self._max_entries:
            self._ring = ring
            self._routes.clear()
            self._led.clear()
        key = (zone, topic_id, partition)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _route(ring, zone, topic_id, partition)
        return route

    def leads_all(
        self, ring: Ring, zone: str, topic_id: TopicId, partitions: Collection[int], node_id: NodeId
    ) -> bool:  # fmt: skip
        """True if this agent is the choice for all of these partitions, or no agent is."""
        if ring is self._ring and self._led.get((zone, topic_id, node_id), frozenset()).issuperset(
            partitions
        ):
            return True
        for partition in map(Partition, partitions):
            if self.route(ring, zone, topic_id, partition).leader not in (NO_NODE, node_id):
                return False
            self._led.setdefault((zone, topic_id, node_id), set()).add(partition)
        return True


class UsesRouting(UsesMembership, Protocol):
    @property
    def routes(self) -> RoutingTable: ...


def _route(ring: Ring, zone: str, topic_id: TopicId, partition: Partition) -> Route:
    leader = ring.partition_leader(zone, topic_id, partition)
    replicas = tuple(agent.node_id for agent in ring.replicas(topic_id, partition))
    if leader is None:
        return Route(leader=NO_NODE, replicas=replicas)
    return Route(
        leader=leader.node_id,
        replicas=replicas if leader.node_id in replicas else (leader.node_id, *replicas),
    )


def endpoints_of(context: RequestContext[UsesRouting]) -> tuple[Endpoint, ...]:
    """Returns the nodes that a client may connect to."""
    one = _one_endpoint(context)
    if one is not None:
        return (one,)
    endpoints = (_endpoint(context, agent) for agent in context.parts.membership.named.agents)
    return tuple(endpoint for endpoint in endpoints if endpoint is not None)


def controller_of(context: RequestContext[UsesRouting]) -> NodeId:
    """Returns the agent itself: any agent takes administrative requests, and this one is known to be
    reachable.
    """
    if context.settings.one_address is not None:
        return ONE_NODE
    self_ = context.parts.membership.self_
    return NO_NODE if self_ is None else self_.node_id


def coordinator_of(context: RequestContext[UsesRouting], key: str) -> Endpoint | None:
    """Returns the node to ask for the coordinator of `key`. None until an agent is a member of the cluster,
    and while the coordinator lacks the client's listener.
    """
    agent = context.parts.membership.ring.coordinator(key)
    return None if agent is None else _one_endpoint(context) or _endpoint(context, agent)


def route_of(context: RequestContext[UsesRouting], topic_id: TopicId, partition: Partition) -> Route:
    """Returns the agent for a partition among those of the client's zone, and one replica per zone."""
    if context.settings.one_address is not None:
        return _ONE_ROUTE
    ring, routes = context.parts.membership.ring, context.parts.routes
    route = routes.route(ring, context.client_zone, topic_id, partition)
    lacking = routes.lacking(ring, context.connection.listener.name)
    if not lacking:
        return route
    self_ = context.parts.membership.self_
    leader = self_.node_id if self_ is not None and route.leader in lacking else route.leader
    replicas = tuple(replica for replica in route.replicas if replica not in lacking)
    return Route(leader=leader, replicas=replicas if leader in replicas else (leader, *replicas))


def preferred_replica_of(
    context: RequestContext[UsesRouting], rack: str, topic_id: TopicId, partition: Partition
) -> NodeId | None:
    """Returns the agent of the client's rack, if the rack is another zone than this agent's and has an agent
    (KIP-392).
    """
    membership = context.parts.membership
    if (
        context.settings.one_address is not None
        or rack == membership.zone
        or rack not in membership.ring.zones
    ):
        return None
    agent = membership.ring.partition_leader(rack, topic_id, partition)
    return None if agent is None else agent.node_id


def moved_partitions(
    context: RequestContext[UsesRouting], topic_id: TopicId, partitions: Collection[int]
) -> set[int]:
    """Returns the partitions to answer NOT_LEADER_OR_FOLLOWER for. Fast if none of many has moved."""
    parts, self_ = context.parts, context.parts.membership.self_
    if context.settings.one_address is not None:
        return set()
    ring, zone = parts.membership.ring, context.client_zone
    refused = refused_to_refresh(context, topic_id, partitions)
    if self_ is None or (
        not context.connection.redirected
        and parts.routes.leads_all(ring, zone, topic_id, partitions, self_.node_id)
    ):
        return refused
    return refused | {
        partition for partition in partitions if _has_moved(context, topic_id, Partition(partition))
    }


def refused_to_refresh(
    context: RequestContext[UsesRouting], topic_id: TopicId, partitions: Collection[int]
) -> set[int]:
    """Returns at most one partition to refuse, once per connection and agent that fell silent.

    A client of a frozen agent gets no answer and no lost connection. It notices only by its request timeout,
    30 to 60 s by default. A refusal from this agent makes it ask for Metadata, which names new leaders for
    the silent agent's partitions. Requests that it has pipelined behind are refused too, for
    `refresh_window_s`.
    """
    if context.settings.one_address is not None:
        return set()
    connection, silences = context.connection, context.parts.membership.silences
    if connection.silences_seen != silences:
        is_news = connection.silences_seen is not None and len(partitions) > 0
        if connection.silences_seen is None or is_news:
            connection.silences_seen = silences
        if is_news:
            connection.refreshed = (topic_id, min(partitions), context.received_at_s)
    if connection.refreshed is None:
        return set()
    refused_topic, partition, since_s = connection.refreshed
    if context.received_at_s >= since_s + context.settings.refresh_window_s:
        connection.refreshed = None
        return set()
    return {partition} if refused_topic == topic_id and partition in partitions else set()


def _has_moved(context: RequestContext[UsesRouting], topic_id: TopicId, partition: Partition) -> bool:
    """True if the partition moved and this connection has not been redirected for it yet.

    The connection is redirected for `redirect_window_s`: requests that it pipelined behind the first refusal
    should be refused too, not written out of order. After that it is served, because views of the ring may
    differ. A wrong route costs little; a client that is always refused makes no progress.
    """
    self_ = context.parts.membership.self_
    leader = route_of(context, topic_id, partition).leader
    redirected = context.connection.redirected
    if self_ is None or leader in (NO_NODE, self_.node_id):
        redirected.pop((topic_id, partition), None)  # the next move is a new one
        return False
    first_redirected_s = redirected.get((topic_id, partition))
    if first_redirected_s is None:
        if len(redirected) >= context.settings.max_redirects_per_connection:
            return False
        redirected[topic_id, partition] = context.received_at_s
        return True
    return context.received_at_s < first_redirected_s + context.settings.redirect_window_s


def _one_endpoint(context: RequestContext[UsesRouting]) -> Endpoint | None:
    if context.settings.one_address is None:
        return None
    host, port = split_address(context.settings.one_address)
    return Endpoint(node_id=ONE_NODE, host=_host_for(context, host), port=port, zone=None)


def _endpoint(context: RequestContext[UsesRouting], agent: LiveAgent) -> Endpoint | None:
    """Returns the agent's address for clients of this client's listener. None: it has no such listener."""
    named = agent.address.of_listener(context.connection.listener.name)
    if named is None:
        return None
    host = _host_for(context, named.host)
    return Endpoint(node_id=agent.node_id, host=host, port=named.port, zone=agent.address.zone)


def _host_for(context: RequestContext[UsesRouting], host: str) -> str:
    """A client that came by its tenant's server name is sent on by such names."""
    server = context.connection.server_name
    return host if server is None else server.of_host(host)
