"""The classic consumer group protocol, as a state machine: JoinGroup, SyncGroup, Heartbeat and LeaveGroup
(KIP-62, 134, 345, 389, 394, 814).

Pure: events and the time come in, answers and changes go out. `classic_rounds.py` decides how generations
follow each other.

Postgres must have these changes before the answers go out:
- Each new state with its generation. A coordinator that takes over then restarts an interrupted rebalance,
  and never uses a generation twice.
- The members, when a generation is assigned and when a static member is replaced.
- The members that left, whenever the state is written.

Requests are answered as Kafka's coordinator answers them, code by code, with these exceptions:
- Where Kafka leaves a waiting request without an answer, this one answers. If a member joins or syncs twice,
  the earlier request gets REBALANCE_IN_PROGRESS. A member that is removed while it syncs gets UNKNOWN_MEMBER.
- A static member that returns with other topics begins a rebalance. Kafka leaves that to the client.
- A static member that returns to a full group is let in, because it replaces itself. The group's limit also
  bounds the ids that were given out. If a newcomer is turned away, the group stops waiting for its id.
- Where Kafka's choice depends on its hash tables, equal votes are settled by name, and the longest-standing
  of the present members leads.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE, ClassicMember, subscribed_topics
from agent.groups.classic.classic_rounds import Rounds
from agent.groups.events import (
    Answered,
    CommitFence,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    DescribedMember,
    GroupDescription,
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
    OfferedProtocol,
    Sync,
    SyncAnswer,
    Token,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.settings import GroupSettings
from agent.groups.streams.topology import InternalTopic
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup, StoredMember


class WrittenGroup:
    """What Postgres has of a group once all changes taken so far are written. Documents hold bytes as base64,
    because JSON has no bytes.
    """

    def __init__(self, stored: StoredGroup | None) -> None:
        self._state = (GroupState.EMPTY.value, 0, "")
        """State, generation and protocol type."""
        if stored is not None:
            self._state = (stored.state, stored.generation, stored.protocol_type)
        self.member_ids = frozenset(stored.members if stored is not None else ())
        self._members_due = False
        """True if the members must be written although the state did not change."""

    def write_members(self) -> None:
        """The next change has the members that changed, whatever the state is."""
        self._members_due = True

    def replace_members(self, member_ids: Collection[str]) -> None:
        """Postgres has these members, of the group in its other protocol. The next change writes the group's
        own members and deletes the others.
        """
        self.member_ids = frozenset(member_ids)
        self._members_due = True

    def take_changes(self, rounds: Rounds) -> GroupChange | None:
        roster = rounds.roster
        state = (rounds.state.value, rounds.generation, rounds.protocol_type)
        if state == self._state and not self._members_due:
            return None
        members: dict[str, StoredMember | None] = dict.fromkeys(sorted(self.member_ids - roster.by_id.keys()))
        if rounds.state is GroupState.STABLE or self._members_due:
            members |= {
                member.member_id: stored_member(member, rounds.generation)
                for member in roster
                if member.member_id in roster.touched
            }
        roster.settle(members)
        self.member_ids = frozenset(
            member_id for member_id in self.member_ids | members.keys() if member_id in roster
        )
        self._state = state
        self._members_due = False
        return GroupChange(
            kind="classic",
            generation=rounds.generation,
            state=rounds.state.value,
            protocol_type=rounds.protocol_type,
            document={"protocol_name": rounds.protocol_name, "leader": rounds.leader},
            members=members,
            is_empty=not len(roster),
        )


def stored_member(member: ClassicMember, generation: int) -> StoredMember:
    return StoredMember(
        epoch=generation,
        document={
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "protocols": [[offered.name, _text(offered.metadata)] for offered in member.protocols],
            "assignment": _text(member.assignment),
        },
    )


def restored_member(member_id: str, stored: StoredMember) -> ClassicMember:
    document = stored.document
    return ClassicMember(
        member_id=member_id,
        instance_id=document["instance_id"],
        client_id=document["client_id"],
        client_host=document["client_host"],
        session_timeout_ms=document["session_timeout_ms"],
        rebalance_timeout_ms=document["rebalance_timeout_ms"],
        protocols=tuple(
            OfferedProtocol(name=name, metadata=b64decode(metadata))
            for name, metadata in document["protocols"]
        ),
        assignment=b64decode(document["assignment"]),
    )


def _text(content: bytes) -> str:
    return b64encode(content).decode("ascii")


class ClassicGroup:
    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        stored: StoredGroup | None,
        now_ms: int,
    ) -> None:
        self._settings = settings
        self._new_id = new_id
        self._rounds = Rounds(settings.group_initial_rebalance_delay_ms)
        self._written = WrittenGroup(stored)
        if stored is not None:
            self._take_over(stored, now_ms)

    @classmethod
    def converted(
        cls,
        settings: GroupSettings,
        new_id: Callable[[], str],
        *,
        members: Sequence[ClassicMember],
        generation: int,
        protocol_type: str,
        stored_member_ids: Collection[str],
        begin_rebalance: bool,
        now_ms: int,
    ) -> "ClassicGroup":
        """Makes a classic group of a group that had the new protocol until now.

        With members it is Stable: they keep their assignments at this generation, and the first member leads.
        `begin_rebalance` begins a rebalance. If it is False, the event that is handled next begins one.
        Without members the group is Empty. `stored_member_ids` are the members that Postgres has; the first
        change writes the members and deletes the others.
        """
        group = cls(settings, new_id, None, now_ms)
        rounds = group._rounds
        rounds.settle_in(members, None, now_ms)
        rounds.resume(generation, protocol_type, rounds.roster.vote() if members else None)
        group._written.replace_members(stored_member_ids)
        if begin_rebalance and members:
            rounds.begin_rebalance(now_ms)
        return group

    def _take_over(self, stored: StoredGroup, now_ms: int) -> None:
        """Gives every member a session timeout to show that it is alive. Restarts a rebalance that was under
        way.
        """
        rounds = self._rounds
        members = [restored_member(member_id, member) for member_id, member in stored.members.items()]
        rounds.settle_in(members, stored.document.get("leader"), now_ms)
        rounds.resume(stored.generation, stored.protocol_type, stored.document.get("protocol_name"))
        rounds.roster.settle(stored.members)
        if members and stored.state != GroupState.STABLE.value:
            rounds.begin_rebalance(now_ms)

    # --- what a conversion to the new protocol reads

    @property
    def members(self) -> Mapping[str, ClassicMember]:
        """The members by id, without pending ones."""
        return self._rounds.roster.by_id

    @property
    def stored_member_ids(self) -> frozenset[str]:
        """The members that Postgres has once the changes taken so far are written."""
        return self._written.member_ids

    @property
    def protocol_type(self) -> str:
        """Empty until a member has joined."""
        return self._rounds.protocol_type

    @property
    def protocol_name(self) -> str | None:
        """The assignor that the members voted for. None: there is none."""
        return self._rounds.protocol_name

    def dismiss(self, fault: GroupFault) -> list[Answered]:
        """Answers every waiting JoinGroup and SyncGroup with this fault, and makes the group Dead. The
        members can still be read. For a conversion (REBALANCE_IN_PROGRESS), or when the group is unloaded.
        """
        self._rounds.dismiss(fault)
        return self._rounds.take_answers()

    # --- the interface of every machine (`running_group.py`)

    @property
    def kind(self) -> GroupKind:
        return "classic"

    @property
    def state(self) -> GroupState:
        return self._rounds.state

    @property
    def is_empty(self) -> bool:
        return not len(self._rounds.roster)

    @property
    def generation(self) -> int:
        return self._rounds.generation

    def handle(self, event: GroupEvent, now_ms: int) -> list[Answered]:
        rounds = self._rounds
        match event:
            case Join():
                self._join(event, now_ms)
            case Sync():
                self._sync(event, now_ms)
            case Heartbeat():
                rounds.answer(event.token, HeartbeatAnswer(fault=self._heartbeat_fault(event, now_ms)))
            case Leave():
                self._leave(event, now_ms)
            case ConsumerHeartbeat():
                rounds.answer(event.token, ConsumerHeartbeatAnswer(fault=GroupFault.GROUP_NOT_FOUND))
            case TopicsSeen():
                pass
        return rounds.take_answers()

    def topics_wanted(self) -> TopicsWanted:
        """None: the members' leader assigns."""
        return TopicsWanted()

    def topics_to_create(self) -> tuple[InternalTopic, ...]:
        return ()

    def subscribes_by_regex(self, member_id: str) -> bool:
        del member_id
        return False

    def tick(self, now_ms: int) -> list[Answered]:
        self._rounds.tick(now_ms)
        return self._rounds.take_answers()

    def next_deadline_ms(self) -> int | None:
        return self._rounds.next_deadline_ms()

    def take_changes(self) -> GroupChange | None:
        return self._written.take_changes(self._rounds)

    def forget(self, token: Token) -> None:
        """Drops the answer. The member stays and goes on waiting."""
        self._rounds.forget(token)

    def configure(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._rounds.initial_delay_ms = settings.group_initial_rebalance_delay_ms

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> CommitFence | GroupFault:
        """A commit without a member is accepted only in a group without members. While members gather they
        may still commit for their old assignment. Members of a new generation may commit only after they got
        their assignment.
        """
        rounds = self._rounds
        if rounds.state is GroupState.DEAD:
            return GroupFault.COORDINATOR_UNAVAILABLE
        if generation < 0 and rounds.state is GroupState.EMPTY:
            return CommitFence()
        if generation < 0 and not member_id and instance_id is None:
            return GroupFault.UNKNOWN_MEMBER
        fault = self._identity_fault(member_id, instance_id)
        if fault is not None:
            return fault
        if generation != rounds.generation:
            return GroupFault.ILLEGAL_GENERATION
        if rounds.state is GroupState.COMPLETING_REBALANCE:
            return GroupFault.REBALANCE_IN_PROGRESS
        rounds.keep_alive(member_id, now_ms)
        return CommitFence(generation=generation)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None:  # noqa: ARG002
        """Any client may read the offsets of a classic group."""
        return GroupFault.GROUP_NOT_FOUND if self._rounds.state is GroupState.DEAD else None

    def check_delete(self) -> GroupFault | None:
        if self._rounds.state is GroupState.DEAD:
            return GroupFault.GROUP_NOT_FOUND
        return None if self._rounds.state is GroupState.EMPTY else GroupFault.GROUP_NOT_EMPTY

    def check_offset_delete(self) -> GroupFault | None:
        """Only the subscriptions of consumers are known (`subscribed`)."""
        if self._rounds.protocol_type == CONSUMER_PROTOCOL_TYPE and self._rounds.state is not GroupState.DEAD:
            return None
        return self.check_delete()

    def subscribed(self, topic: str) -> bool:
        """None: a consumer may subscribe to anything, because it has no protocol yet or its subscription
        cannot be read.
        """
        rounds = self._rounds
        if rounds.protocol_type != CONSUMER_PROTOCOL_TYPE or self.is_empty:
            return False
        topics = (
            None if rounds.protocol_name is None else rounds.roster.subscribed_topics(rounds.protocol_name)
        )
        return topics is None or topic in topics

    def describe(self) -> GroupDescription:
        """Shows subscriptions only of a Stable group. Before that, its members have not agreed on a
        protocol.
        """
        rounds = self._rounds
        protocol = (rounds.protocol_name if rounds.state is GroupState.STABLE else None) or ""
        return GroupDescription(
            state=rounds.state,
            kind=self.kind,
            generation=rounds.generation,
            assignment_epoch=rounds.generation,
            protocol_type=rounds.protocol_type,
            protocol=protocol,
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(protocol),
                    assignment_bytes=member.assignment,
                )
                for member in rounds.roster
            ),
        )

    # --- JoinGroup

    def _join(self, join: Join, now_ms: int) -> None:
        rounds = self._rounds
        shortest_ms = self._settings.group_min_session_timeout_ms
        longest_ms = self._settings.group_max_session_timeout_ms
        if rounds.state is GroupState.DEAD:
            self._refuse(join, GroupFault.COORDINATOR_UNAVAILABLE, join.member_id)
        elif not shortest_ms <= join.session_timeout_ms <= longest_ms:
            self._refuse(join, GroupFault.INVALID_SESSION_TIMEOUT, join.member_id)
        elif not self._has_room(join):
            self._turn_away(join, now_ms)
        elif not self._supports(join):
            self._refuse(join, GroupFault.INCONSISTENT_PROTOCOL, join.member_id)
        elif not join.member_id:
            self._join_new(join, now_ms)
        elif join.member_id in rounds.pending and join.instance_id is None:
            rounds.admit(_member(join, join.member_id), join.protocol_type, join.token, now_ms)
        elif (fault := self._identity_fault(join.member_id, join.instance_id)) is not None:
            self._refuse(join, fault, join.member_id)
        else:
            self._rejoin(join, now_ms)

    def _refuse(self, join: Join, fault: GroupFault, told_id: str) -> None:
        self._rounds.answer(join.token, JoinAnswer(fault=fault, member_id=told_id))

    def _has_room(self, join: Join) -> bool:
        """While members gather, only the waiting ones count, so the last to come are left out. Ids that were
        given out are counted separately.
        """
        rounds = self._rounds
        most = self._settings.group_max_size
        member_id = join.member_id or rounds.roster.of_instance(join.instance_id or "") or ""
        if not member_id and len(rounds.pending) >= most:
            return False
        if rounds.state is GroupState.EMPTY:
            return True
        if rounds.state is GroupState.PREPARING_REBALANCE:
            return member_id in rounds.joining or len(rounds.joining) < most
        return member_id in rounds.roster or len(rounds.roster) < most

    def _turn_away(self, join: Join, now_ms: int) -> None:
        rounds = self._rounds
        if join.member_id in rounds.roster:
            rounds.remove(join.member_id)
        elif join.member_id in rounds.pending:
            rounds.take_back(join.member_id)
        self._refuse(join, GroupFault.GROUP_FULL, "")
        rounds.end_joining_if_all_joined(now_ms)

    def _supports(self, join: Join) -> bool:
        rounds = self._rounds
        if rounds.state is GroupState.EMPTY:
            return bool(join.protocol_type and join.protocols)
        return join.protocol_type == rounds.protocol_type and rounds.roster.supports(join.protocols)

    def _join_new(self, join: Join, now_ms: int) -> None:
        rounds = self._rounds
        member_id = f"{join.client_id if join.instance_id is None else join.instance_id}-{self._new_id()}"
        replaced_id = None if join.instance_id is None else rounds.roster.of_instance(join.instance_id)
        if replaced_id is not None:
            self._replace_static(join, replaced_id, member_id, now_ms)
        elif join.instance_id is None and join.requires_known_member_id:
            rounds.give_out(member_id, join.session_timeout_ms, now_ms)
            self._refuse(join, GroupFault.MEMBER_ID_REQUIRED, member_id)
        else:
            rounds.admit(_member(join, member_id), join.protocol_type, join.token, now_ms)

    def _replace_static(self, join: Join, replaced_id: str, member_id: str, now_ms: int) -> None:
        """A static member returned under a new id."""
        rounds = self._rounds
        led_before = rounds.leader
        replaced = rounds.roster[replaced_id]
        now = _updated(replace(replaced, member_id=member_id), join)
        rounds.replace_member(replaced_id, now, now_ms)
        if rounds.state is not GroupState.STABLE or self._needs_new_assignment(replaced, now):
            rounds.gather(member_id, join.token, now_ms)
            return
        self._written.write_members()
        answer = rounds.joined(member_id)
        if join.can_skip_assignment:
            answer = replace(answer, skip_assignment=rounds.leader == member_id)
        else:  # It must not take itself for the leader, or it would assign.
            answer = replace(answer, leader=led_before or "", members=())
        rounds.answer(join.token, answer)

    def _needs_new_assignment(self, before: ClassicMember, now: ClassicMember) -> bool:
        """True if the assignment no longer fits. Partitions that a consumer owned do not count, because they
        differ after any restart.
        """
        rounds = self._rounds
        if rounds.roster.vote() != rounds.protocol_name:
            return True
        if rounds.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        topics_before = subscribed_topics(before.metadata(rounds.protocol_name))
        return topics_before != subscribed_topics(now.metadata(rounds.protocol_name))

    def _rejoin(self, join: Join, now_ms: int) -> None:
        rounds = self._rounds
        member = rounds.roster[join.member_id]
        # The leader's join in Stable says that topics changed.
        knows_all = rounds.state is GroupState.COMPLETING_REBALANCE or (
            rounds.state is GroupState.STABLE and rounds.leader != join.member_id
        )
        if knows_all and member.protocols == join.protocols:
            rounds.answer(join.token, rounds.joined(join.member_id))
        else:
            rounds.change(_updated(member, join))
            rounds.gather(join.member_id, join.token, now_ms)

    # --- SyncGroup, Heartbeat, LeaveGroup

    def _sync(self, sync: Sync, now_ms: int) -> None:
        rounds = self._rounds
        fault = self._sync_fault(sync)
        if fault is not None:
            rounds.answer(sync.token, SyncAnswer(fault=fault))
            return
        rounds.synced(sync.member_id)
        if rounds.state is GroupState.STABLE:
            rounds.keep_alive(sync.member_id, now_ms)
            rounds.answer(sync.token, rounds.assigned(sync.member_id))
            return
        rounds.await_assignment(sync.member_id, sync.token)
        if sync.member_id == rounds.leader:
            rounds.assign(sync.assignments, now_ms)

    def _sync_fault(self, sync: Sync) -> GroupFault | None:
        rounds = self._rounds
        if rounds.state is GroupState.DEAD:
            return GroupFault.COORDINATOR_UNAVAILABLE
        fault = self._identity_fault(sync.member_id, sync.instance_id)
        if fault is not None:
            return fault
        if sync.generation != rounds.generation:
            return GroupFault.ILLEGAL_GENERATION
        if sync.protocol_type not in (None, rounds.protocol_type) or sync.protocol_name not in (
            None,
            rounds.protocol_name,
        ):
            return GroupFault.INCONSISTENT_PROTOCOL
        if rounds.state is GroupState.PREPARING_REBALANCE:
            return GroupFault.REBALANCE_IN_PROGRESS
        return None

    def _heartbeat_fault(self, heartbeat: Heartbeat, now_ms: int) -> GroupFault | None:
        rounds = self._rounds
        if rounds.state is GroupState.DEAD:
            return GroupFault.COORDINATOR_UNAVAILABLE
        fault = self._identity_fault(heartbeat.member_id, heartbeat.instance_id)
        if fault is not None:
            return fault
        if heartbeat.generation != rounds.generation:
            return GroupFault.ILLEGAL_GENERATION
        rounds.keep_alive(heartbeat.member_id, now_ms)
        return GroupFault.REBALANCE_IN_PROGRESS if rounds.state is GroupState.PREPARING_REBALANCE else None

    def _leave(self, leave: Leave, now_ms: int) -> None:
        rounds = self._rounds
        if rounds.state is GroupState.DEAD:
            rounds.answer(leave.token, LeaveAnswer(fault=GroupFault.COORDINATOR_UNAVAILABLE))
            return
        members_before = len(rounds.roster)
        left = tuple((leaving, self._leave_one(leaving)) for leaving in leave.members)
        if len(rounds.roster) < members_before:
            rounds.rebalance(now_ms)
        else:  # the group may have waited for an id that was given out
            rounds.end_joining_if_all_joined(now_ms)
        rounds.answer(leave.token, LeaveAnswer(members=left))

    def _leave_one(self, leaving: LeavingMember) -> GroupFault | None:
        rounds = self._rounds
        member_id = leaving.member_id
        if not member_id:  # an administrator knows only the instance
            member_id = rounds.roster.of_instance(leaving.instance_id or "") or ""
        if member_id in rounds.pending:
            rounds.take_back(member_id)
            return None
        fault = self._identity_fault(member_id, leaving.instance_id)
        if fault is None:
            rounds.remove(member_id)
        return fault

    def _identity_fault(self, member_id: str, instance_id: str | None) -> GroupFault | None:
        if instance_id is not None:
            known_id = self._rounds.roster.of_instance(instance_id)
            if known_id is not None and known_id != member_id:
                return GroupFault.FENCED_INSTANCE
            if known_id is None:
                return GroupFault.UNKNOWN_MEMBER
        return None if member_id in self._rounds.roster else GroupFault.UNKNOWN_MEMBER


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


def _updated(member: ClassicMember, join: Join) -> ClassicMember:
    """Returns the member as it describes itself now. Its id, instance and assignment stay."""
    return replace(
        _member(join, member.member_id), instance_id=member.instance_id, assignment=member.assignment
    )
