"""A group of the new consumer group protocol (KIP-848), as a state machine.

Pure: events and the time come in, answers and changes go out.

Promises:
- A partition has one owner at a time. It goes to its next owner only after its owner said that it gave the
  partition up, or was fenced.
- After a change of members, subscriptions or topics, the fewest partitions move that the assignor allows. A
  member that is not concerned hears nothing.
- Every answer follows from what `take_changes` returned before it, so a coordinator that takes over goes on
  from there.
- A request that needs unknown topics waits until they are seen. It is then handled as if it had come at that
  moment.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE
from agent.groups.consumer import consumer_classic, consumer_heartbeats
from agent.groups.consumer.consumer_members import ConsumerMember
from agent.groups.consumer.consumer_membership import ConsumerMembership
from agent.groups.consumer.consumer_roster import ConsumerRoster
from agent.groups.consumer.known_topics import KnownTopics, both
from agent.groups.events import (
    Answer,
    Answered,
    Assignment,
    CommitFence,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    DescribedMember,
    GroupDescription,
    GroupFault,
    GroupState,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    Sync,
    SyncAnswer,
    Token,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.roster import MemberRefused
from agent.groups.settings import GroupSettings
from agent.groups.streams.topology import InternalTopic
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup

Request: TypeAlias = Join | Sync | Heartbeat | Leave | ConsumerHeartbeat

_NO_TOPICS = TopicsWanted()


class ConsumerGroup:
    kind: GroupKind = "consumer"

    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        stored: StoredGroup | None,
        now_ms: int,
    ) -> None:
        self._roster = ConsumerRoster(stored)
        self._topics = KnownTopics()
        self._group = ConsumerMembership(settings, new_id, self._roster, self._topics, now_ms)
        self._parked: dict[Token, Request] = {}
        """Requests that wait for topics to be seen, in their order."""
        self._wanted = _NO_TOPICS

    @classmethod
    def converted(
        cls,
        settings: GroupSettings,
        new_id: Callable[[], str],
        *,
        members: Sequence[tuple[ConsumerMember, Assignment]],
        generation: int,
        stored_member_ids: frozenset[str],
        seen: TopicsSeen,
        now_ms: int,
    ) -> "ConsumerGroup":
        """Makes a new-protocol group of a group that was classic until now, with its members and their
        targets, at its generation.

        If the targets leave partitions without an owner, its epoch is one higher, and the targets are made
        again. `seen` must show all its topics. `stored_member_ids` are the members that Postgres has; the
        first change writes the members and deletes the others.
        """
        group = cls(settings, new_id, None, now_ms)
        for member, target in members:
            group._group.settle_in(member, target, now_ms)
        group._topics.see(seen)
        group._group.start_at(generation, stored_member_ids)
        return group

    # --- what a conversion to the classic protocol reads

    @property
    def members(self) -> Sequence[ConsumerMember]:
        return tuple(self._roster.members.values())

    @property
    def has_classic_members_only(self) -> bool:
        """Also true for a group without members."""
        return self._roster.new_protocol_members == 0

    @property
    def stored_member_ids(self) -> frozenset[str]:
        """The members that Postgres has once the changes taken so far are written."""
        return frozenset(self._roster.stored_member_ids)

    @property
    def topics(self) -> KnownTopics:
        return self._topics

    def take_parked(self) -> list[Request]:
        """Hands over the requests that wait for topics. The caller now owns them."""
        parked, self._parked = self._parked, {}
        return list(parked.values())

    # --- the interface of every machine

    @property
    def state(self) -> GroupState:
        return self._roster.state

    @property
    def is_empty(self) -> bool:
        return not self._roster.members

    @property
    def generation(self) -> int:
        return self._roster.epoch

    def handle(self, event: Request | TopicsSeen, now_ms: int) -> list[Answered]:
        if not isinstance(event, TopicsSeen):
            return self._serve_or_park(event, now_ms)
        self._group.see(event)
        answered = []
        for parked in self.take_parked():
            answered += self._serve_or_park(parked, now_ms)
        return answered

    def tick(self, now_ms: int) -> list[Answered]:
        """Fences members whose timers are due. No answer waits for time to pass."""
        self._group.tick(now_ms)
        return []

    def next_deadline_ms(self) -> int | None:
        return self._group.deadlines.next_ms()

    def take_changes(self) -> GroupChange | None:
        return self._roster.take_changes()

    def forget(self, token: Token) -> None:
        self._parked.pop(token, None)

    def topics_wanted(self) -> TopicsWanted:
        wanted = self._group.wanted()
        for parked in self._parked.values():
            wanted = both(wanted, _topics_of(parked))
        if wanted != self._wanted:
            self._wanted = wanted
        return self._wanted

    def topics_to_create(self) -> tuple[InternalTopic, ...]:
        return ()

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,  # noqa: ARG002  # a commit is not a sign of life here
    ) -> CommitFence | GroupFault:
        if generation < 0 and self.is_empty:
            return CommitFence()
        fault = self._check_member(member_id, generation)
        if fault is not None:
            return fault
        static = None if instance_id is None else self._roster.static_member(instance_id)
        if static is not None and static.member_id != member_id:
            return GroupFault.FENCED_INSTANCE
        return CommitFence(member_id=member_id, member_epoch=generation)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None:
        if member_id is None and member_epoch < 0:
            return None
        return self._check_member(member_id or "", member_epoch)

    def check_delete(self) -> GroupFault | None:
        return None if self.is_empty else GroupFault.GROUP_NOT_EMPTY

    def check_offset_delete(self) -> GroupFault | None:
        """Offsets of topics without subscribers (`subscribed`) may always be deleted."""
        return None

    def subscribed(self, topic: str) -> bool:
        return any(topic in self._topics.subscribed(member) for member in self._roster.members.values())

    def subscribes_by_regex(self, member_id: str) -> bool:
        member = self._roster.members.get(member_id)
        return member is not None and member.regex is not None

    def describe(self) -> GroupDescription:
        return GroupDescription(
            state=self.state,
            kind=self.kind,
            generation=self._roster.epoch,
            assignment_epoch=self._roster.assignment_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol=self._roster.assignor,
            members=tuple(map(self._described, self._roster.members.values())),
        )

    def configure(self, settings: GroupSettings) -> None:
        self._group.settings = settings

    # --- within

    def _serve_or_park(self, event: Request, now_ms: int) -> list[Answered]:
        if not (self._topics.cover(self._group.wanted()) and self._topics.cover(_topics_of(event))):
            self._parked[event.token] = event
            return []
        return [Answered(token=event.token, answer=self._serve(event, now_ms))]

    def _serve(self, event: Request, now_ms: int) -> Answer:
        try:
            match event:
                case ConsumerHeartbeat():
                    return consumer_heartbeats.answer_heartbeat(self._group, event, now_ms)
                case Join():
                    return consumer_classic.answer_join(self._group, event, now_ms)
                case Sync():
                    return consumer_classic.answer_sync(self._group, event, now_ms)
                case Heartbeat():
                    return consumer_classic.answer_heartbeat(self._group, event, now_ms)
                case Leave():
                    return consumer_classic.answer_leave(self._group, event)
                case _:
                    assert_never(event)
        except MemberRefused as refused:
            return _refusal(event, refused)

    def _check_member(self, member_id: str, epoch: int) -> GroupFault | None:
        member = self._roster.members.get(member_id)
        if member is None:
            return GroupFault.UNKNOWN_MEMBER
        if member.epoch != epoch:
            return GroupFault.STALE_MEMBER_EPOCH if member.classic is None else GroupFault.ILLEGAL_GENERATION
        return None

    def _described(self, member: ConsumerMember) -> DescribedMember:
        return DescribedMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            subscribed_topics=tuple(sorted(member.topics)),
            subscribed_regex=member.regex,
            assignment=member.assigned,
            target_assignment=self._roster.target(member.member_id),
            is_classic=member.classic is not None,
        )


def _topics_of(event: Request) -> TopicsWanted:
    match event:
        case ConsumerHeartbeat():
            return consumer_heartbeats.topics_of(event)
        case Join():
            return consumer_classic.topics_of(event)
        case _:
            return _NO_TOPICS


def _refusal(event: Request, refused: MemberRefused) -> Answer:
    match event:
        case ConsumerHeartbeat():
            return ConsumerHeartbeatAnswer(fault=refused.fault, message=refused.message)
        case Join():
            return JoinAnswer(fault=refused.fault, member_id=event.member_id)
        case Sync():
            return SyncAnswer(fault=refused.fault)
        case Heartbeat():
            return HeartbeatAnswer(fault=refused.fault)
        case Leave():
            raise AssertionError("each member that cannot leave has its own fault") from refused
        case _:
            assert_never(event)
