"""The classic consumer group protocol: a group as its coordinator has it (`machine.py`), taken over from Postgres.

Pure: events and the time come in, answers and changes go out. How generations follow each other is told in
`classic_rounds.py`, what each request is answered in `classic_requests.py`.

What must be in Postgres before the answers go out (`take_changes`): each new state with its generation, so that one who
takes over begins an interrupted rebalance again and no generation is given out twice; the members when a generation is
assigned and when a static member is replaced; and whenever the state is written, that those who left are gone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE, ClassicMember
from agent.groups.classic.classic_requests import ClassicRequests
from agent.groups.classic.classic_stored import group_document, restored_member, stored_member
from agent.groups.coordinator.deadlines import Deadlines
from agent.groups.events import (
    Answered,
    CommitFence,
    DescribedMember,
    GroupDescription,
    GroupFault,
    GroupState,
    JoinAnswer,
    SyncAnswer,
    TopicsWanted,
)
from agent.groups.settings import GroupSettings
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup, StoredMember


class ClassicGroup(ClassicRequests):
    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        new_id: Callable[[], str],
        stored: StoredGroup | None,
        now_ms: int,
    ) -> None:
        super().__init__(group_id, settings, new_id)
        self._written = (GroupState.EMPTY.value, 0, "")
        """State, generation and protocol type that Postgres has."""
        self._stored_ids: set[str] = set()
        self._members_due = False
        """Members are to be written although the state is not new."""
        if stored is not None:
            self._take_over(stored, now_ms)

    @classmethod
    def converted(
        cls,
        group_id: str,
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
        """A group that was of the new protocol until now: Stable with these members and their assignments, at this
        generation, the first member leading; with a rebalance begun if asked (`False`: the event handled next begins
        one). Without members it is Empty. `stored_member_ids` are those that Postgres has; the first change writes the
        members and deletes the rest."""
        group = cls(group_id, settings, new_id, None, now_ms)
        group._settle_in(members, None, now_ms)
        group._generation = generation
        group._protocol_type = protocol_type
        group._protocol_name = group._roster.vote() if members else None
        group._stored_ids = set(stored_member_ids)
        group._members_due = True
        if begin_rebalance and members:
            group._begin_rebalance(now_ms)
        return group

    def _take_over(self, stored: StoredGroup, now_ms: int) -> None:
        """Every member has a session timeout to say that it is there. A rebalance that was under way begins again."""
        members = [restored_member(member_id, member) for member_id, member in stored.members.items()]
        self._settle_in(members, stored.document.get("leader"), now_ms)
        self._generation = stored.generation
        self._protocol_type = stored.protocol_type
        self._protocol_name = stored.document.get("protocol_name")
        self._written = (stored.state, stored.generation, stored.protocol_type)
        self._stored_ids = set(stored.members)
        self._roster.settle(stored.members)
        if members and stored.state != GroupState.STABLE.value:
            self._begin_rebalance(now_ms)

    def _settle_in(self, members: Sequence[ClassicMember], leader: str | None, now_ms: int) -> None:
        for member in members:
            self._roster.put(member)
            self._keep_alive(member.member_id, now_ms)
        if members:
            self._state = GroupState.STABLE
            self._leader = leader if leader and leader in self._roster else members[0].member_id

    # --- what a conversion to the new protocol reads

    @property
    def members(self) -> Mapping[str, ClassicMember]:
        """By member id, without pending ones."""
        return self._roster.by_id

    @property
    def stored_member_ids(self) -> frozenset[str]:
        """The members that Postgres has once the changes taken so far are written."""
        return frozenset(self._stored_ids)

    @property
    def protocol_type(self) -> str:
        """Empty while no member ever joined."""
        return self._protocol_type

    @property
    def protocol_name(self) -> str | None:
        """The assignor that the members voted for; None while there is none."""
        return self._protocol_name

    def dismiss(self, fault: GroupFault) -> list[Answered]:
        """Answers every waiting JoinGroup and SyncGroup with this fault, and is Dead: before a conversion
        (REBALANCE_IN_PROGRESS), or when the group is unloaded. What was known of the members can still be read."""
        self._state = GroupState.DEAD
        self._sessions = Deadlines()
        self._initial = self._join_due_ms = self._sync_due_ms = None
        for member_id in self._joining.member_ids():
            self._answer(self._joining.take(member_id), JoinAnswer(fault=fault, member_id=member_id))
        for member_id in self._syncing.member_ids():
            self._answer(self._syncing.take(member_id), SyncAnswer(fault=fault))
        return self._take_answers()

    # --- the interface of every machine (`machine.py`)

    @property
    def kind(self) -> GroupKind:
        return "classic"

    @property
    def state(self) -> GroupState:
        return self._state

    @property
    def is_empty(self) -> bool:
        return not len(self._roster)

    @property
    def generation(self) -> int:
        return self._generation

    def topics_wanted(self) -> TopicsWanted:
        """None: the members' leader assigns."""
        return TopicsWanted()

    def take_changes(self) -> GroupChange | None:
        now_written = (self._state.value, self._generation, self._protocol_type)
        if now_written == self._written and not self._members_due:
            return None
        members: dict[str, StoredMember | None] = dict.fromkeys(sorted(self._stored_ids - self._roster.by_id.keys()))
        if self._state is GroupState.STABLE or self._members_due:
            members |= {
                member.member_id: stored_member(member, self._generation)
                for member in self._roster
                if member.member_id in self._roster.touched
            }
        self._roster.settle(members)
        self._stored_ids = {member_id for member_id in self._stored_ids | members.keys() if member_id in self._roster}
        self._written = now_written
        self._members_due = False
        return GroupChange(
            kind="classic",
            generation=self._generation,
            state=self._state.value,
            protocol_type=self._protocol_type,
            document=group_document(self._protocol_name, self._leader),
            members=members,
            is_empty=self.is_empty,
        )

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> CommitFence | GroupFault:
        """Without a member only to a group that has none. While members gather they may still commit what they had; a
        new generation's members may not before they know what they have."""
        if self._state is GroupState.DEAD:
            return GroupFault.COORDINATOR_UNAVAILABLE
        if generation < 0 and self._state is GroupState.EMPTY:
            return CommitFence()
        if generation < 0 and not member_id and instance_id is None:
            return GroupFault.UNKNOWN_MEMBER
        fault = self._identity_fault(member_id, instance_id)
        if fault is not None:
            return fault
        if generation != self._generation:
            return GroupFault.ILLEGAL_GENERATION
        if self._state is GroupState.COMPLETING_REBALANCE:
            return GroupFault.REBALANCE_IN_PROGRESS
        self._keep_alive(member_id, now_ms)
        return CommitFence(generation=generation)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None:  # noqa: ARG002
        """Anybody may read the offsets of a classic group."""
        return GroupFault.GROUP_NOT_FOUND if self._state is GroupState.DEAD else None

    def check_delete(self) -> GroupFault | None:
        if self._state is GroupState.DEAD:
            return GroupFault.GROUP_NOT_FOUND
        return None if self._state is GroupState.EMPTY else GroupFault.GROUP_NOT_EMPTY

    def check_offset_delete(self) -> GroupFault | None:
        """Only of consumers is known what they subscribe to (`subscribed`)."""
        if self._protocol_type == CONSUMER_PROTOCOL_TYPE and self._state is not GroupState.DEAD:
            return None
        return self.check_delete()

    def subscribed(self, topic: str) -> bool:
        """Consumers that have no protocol yet, or whose subscription cannot be read, may subscribe to anything."""
        if self._protocol_type != CONSUMER_PROTOCOL_TYPE or self.is_empty:
            return False
        topics = None if self._protocol_name is None else self._roster.subscribed_topics(self._protocol_name)
        return topics is None or topic in topics

    def describe(self) -> GroupDescription:
        """What members subscribe to is told only of a Stable group: before, they have not agreed on a protocol."""
        protocol = (self._protocol_name if self._state is GroupState.STABLE else None) or ""
        return GroupDescription(
            state=self._state,
            kind=self.kind,
            generation=self._generation,
            assignment_epoch=self._generation,
            protocol_type=self._protocol_type,
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
                for member in self._roster
            ),
        )
