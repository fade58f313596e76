"""The requests of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-62, 134, 345, 389, 394, 814).

Pure. They are answered as Kafka's coordinator answers them, code by code, but for these, on purpose:
- Where Kafka leaves a waiting request without an answer, there is one: the earlier of two joins or syncs of one member
  is told REBALANCE_IN_PROGRESS, and a member that is removed while it syncs UNKNOWN_MEMBER.
- A static member that returns with other topics than it left with begins a rebalance; Kafka leaves that to the client.
- A static member that returns to a full group is let in: it replaces itself. Ids given out are bounded by the group's
  limit too, and one that is turned away is not waited for any longer.
- Where Kafka's choice falls as its hash tables lie, equal votes are settled by name, and the longest-standing of the
  members that came leads.
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE, ClassicMember, subscribed_topics
from agent.groups.classic.classic_rounds import ClassicRounds
from agent.groups.events import (
    Answered,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupEvent,
    GroupFault,
    GroupState,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    LeavingMember,
    Sync,
    SyncAnswer,
    Token,
    TopicsSeen,
)


class ClassicRequests(ClassicRounds):
    def handle(self, event: GroupEvent, now_ms: int) -> list[Answered]:
        match event:
            case Join():
                self._join(event, now_ms)
            case Sync():
                self._sync(event, now_ms)
            case Heartbeat():
                self._answer(event.token, HeartbeatAnswer(fault=self._heartbeat_fault(event, now_ms)))
            case Leave():
                self._leave(event, now_ms)
            case ConsumerHeartbeat():
                self._answer(event.token, ConsumerHeartbeatAnswer(fault=GroupFault.GROUP_NOT_FOUND))
            case TopicsSeen():
                pass
        return self._take_answers()

    def forget(self, token: Token) -> None:
        """Its member stays and goes on waiting; the answer is dropped."""
        self._joining.forget(token)
        self._syncing.forget(token)

    # --- JoinGroup

    def _join(self, join: Join, now_ms: int) -> None:
        shortest_ms = self._settings.group_min_session_timeout_ms
        longest_ms = self._settings.group_max_session_timeout_ms
        if self._state is GroupState.DEAD:
            self._refuse(join, GroupFault.COORDINATOR_UNAVAILABLE, join.member_id)
        elif not shortest_ms <= join.session_timeout_ms <= longest_ms:
            self._refuse(join, GroupFault.INVALID_SESSION_TIMEOUT, join.member_id)
        elif not self._has_room(join):
            self._turn_away(join, now_ms)
        elif not self._supports(join):
            self._refuse(join, GroupFault.INCONSISTENT_PROTOCOL, join.member_id)
        elif not join.member_id:
            self._join_new(join, now_ms)
        elif join.member_id in self._pending and join.instance_id is None:
            self._admit(_member(join, join.member_id), join.protocol_type, join.token, now_ms)
        elif (fault := self._identity_fault(join.member_id, join.instance_id)) is not None:
            self._refuse(join, fault, join.member_id)
        else:
            self._rejoin(join, now_ms)

    def _refuse(self, join: Join, fault: GroupFault, told_id: str) -> None:
        self._answer(join.token, JoinAnswer(fault=fault, member_id=told_id))

    def _has_room(self, join: Join) -> bool:
        """While members gather, those that wait count: the last to come are left out. Ids given out count among
        themselves."""
        most = self._settings.group_max_size
        member_id = join.member_id or self._roster.of_instance(join.instance_id or "") or ""
        if not member_id and len(self._pending) >= most:
            return False
        if self._state is GroupState.EMPTY:
            return True
        if self._state is GroupState.PREPARING_REBALANCE:
            return member_id in self._joining or len(self._joining) < most
        return member_id in self._roster or len(self._roster) < most

    def _turn_away(self, join: Join, now_ms: int) -> None:
        if join.member_id in self._roster:
            self._remove(join.member_id)
        elif join.member_id in self._pending:
            self._pending.discard(join.member_id)
            self._sessions.clear(join.member_id)
        self._refuse(join, GroupFault.GROUP_FULL, "")
        self._end_joining_if_all_joined(now_ms)

    def _supports(self, join: Join) -> bool:
        if self._state is GroupState.EMPTY:
            return bool(join.protocol_type and join.protocols)
        return join.protocol_type == self._protocol_type and self._roster.supports(join.protocols)

    def _join_new(self, join: Join, now_ms: int) -> None:
        member_id = f"{join.client_id if join.instance_id is None else join.instance_id}-{self._new_id()}"
        replaced_id = None if join.instance_id is None else self._roster.of_instance(join.instance_id)
        if replaced_id is not None:
            self._replace_static(join, replaced_id, member_id, now_ms)
        elif join.instance_id is None and join.requires_known_member_id:
            self._pending.add(member_id)
            self._sessions.set(member_id, now_ms + join.session_timeout_ms)
            self._refuse(join, GroupFault.MEMBER_ID_REQUIRED, member_id)
        else:
            self._admit(_member(join, member_id), join.protocol_type, join.token, now_ms)

    def _replace_static(self, join: Join, replaced_id: str, member_id: str, now_ms: int) -> None:
        """A static member is back under a new id. The one before, should it still run, is fenced from now on."""
        led_before = self._leader
        replaced = self._release(replaced_id, GroupFault.FENCED_INSTANCE, told_id=replaced_id)
        self._roster.put(_told_anew(replace(replaced, member_id=member_id), join))
        self._keep_alive(member_id, now_ms)
        if led_before == replaced_id:
            self._leader = member_id
        if self._state is not GroupState.STABLE or self._subscribes_anew(replaced, self._roster[member_id]):
            self._joining.put(member_id, join.token)
            self._rebalance(now_ms)
            return
        self._members_due = True
        answer = self._joined(member_id)
        if join.can_skip_assignment:
            answer = replace(answer, skip_assignment=self._leader == member_id)
        else:  # it must not take itself for the leader: it would assign
            answer = replace(answer, leader=led_before or "", members=())
        self._answer(join.token, answer)

    def _subscribes_anew(self, before: ClassicMember, now: ClassicMember) -> bool:
        """Whether the assignment is no longer right. What a consumer owned is no part of it: it differs after any
        restart."""
        if self._roster.vote() != self._protocol_name:
            return True
        if self._protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        topics_before = subscribed_topics(before.metadata(self._protocol_name))
        return topics_before != subscribed_topics(now.metadata(self._protocol_name))

    def _rejoin(self, join: Join, now_ms: int) -> None:
        member = self._roster[join.member_id]
        knows_all = self._state is GroupState.COMPLETING_REBALANCE or (
            self._state is GroupState.STABLE and self._leader != join.member_id
        )  # the leader's join in Stable says that topics changed
        if knows_all and member.protocols == join.protocols:
            self._answer(join.token, self._joined(join.member_id))
        else:
            self._roster.put(_told_anew(member, join))
            earlier = self._joining.put(join.member_id, join.token)
            self._answer(earlier, JoinAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS, member_id=join.member_id))
            self._rebalance(now_ms)

    # --- SyncGroup, Heartbeat, LeaveGroup

    def _sync(self, sync: Sync, now_ms: int) -> None:
        fault = self._sync_fault(sync)
        if fault is not None:
            self._answer(sync.token, SyncAnswer(fault=fault))
            return
        self._synced(sync.member_id)
        if self._state is GroupState.STABLE:
            self._keep_alive(sync.member_id, now_ms)
            self._answer(sync.token, self._assigned(sync.member_id))
            return
        earlier = self._syncing.put(sync.member_id, sync.token)
        self._answer(earlier, SyncAnswer(fault=GroupFault.REBALANCE_IN_PROGRESS))
        if sync.member_id == self._leader:
            self._assign(sync.assignments, now_ms)

    def _sync_fault(self, sync: Sync) -> GroupFault | None:
        if self._state is GroupState.DEAD:
            return GroupFault.COORDINATOR_UNAVAILABLE
        fault = self._identity_fault(sync.member_id, sync.instance_id)
        if fault is not None:
            return fault
        if sync.generation != self._generation:
            return GroupFault.ILLEGAL_GENERATION
        if sync.protocol_type not in (None, self._protocol_type) or sync.protocol_name not in (
            None,
            self._protocol_name,
        ):
            return GroupFault.INCONSISTENT_PROTOCOL
        if self._state is GroupState.PREPARING_REBALANCE:
            return GroupFault.REBALANCE_IN_PROGRESS
        return None

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """The leader has spoken. Whom it did not name has nothing."""
        self._state = GroupState.STABLE
        for member in self._roster:
            self._roster.put(replace(member, assignment=assignments.get(member.member_id, b"")))
        for member_id in self._syncing.member_ids():
            self._answer(self._syncing.take(member_id), self._assigned(member_id))
            self._keep_alive(member_id, now_ms)

    def _assigned(self, member_id: str) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self._protocol_type,
            protocol_name=self._protocol_name,
            assignment=self._roster[member_id].assignment,
        )

    def _heartbeat_fault(self, heartbeat: Heartbeat, now_ms: int) -> GroupFault | None:
        if self._state is GroupState.DEAD:
            return GroupFault.COORDINATOR_UNAVAILABLE
        fault = self._identity_fault(heartbeat.member_id, heartbeat.instance_id)
        if fault is not None:
            return fault
        if heartbeat.generation != self._generation:
            return GroupFault.ILLEGAL_GENERATION
        self._keep_alive(heartbeat.member_id, now_ms)
        return GroupFault.REBALANCE_IN_PROGRESS if self._state is GroupState.PREPARING_REBALANCE else None

    def _leave(self, leave: Leave, now_ms: int) -> None:
        if self._state is GroupState.DEAD:
            self._answer(leave.token, LeaveAnswer(fault=GroupFault.COORDINATOR_UNAVAILABLE))
            return
        members_before = len(self._roster)
        left = tuple((leaving, self._leave_one(leaving)) for leaving in leave.members)
        if len(self._roster) < members_before:
            self._rebalance(now_ms)
        else:  # an id that was given out may have been waited for
            self._end_joining_if_all_joined(now_ms)
        self._answer(leave.token, LeaveAnswer(members=left))

    def _leave_one(self, leaving: LeavingMember) -> GroupFault | None:
        member_id = leaving.member_id
        if not member_id:  # an administrator knows the instance alone
            member_id = self._roster.of_instance(leaving.instance_id or "") or ""
        if member_id in self._pending:
            self._pending.discard(member_id)
            self._sessions.clear(member_id)
            return None
        fault = self._identity_fault(member_id, leaving.instance_id)
        if fault is None:
            self._remove(member_id)
        return fault

    def _identity_fault(self, member_id: str, instance_id: str | None) -> GroupFault | None:
        if instance_id is not None:
            known_id = self._roster.of_instance(instance_id)
            if known_id is not None and known_id != member_id:
                return GroupFault.FENCED_INSTANCE
            if known_id is None:
                return GroupFault.UNKNOWN_MEMBER
        return None if member_id in self._roster else GroupFault.UNKNOWN_MEMBER


def _member(join: Join, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=join.instance_id,
        client_id=join.client_id,
        client_host=join.client_host,
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocols=join.protocols,
    )


def _told_anew(member: ClassicMember, join: Join) -> ClassicMember:
    """Who it is and what it was assigned stays."""
    return replace(_member(join, member.member_id), instance_id=member.instance_id, assignment=member.assignment)
