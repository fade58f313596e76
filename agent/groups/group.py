"""A group of any protocol. Between the two protocols of consumers it is converted live, in both directions
(KIP-848, online migration). Pure.

It is a classic group until a member of the new protocol joins. Then its members go on as classic members of a
group of the new protocol. When the last member of the new protocol is gone and classic ones remain, it is a
classic group again and rebalances. A group without members takes the protocol of the first member that joins.

Promises:
- A refused request converts nothing.
- The group's epoch or generation never goes down.
- A conversion forgets no partition that a member may still be consuming from. To the new protocol, both
  count: what a classic member was assigned, and what it said it still had. To the classic one, a partition
  that a member is giving up counts as assigned to it.

As in Kafka, a group of another protocol type, or with bytes of members that are not consumers', is not
converted (GROUP_ID_NOT_FOUND to the heartbeats, INCONSISTENT_GROUP_PROTOCOL to JoinGroup). A streams group
(KIP-1071) is converted only while it has no members.
"""

from collections.abc import Callable, Iterable, Sequence

from agent.groups.classic.classic import ClassicGroup
from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE, ClassicMember
from agent.groups.consumer.consumer import ConsumerGroup
from agent.groups.consumer.consumer_heartbeats import topics_of
from agent.groups.consumer.consumer_members import (
    JOIN_EPOCH,
    NOTHING,
    ClassicSide,
    ConsumerMember,
)
from agent.groups.consumer.consumer_protocol import (
    Malformed,
    by_id,
    by_name,
    read_assignment,
    read_subscription,
    write_assignment,
)
from agent.groups.consumer.known_topics import KnownTopics, both
from agent.groups.events import (
    Answered,
    Assignment,
    CommitFence,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupDescription,
    GroupEvent,
    GroupFault,
    GroupState,
    Join,
    JoinAnswer,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    Token,
    TopicsCreated,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.partition_sets import chosen, partitions_of, united, without
from agent.groups.settings import GroupSettings
from agent.groups.streams.streams import StreamsGroup
from agent.groups.streams.topology import InternalTopic
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup
from storage.identifiers import Partition, TopicId


class CannotConvert(Exception):
    """The members' bytes are not those of consumers, or a conversion would lose a custom assignor's data."""


def topics_to_convert(members: Iterable[ClassicMember]) -> TopicsWanted:
    """Raises `CannotConvert`."""
    names: set[str] = set()
    try:
        for member in members:
            subscription = read_subscription(member.protocols[0].metadata)
            assignment = read_assignment(member.assignment)
            if assignment.user_data:
                raise CannotConvert("a custom assignor's user data would be lost")
            names |= subscription.topics | subscription.owned.keys() | assignment.partitions.keys()
    except Malformed as error:
        raise CannotConvert("a member's bytes are not of the consumer protocol") from error
    return TopicsWanted(names=frozenset(names))


def as_consumer_members(
    members: Iterable[ClassicMember], generation: int, *, is_stable: bool, topics: KnownTopics
) -> list[tuple[ConsumerMember, Assignment]]:
    """Returns each member with its target, which is what it has now.

    `is_stable`: true if all members have the leader's assignment. A cooperative member that had more is then
    giving that up. Otherwise members have what they named when they rejoined. If two claim a partition, the
    assignment decides, then the order of the members. `topics_to_convert` must be known.
    """
    taken: set[tuple[TopicId, Partition]] = set()

    def claim(claimed: Assignment) -> Assignment:
        mine = chosen(claimed, lambda topic, partition: (topic, partition) not in taken)
        taken.update(partitions_of(mine))
        return mine

    listed = list(members)
    assigned = {
        member.member_id: claim(by_id(read_assignment(member.assignment).partitions, topics.id_of))
        for member in listed
    }
    converted = []
    for member in listed:
        subscription = read_subscription(member.protocols[0].metadata)
        mine = assigned[member.member_id]
        more = claim(without(by_id(subscription.owned, topics.id_of), mine))
        new = ConsumerMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=subscription.topics,
            epoch=generation,
            previous_epoch=generation,
            assigned=mine if is_stable else united(mine, more),
            revoking=more if is_stable else NOTHING,
            classic=ClassicSide(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
        )
        converted.append((new, new.assigned))
    return converted


def as_classic_members(members: Iterable[ConsumerMember], topics: KnownTopics) -> list[ClassicMember]:
    """Returns the members that speak the classic protocol."""
    return [
        ClassicMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.classic.protocols,
            assignment=write_assignment(
                by_name(member.owned, topics.name_of), like=member.classic.protocols[0].metadata
            ),
        )
        for member in members
        if member.classic is not None
    ]


class Group:
    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        stored: StoredGroup | None,
        now_ms: int,
    ) -> None:
        self._settings = settings
        self._new_id = new_id
        self._machine: ClassicGroup | ConsumerGroup | StreamsGroup
        if stored is not None and stored.kind == "streams":
            self._machine = StreamsGroup(settings, stored, now_ms)
        else:
            make = ConsumerGroup if stored is not None and stored.kind == "consumer" else ClassicGroup
            self._machine = make(settings, new_id, stored, now_ms)
        self._joining: dict[Token, ConsumerHeartbeat] = {}
        """Members that would convert this classic group, once its topics are seen."""
        self._wanted = TopicsWanted()
        self._seen = TopicsSeen(topics={}, asked=TopicsWanted())
        self._topics = KnownTopics()

    # --- the interface of every machine

    @property
    def state(self) -> GroupState:
        return self._machine.state

    @property
    def is_empty(self) -> bool:
        return self._machine.is_empty

    @property
    def kind(self) -> GroupKind:
        return self._machine.kind

    @property
    def generation(self) -> int:
        return self._machine.generation

    def handle(self, event: GroupEvent, now_ms: int) -> list[Answered]:
        if isinstance(event, TopicsSeen):
            return self._see(event, now_ms)
        if isinstance(event, StreamsHeartbeat | TopicsCreated):
            return self._handle_streams(event, now_ms)
        machine = self._machine
        if isinstance(machine, StreamsGroup):
            if not machine.is_empty or not _founds(event):
                return machine.handle(event, now_ms)
            machine = self._machine = self._as_empty_classic_group(machine, now_ms)
        if isinstance(machine, ClassicGroup):
            if isinstance(event, ConsumerHeartbeat):
                return self._join_classic_group(machine, event, now_ms)
            return machine.handle(event, now_ms)
        if (
            isinstance(event, Join)
            and (answered := self._join_as_classic_group(machine, event, now_ms)) is not None
        ):
            return answered
        return machine.handle(event, now_ms) + self._downgrade_if_due(now_ms)

    def tick(self, now_ms: int) -> list[Answered]:
        return self._machine.tick(now_ms) + self._downgrade_if_due(now_ms)

    def next_deadline_ms(self) -> int | None:
        return self._machine.next_deadline_ms()

    def take_changes(self) -> GroupChange | None:
        return self._machine.take_changes()

    def forget(self, token: Token) -> None:
        self._joining.pop(token, None)
        self._machine.forget(token)

    def topics_wanted(self) -> TopicsWanted:
        if isinstance(self._machine, ConsumerGroup | StreamsGroup):
            return self._machine.topics_wanted()
        wanted = TopicsWanted()
        for event in self._joining.values():
            wanted = both(wanted, topics_of(event))
        if self._joining:
            wanted = both(wanted, self._to_convert(self._machine))
        if wanted != self._wanted:
            self._wanted = wanted
        return self._wanted

    def topics_to_create(self) -> tuple[InternalTopic, ...]:
        return self._machine.topics_to_create()

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> CommitFence | GroupFault:
        return self._machine.check_commit(member_id, instance_id, generation, now_ms)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None:
        return self._machine.check_fetch(member_id, member_epoch)

    def check_delete(self) -> GroupFault | None:
        return self._machine.check_delete()

    def check_offset_delete(self) -> GroupFault | None:
        return self._machine.check_offset_delete()

    def subscribed(self, topic: str) -> bool:
        return self._machine.subscribed(topic)

    def subscribes_by_regex(self, member_id: str) -> bool:
        machine = self._machine
        return isinstance(machine, ConsumerGroup) and machine.subscribes_by_regex(member_id)

    def describe(self) -> GroupDescription:
        return self._machine.describe()

    def configure(self, settings: GroupSettings) -> None:
        """Uses these settings from now on. A session that has begun keeps its length."""
        self._settings = settings
        self._machine.configure(settings)

    # --- to the new protocol

    def _see(self, seen: TopicsSeen, now_ms: int) -> list[Answered]:
        self._seen = seen
        self._topics.see(seen)
        joining, self._joining = self._joining, {}
        machine = self._machine
        answered = [] if isinstance(machine, ClassicGroup) else machine.handle(seen, now_ms)
        for event in joining.values():
            answered += self.handle(event, now_ms)
        return answered + self._downgrade_if_due(now_ms)

    def _join_classic_group(
        self, classic: ClassicGroup, event: ConsumerHeartbeat, now_ms: int
    ) -> list[Answered]:
        if event.member_epoch != JOIN_EPOCH:
            return _not_found(event, "It is not a group of the new protocol.")
        if not classic.is_empty and classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return _not_found(event, f"Its members are of the protocol type {classic.protocol_type}.")
        try:
            needed = both(topics_to_convert(classic.members.values()), topics_of(event))
        except CannotConvert as error:
            return _not_found(event, f"It cannot be converted: {error}.")
        if not self._topics.cover(needed):
            self._joining[event.token] = event
            return []
        consumer = self._as_consumer_group(classic, now_ms)
        answered = consumer.handle(event, now_ms)
        if consumer.has_classic_members_only:
            return answered  # it was refused
        self._machine = consumer
        answered = classic.dismiss(GroupFault.REBALANCE_IN_PROGRESS) + answered
        joining, self._joining = self._joining, {}
        for other in joining.values():
            answered += self.handle(other, now_ms)
        return answered

    def _as_consumer_group(self, classic: ClassicGroup, now_ms: int) -> ConsumerGroup:
        return ConsumerGroup.converted(
            self._settings,
            self._new_id,
            members=as_consumer_members(
                classic.members.values(),
                classic.generation,
                is_stable=classic.state is GroupState.STABLE,
                topics=self._topics,
            ),
            generation=classic.generation,
            stored_member_ids=classic.stored_member_ids,
            seen=self._seen,
            now_ms=now_ms,
        )

    def _to_convert(self, classic: ClassicGroup) -> TopicsWanted:
        try:
            return topics_to_convert(classic.members.values())
        except (
            CannotConvert
        ):  # a member joined meanwhile; requests that wait are refused when the topics are seen
            return TopicsWanted()

    # --- to and from the streams protocol

    def _handle_streams(self, event: StreamsHeartbeat | TopicsCreated, now_ms: int) -> list[Answered]:
        machine = self._machine
        if isinstance(machine, StreamsGroup):
            return machine.handle(event, now_ms)
        assert isinstance(event, StreamsHeartbeat), "only a streams group creates topics"
        if event.member_epoch != JOIN_EPOCH or not machine.is_empty:
            answer = StreamsHeartbeatAnswer(
                fault=GroupFault.GROUP_NOT_FOUND,
                message=f"It is a {machine.kind} group, not a streams group.",
            )
            return [Answered(token=event.token, answer=answer)]
        streams = StreamsGroup.converted(
            self._settings,
            generation=machine.generation,
            stored_member_ids=machine.stored_member_ids,
            now_ms=now_ms,
        )
        self._machine = streams
        waiting: list[GroupEvent] = []
        answered: list[Answered] = []
        if isinstance(machine, ClassicGroup):
            answered += machine.dismiss(GroupFault.REBALANCE_IN_PROGRESS)
            waiting += self._joining.values()
            self._joining = {}
        else:
            waiting += machine.take_parked()
        answered += streams.handle(self._seen, now_ms) + streams.handle(event, now_ms)
        for other in waiting:
            answered += streams.handle(other, now_ms)
        return answered

    def _as_empty_classic_group(self, streams: StreamsGroup, now_ms: int) -> ClassicGroup:
        return ClassicGroup.converted(
            self._settings,
            self._new_id,
            members=[],
            generation=streams.generation,
            protocol_type="",
            stored_member_ids=streams.stored_member_ids,
            begin_rebalance=False,
            now_ms=now_ms,
        )

    # --- to the classic protocol

    def _join_as_classic_group(
        self, consumer: ConsumerGroup, event: Join, now_ms: int
    ) -> list[Answered] | None:
        """Handles JoinGroup to a group without members, or of a static member that returns with the classic
        protocol in the place of the last member of the new one. None if it is neither.
        """
        others = [
            member
            for member in consumer.members
            if event.instance_id is None or event.member_id or member.instance_id != event.instance_id
        ]
        if any(member.classic is None for member in others) or (
            others and len(others) == len(consumer.members)
        ):
            return None
        if not consumer.topics.cover(consumer.topics_wanted()):
            return None
        classic = self._as_classic_group(consumer, others, begin_rebalance=False, now_ms=now_ms)
        answered = classic.handle(event, now_ms)
        if any(_refuses(one, event) for one in answered):
            return answered
        return answered + self._become_classic(consumer, classic, now_ms)

    def _downgrade_if_due(self, now_ms: int) -> list[Answered]:
        """Converts back to the classic protocol if no member speaks the new one any more."""
        consumer = self._machine
        if not isinstance(consumer, ConsumerGroup) or consumer.is_empty:
            return []
        if not consumer.has_classic_members_only:
            return []
        if not consumer.topics.cover(consumer.topics_wanted()):
            return []
        classic = self._as_classic_group(consumer, consumer.members, begin_rebalance=True, now_ms=now_ms)
        return self._become_classic(consumer, classic, now_ms)

    def _as_classic_group(
        self,
        consumer: ConsumerGroup,
        members: Sequence[ConsumerMember],
        *,
        begin_rebalance: bool,
        now_ms: int,
    ) -> ClassicGroup:
        return ClassicGroup.converted(
            self._settings,
            self._new_id,
            members=as_classic_members(members, consumer.topics),
            generation=consumer.generation,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            stored_member_ids=consumer.stored_member_ids,
            begin_rebalance=begin_rebalance,
            now_ms=now_ms,
        )

    def _become_classic(self, consumer: ConsumerGroup, classic: ClassicGroup, now_ms: int) -> list[Answered]:
        self._machine = classic
        answered: list[Answered] = []
        for event in consumer.take_parked():
            answered += self.handle(event, now_ms)
        return answered


def _founds(event: GroupEvent) -> bool:
    """True if a consumer joins with it, which may be the first of a group."""
    return isinstance(event, Join) or (
        isinstance(event, ConsumerHeartbeat) and event.member_epoch == JOIN_EPOCH
    )


def _refuses(answered: Answered, event: Join) -> bool:
    """True if the group refuses it. A member that gets a new id is let in when it returns with that id."""
    return (
        answered.token == event.token
        and isinstance(answered.answer, JoinAnswer)
        and answered.answer.fault not in (None, GroupFault.MEMBER_ID_REQUIRED)
    )


def _not_found(event: ConsumerHeartbeat, why: str) -> list[Answered]:
    answer = ConsumerHeartbeatAnswer(
        fault=GroupFault.GROUP_NOT_FOUND, message=f"The group is not found. {why}"
    )
    return [Answered(token=event.token, answer=answer)]
