"""ConsumerGroupHeartbeat (KIP-848): a member of the new protocol joins, stays, leaves, or leaves for a while.

The API (`agent/kafka/apis`) checks fields that can be judged without the group.

As in Kafka, these are refused:
- An epoch that is not the member's. The epoch before is accepted if the member reports a part of its
  partitions, because the answer with the new epoch may be lost.
- An instance id that another member uses.
- An unknown assignor.
- An expression that is not RE2's.

Two exceptions: a static member that repeats its own join is let in again, and a static member that returns to
a full group takes its old place.
"""

from dataclasses import replace

from agent.groups.consumer.assignors import ASSIGNORS
from agent.groups.consumer.consumer_members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from agent.groups.consumer.consumer_membership import ConsumerMembership
from agent.groups.consumer.known_topics import InvalidRegex, check_regex
from agent.groups.events import (
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupFault,
    TopicsWanted,
)
from agent.groups.partition_sets import is_part
from agent.groups.roster import MemberRefused


def topics_of(event: ConsumerHeartbeat) -> TopicsWanted:
    """Returns what must be known of topics before it is answered, in addition to what the group's members
    need.
    """
    if event.member_epoch < JOIN_EPOCH:
        return TopicsWanted()
    return TopicsWanted(
        names=frozenset(event.subscribed_topics or ()), everything=bool(event.subscribed_regex)
    )


def answer_heartbeat(
    group: ConsumerMembership, event: ConsumerHeartbeat, now_ms: int
) -> ConsumerHeartbeatAnswer:
    """Raises `MemberRefused`."""
    if event.member_epoch < JOIN_EPOCH:
        return _leave(group, event)
    if event.assignor is not None and event.assignor not in ASSIGNORS:
        raise MemberRefused(
            GroupFault.UNSUPPORTED_ASSIGNOR,
            (
                f"ServerAssignor {event.assignor} is not supported. Supported assignors: "
                f"{', '.join(sorted(ASSIGNORS))}."
            ),
        )
    joins = event.member_epoch == JOIN_EPOCH
    member_id = event.member_id or group.new_id()
    found = _find_joining(group, event, member_id) if joins else _find(group, event)
    before = found or ConsumerMember(member_id=member_id)
    _check_regex(group, before, event)
    if before.member_id != member_id:
        before = group.replace_static(before, member_id)
    told = group.step_to_target(before, _as_said(group, before, event), event.owned, now_ms)
    tells_all = (
        event.rebalance_timeout_ms != -1
        and (event.subscribed_topics is not None or event.subscribed_regex is not None)
        and event.owned is not None
    )
    return ConsumerHeartbeatAnswer(
        member_id=told.member_id,
        member_epoch=told.epoch,
        heartbeat_interval_ms=group.settings.group_consumer_heartbeat_interval_ms,
        assignment=told.assigned if joins or tells_all or told.assigned != before.assigned else None,
    )


def _find_joining(
    group: ConsumerMembership, event: ConsumerHeartbeat, member_id: str
) -> ConsumerMember | None:
    """Returns the member if it exists already: by its id, or the static member whose place it takes."""
    if event.instance_id is None:
        group.admit(member_id)
        return group.roster.members.get(member_id)
    static = group.roster.static_member(event.instance_id)
    if static is None:
        group.admit(member_id)
        return group.roster.members.get(member_id)
    if static.member_id != member_id and static.classic is None and static.epoch != STATIC_LEAVE_EPOCH:
        raise MemberRefused(
            GroupFault.UNRELEASED_INSTANCE,
            f"Instance id {event.instance_id} is in use by member {static.member_id}, which has not left.",
        )
    return static


def _find(group: ConsumerMembership, event: ConsumerHeartbeat) -> ConsumerMember:
    if event.instance_id is None:
        member = _dynamic(group, event.member_id)
    else:
        member = _static(group, event.instance_id, event.member_id)
    if event.member_epoch == member.epoch:
        return member
    repeats = event.member_epoch == member.previous_epoch and event.owned is not None
    if event.member_epoch < member.epoch and repeats and is_part(_or_nothing(event.owned), member.assigned):
        return member
    raise MemberRefused(
        GroupFault.FENCED_MEMBER_EPOCH,
        f"The member says epoch {event.member_epoch}, the coordinator knows it at {member.epoch}. It must "
        "give up all its partitions and rejoin.",
    )


def _as_said(group: ConsumerMembership, before: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
    """Returns the member as the request describes it."""
    topics, regex, timeout_ms = before.topics, before.regex, before.rebalance_timeout_ms
    if event.subscribed_topics is not None:
        topics = frozenset(event.subscribed_topics)
    if event.subscribed_regex is not None:
        regex = event.subscribed_regex or None
    if event.rebalance_timeout_ms != -1:
        timeout_ms = min(event.rebalance_timeout_ms, group.settings.group_consumer_max_rebalance_timeout_ms)
    return replace(
        before,
        instance_id=event.instance_id or before.instance_id,
        rack_id=event.rack_id or before.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=timeout_ms,
        topics=topics,
        regex=regex,
        assignor=event.assignor or before.assignor,
        classic=None,
    )


def _check_regex(group: ConsumerMembership, before: ConsumerMember, event: ConsumerHeartbeat) -> None:
    if event.subscribed_regex and event.subscribed_regex != before.regex:
        try:
            check_regex(
                event.subscribed_regex,
                max_length=group.settings.group_regex_max_length,
                max_program_size=group.settings.group_regex_max_program_size,
            )
        except InvalidRegex as error:
            raise MemberRefused(GroupFault.INVALID_REGEX, str(error)) from error


def _leave(group: ConsumerMembership, event: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
    if event.instance_id is None:
        member = _dynamic(group, event.member_id)
    else:
        member = _static(group, event.instance_id, event.member_id)
    if event.member_epoch == LEAVE_EPOCH:
        group.fence([member.member_id])
    else:
        group.leave_temporarily(member)
    return ConsumerHeartbeatAnswer(member_id=member.member_id, member_epoch=event.member_epoch)


def _dynamic(group: ConsumerMembership, member_id: str) -> ConsumerMember:
    member = group.roster.members.get(member_id)
    if member is None:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"{member_id} is not a member of the group.")
    return member


def _static(group: ConsumerMembership, instance_id: str, member_id: str) -> ConsumerMember:
    member = group.roster.static_member(instance_id)
    if member is None:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise MemberRefused(
            GroupFault.FENCED_INSTANCE,
            (
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}."
            ),
        )
    return member


def _or_nothing(owned: Assignment | None) -> Assignment:
    return {} if owned is None else owned
