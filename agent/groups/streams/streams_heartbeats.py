"""StreamsGroupHeartbeat (KIP-1071): a member joins, stays or leaves.

The API (`agent/kafka/apis`) checks fields that can be judged without the group.

These are refused:
- An epoch that is not the member's. The epoch before is accepted if the member reports a part of its tasks,
  because the answer with the new epoch may be lost.
- A topology that differs from the group's, while the group has other members. One with the next epoch
  replaces it.
"""

from dataclasses import replace

from agent.groups.events import (
    GroupFault,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    TopicsWanted,
)
from agent.groups.partition_sets import is_part
from agent.groups.roster import MemberRefused
from agent.groups.streams.streams_members import JOIN_EPOCH, StreamsMember
from agent.groups.streams.streams_membership import StreamsMembership
from agent.groups.streams.task_endpoints import TaskEndpoints
from agent.groups.streams.topology import Topology


def topics_of(event: StreamsHeartbeat) -> TopicsWanted:
    """Returns what must be known of topics before it is answered, in addition to what the group needs."""
    if event.member_epoch != JOIN_EPOCH or event.topology is None:
        return TopicsWanted()
    return TopicsWanted(names=event.topology.topics)


def answer_heartbeat(
    group: StreamsMembership, endpoints: TaskEndpoints, event: StreamsHeartbeat, now_ms: int
) -> StreamsHeartbeatAnswer:
    """Raises `MemberRefused`."""
    if event.member_epoch < JOIN_EPOCH:
        return _leave(group, event)
    joins = event.member_epoch == JOIN_EPOCH
    before = _find_joining(group, event) if joins else _find(group, event)
    topology = _new_topology(group, event)
    if topology is not None:
        group.adopt(topology, now_ms)
    now = _as_said(group, before or StreamsMember(member_id=event.member_id), event)
    told = group.step_to_target(before, now, event.owned, now_ms)
    if event.asks_for_shutdown:
        group.roster.ask_for_shutdown(event.member_id)
    endpoint_epoch, known = endpoints.look(group)
    has_news = (
        before is None
        or told.assigned != before.assigned
        or event.member_epoch != before.epoch
        or (event.owned is not None and event.owned != told.assigned)
    )
    return StreamsHeartbeatAnswer(
        member_id=told.member_id,
        member_epoch=told.epoch,
        heartbeat_interval_ms=group.settings.group_streams_heartbeat_interval_ms,
        statuses=group.statuses(told),
        tasks=told.assigned if has_news else None,
        endpoint_epoch=endpoint_epoch,
        endpoints=None if endpoint_epoch == event.endpoint_epoch else known,
    )


def _find_joining(group: StreamsMembership, event: StreamsHeartbeat) -> StreamsMember | None:
    group.admit(event.member_id)
    return group.roster.members.get(event.member_id)


def _find(group: StreamsMembership, event: StreamsHeartbeat) -> StreamsMember:
    member = group.roster.members.get(event.member_id)
    if member is None:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"{event.member_id} is not a member of the group.")
    if event.member_epoch == member.epoch:
        return member
    if (
        event.member_epoch < member.epoch
        and event.member_epoch == member.previous_epoch
        and event.owned is not None
        and is_part(event.owned.active, member.assigned.active)
    ):
        return member
    relation = "greater" if event.member_epoch > member.epoch else "smaller"
    raise MemberRefused(
        GroupFault.FENCED_MEMBER_EPOCH,
        f"The member's epoch {event.member_epoch} is {relation} than the one that the group knows "
        f"({member.epoch}). It must give up all its tasks and join again.",
    )


def _new_topology(group: StreamsMembership, event: StreamsHeartbeat) -> Topology | None:
    """Returns the topology that the group is to adopt, if the member brings one."""
    topology, current = event.topology, group.roster.topology
    if topology is None or topology == current:
        return None
    if current is None or not group.roster.members.keys() - {event.member_id}:
        return topology
    if topology.epoch < current.epoch:
        raise MemberRefused(
            GroupFault.TOPOLOGY_FENCED,
            f"The topology's epoch {topology.epoch} is older than that of the group, {current.epoch}.",
        )
    if topology.epoch != current.epoch + 1:
        raise MemberRefused(
            GroupFault.INVALID_TOPOLOGY_EPOCH,
            f"The topology differs from the one of the group's other members, which has epoch "
            f"{current.epoch}. Stop all members before one starts with another topology.",
        )
    return topology


def _as_said(group: StreamsMembership, before: StreamsMember, event: StreamsHeartbeat) -> StreamsMember:
    """Returns the member as the request describes it."""
    timeout_ms = before.rebalance_timeout_ms
    if event.rebalance_timeout_ms != -1:
        timeout_ms = min(event.rebalance_timeout_ms, group.settings.group_consumer_max_rebalance_timeout_ms)
    return replace(
        before,
        rack_id=event.rack_id or before.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=timeout_ms,
        topology_epoch=before.topology_epoch if event.topology is None else event.topology.epoch,
        process_id=event.process_id or before.process_id,
        endpoint=event.endpoint or before.endpoint,
        client_tags=before.client_tags if event.client_tags is None else event.client_tags,
    )


def _leave(group: StreamsMembership, event: StreamsHeartbeat) -> StreamsHeartbeatAnswer:
    if event.member_id not in group.roster.members:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"{event.member_id} is not a member of the group.")
    if event.asks_for_shutdown:
        group.roster.ask_for_shutdown(event.member_id)
    group.fence([event.member_id])
    return StreamsHeartbeatAnswer(member_id=event.member_id, member_epoch=event.member_epoch)
