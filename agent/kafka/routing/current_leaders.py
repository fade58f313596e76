"""What NOT_LEADER_OR_FOLLOWER says besides: who takes the partition now, and at what address (KIP-951; Produce v10+,
Fetch v16+), so that a client can move without asking for metadata.

The leader epoch is 0, always: clients that believe only a newer epoch (Java's, librdkafka) ask for metadata as before.
The same values serve the writers of both APIs, which read them by name.
"""

from collections.abc import Set
from dataclasses import dataclass

from agent.kafka.context import RequestContext
from agent.kafka.routing.leader_epochs import OUR_EPOCH
from agent.kafka.routing.routing import NO_NODE, UsesRouting, endpoints_of, route_of
from storage.identifiers import NodeId, Partition, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLeader:
    leader_id: NodeId
    leader_epoch: int = OUR_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: NodeId
    host: str
    port: int
    rack: str | None


def node_endpoints(context: RequestContext[UsesRouting], leaders: Set[NodeId]) -> tuple[NodeEndpoint, ...]:
    """The addresses of these agents."""
    if not leaders:
        return ()
    return tuple(
        NodeEndpoint(node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.zone)
        for endpoint in endpoints_of(context)
        if endpoint.node_id in leaders
    )


def leader_elsewhere(context: RequestContext[UsesRouting], topic_id: TopicId, partition: Partition) -> NodeId | None:
    """None if nobody takes the partition, or this agent itself does."""
    leader = route_of(context, topic_id, partition).leader
    self_ = context.parts.membership.self_
    return None if leader == NO_NODE or (self_ is not None and leader == self_.node_id) else leader
