"""The agent that takes a partition now, and its address, for NOT_LEADER_OR_FOLLOWER (KIP-951; Produce v10+,
Fetch v16+). A client can then move without asking for metadata.

Every partition's leader epoch is 0, always (docs/design/zones.md#leader-epochs). A client that names another
epoch gets an error (KIP-320). Clients that believe only a newer epoch (Java's, librdkafka) ask for metadata
as before. The id of a topic, not an epoch, distinguishes a topic that was created again under an old name
(KIP-516).

The writers of both APIs read the same values by name.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import NO_NODE, UsesRouting, endpoints_of, route_of
from agent.read_path.read_decisions import ReadFailure
from storage.identifiers import NodeId, Partition, TopicId

NO_EPOCH: Final = -1
OUR_EPOCH: Final = 0


def epoch_failure(current_leader_epoch: int) -> ReadFailure | None:
    """Returns why a request with this current leader epoch is refused. None if it names no epoch or this
    one.
    """
    if current_leader_epoch in (NO_EPOCH, OUR_EPOCH):
        return None
    if current_leader_epoch < OUR_EPOCH:
        return ReadFailure.FENCED_LEADER_EPOCH
    return ReadFailure.UNKNOWN_LEADER_EPOCH


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
    """Returns the addresses of these agents."""
    if not leaders:
        return ()
    return tuple(
        NodeEndpoint(node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.zone)
        for endpoint in endpoints_of(context)
        if endpoint.node_id in leaders
    )


def leader_elsewhere(
    context: RequestContext[UsesRouting], topic_id: TopicId, partition: Partition
) -> NodeId | None:
    """Returns None if no agent takes the partition, or this agent does."""
    leader = route_of(context, topic_id, partition).leader
    self_ = context.parts.membership.self_
    return None if leader == NO_NODE or (self_ is not None and leader == self_.node_id) else leader
