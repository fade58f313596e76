"""Members that speak the classic protocol in a group of the new one (KIP-848, online migration): JoinGroup,
SyncGroup, Heartbeat and LeaveGroup.

Such a member has no leader and waits for no other member:
- Its JoinGroup is answered at once, with its own epoch as generation.
- Its SyncGroup is answered with what is assigned to it.
- A Heartbeat tells it to rejoin whenever it should give up or take partitions.

A cooperative member first rejoins with what it has, learns from SyncGroup what to give up, and rejoins
without it. An eager member has given everything up when it rejoins. Only members of the new protocol may
subscribe by a regular expression.

Like Kafka's coordinator, it admits unknown member ids, because JoinGroup makes ids up and forgets them. It
refuses an unknown member that says it still has partitions: it was removed, and another member may own them.
"""

from dataclasses import replace

from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE
from agent.groups.consumer.consumer_members import ClassicSide, ConsumerMember
from agent.groups.consumer.consumer_membership import ConsumerMembership, Timer
from agent.groups.consumer.consumer_protocol import (
    Malformed,
    Subscription,
    by_id,
    by_name,
    read_subscription,
    write_assignment,
)
from agent.groups.events import (
    GroupFault,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    LeavingMember,
    Sync,
    SyncAnswer,
    TopicsWanted,
)
from agent.groups.roster import MemberRefused


def topics_of(event: Join) -> TopicsWanted:
    """Returns what must be known of topics before it is answered, in addition to what the group's members
    need.
    """
    try:
        subscription = _subscription(event)
    except MemberRefused:
        return TopicsWanted()
    return TopicsWanted(names=subscription.topics | subscription.owned.keys())


def answer_join(group: ConsumerMembership, event: Join, now_ms: int) -> JoinAnswer:
    """Raises `MemberRefused`."""
    settings = group.settings
    if (
        not settings.group_min_session_timeout_ms
        <= event.session_timeout_ms
        <= settings.group_max_session_timeout_ms
    ):
        raise MemberRefused(GroupFault.INVALID_SESSION_TIMEOUT, "The session timeout is out of bounds.")
    _check_protocols(group, event)
    subscription = _subscription(event)
    is_new = not event.member_id
    member_id = event.member_id or group.new_id()
    found = _find_joining(group, event, member_id)
    if found is None and subscription.owned:
        raise MemberRefused(
            GroupFault.UNKNOWN_MEMBER, "The member was removed. It must give up all its partitions."
        )
    if is_new and event.instance_id is None and event.requires_known_member_id:
        return JoinAnswer(fault=GroupFault.MEMBER_ID_REQUIRED, member_id=member_id)
    before = found or ConsumerMember(member_id=member_id)
    if before.member_id != member_id:
        before = group.replace_static(before, member_id)
    now = replace(
        before,
        instance_id=event.instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        topics=subscription.topics,
        regex=None,
        classic=ClassicSide(session_timeout_ms=event.session_timeout_ms, protocols=event.protocols),
    )
    told = group.step_to_target(before, now, by_id(subscription.owned, group.topics.id_of), now_ms)
    group.deadlines.clear((Timer.JOIN, member_id))
    group.deadlines.set((Timer.SYNC, member_id), now_ms + event.rebalance_timeout_ms)
    return JoinAnswer(
        member_id=member_id,
        generation=told.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=event.protocols[0].name,
    )


def answer_sync(group: ConsumerMembership, event: Sync, now_ms: int) -> SyncAnswer:
    """Raises `MemberRefused`."""
    member, classic = _find(group, event.member_id, event.instance_id, event.generation)
    first = classic.protocols[0]
    if event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or event.protocol_name not in (
        None,
        first.name,
    ):
        raise MemberRefused(
            GroupFault.INCONSISTENT_PROTOCOL, "Not the protocol that JoinGroup was answered with."
        )
    if member.epoch < group.roster.epoch and not member.revoking:
        _must_rejoin(group, member, now_ms)
        raise MemberRefused(
            GroupFault.REBALANCE_IN_PROGRESS, "There is more to reconcile: the member must rejoin."
        )
    group.deadlines.clear((Timer.SYNC, member.member_id))
    group.restart_session(member, now_ms)
    return SyncAnswer(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=first.name,
        assignment=write_assignment(by_name(member.assigned, group.topics.name_of), like=first.metadata),
    )


def answer_heartbeat(group: ConsumerMembership, event: Heartbeat, now_ms: int) -> HeartbeatAnswer:
    """Raises `MemberRefused`."""
    member, _ = _find(group, event.member_id, event.instance_id, event.generation)
    group.restart_session(member, now_ms)
    waiting = member.assigned != group.roster.target(member.member_id)
    if (
        member.epoch < group.roster.epoch
        or member.revoking
        or (waiting and not group.waits_for_others(member))
    ):
        _must_rejoin(group, member, now_ms)
        return HeartbeatAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS)
    return HeartbeatAnswer()


def answer_leave(group: ConsumerMembership, event: Leave) -> LeaveAnswer:
    """For members of either protocol. An administrator names a static member only by its instance id."""
    answers: list[tuple[LeavingMember, GroupFault | None]] = []
    gone: list[str] = []
    for leaving in event.members:
        try:
            gone.append(_find_leaving(group, leaving).member_id)
            answers.append((leaving, None))
        except MemberRefused as refused:
            answers.append((leaving, refused.fault))
    group.fence(gone)
    return LeaveAnswer(members=tuple(answers))


def _subscription(event: Join) -> Subscription:
    """Returns the member's subscription, which is the same in all its protocols."""
    if not event.protocols:
        raise MemberRefused(GroupFault.INCONSISTENT_PROTOCOL, "The member offers no protocol.")
    try:
        return read_subscription(event.protocols[0].metadata)
    except Malformed as error:
        raise MemberRefused(
            GroupFault.INCONSISTENT_PROTOCOL, f"The subscription cannot be read: {error}."
        ) from error


def _check_protocols(group: ConsumerMembership, event: Join) -> None:
    """Refuses a member unless every other classic member offers one of its assignors: the group may become
    classic again.
    """
    if event.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise MemberRefused(
            GroupFault.INCONSISTENT_PROTOCOL, f"The group is of the protocol type {CONSUMER_PROTOCOL_TYPE}."
        )
    common = {offered.name for offered in event.protocols}
    for member in group.roster.members.values():
        replaced = event.instance_id is not None and member.instance_id == event.instance_id
        if member.classic is not None and member.member_id != event.member_id and not replaced:
            common &= {offered.name for offered in member.classic.protocols}
    if not common:
        raise MemberRefused(
            GroupFault.INCONSISTENT_PROTOCOL, "No protocol of the member's is offered by all others."
        )


def _find_joining(group: ConsumerMembership, event: Join, member_id: str) -> ConsumerMember | None:
    static = None if event.instance_id is None else group.roster.static_member(event.instance_id)
    if static is not None and event.member_id and static.member_id != event.member_id:
        raise MemberRefused(
            GroupFault.FENCED_INSTANCE, f"Instance id {event.instance_id} is another member's by now."
        )
    if static is not None:
        return static
    if event.instance_id is not None and event.member_id:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"Instance id {event.instance_id} is unknown.")
    group.admit(member_id)
    return group.roster.members.get(member_id)


def _find(
    group: ConsumerMembership, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicSide]:
    member = _by_either_id(group, member_id, instance_id)
    if member.classic is None:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"{member_id} does not speak the classic protocol.")
    if member.epoch != generation:
        raise MemberRefused(GroupFault.ILLEGAL_GENERATION, f"The member's generation is {member.epoch}.")
    return member, member.classic


def _find_leaving(group: ConsumerMembership, leaving: LeavingMember) -> ConsumerMember:
    if leaving.instance_id is not None and not leaving.member_id:
        static = group.roster.static_member(leaving.instance_id)
        if static is None:
            raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"Instance id {leaving.instance_id} is unknown.")
        return static
    return _by_either_id(group, leaving.member_id, leaving.instance_id)


def _by_either_id(group: ConsumerMembership, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is None:
        member = group.roster.members.get(member_id)
    else:
        member = group.roster.static_member(instance_id)
        if member is not None and member.member_id != member_id:
            raise MemberRefused(
                GroupFault.FENCED_INSTANCE, f"Instance id {instance_id} is another member's by now."
            )
    if member is None:
        raise MemberRefused(GroupFault.UNKNOWN_MEMBER, f"{member_id} is not a member of the group.")
    return member


def _must_rejoin(group: ConsumerMembership, member: ConsumerMember, now_ms: int) -> None:
    group.deadlines.set_if_absent((Timer.JOIN, member.member_id), now_ms + member.rebalance_timeout_ms)
