"""A group of the streams protocol (KIP-1071), as a state machine.

Pure: events and the time come in, answers and changes go out.

Promises:
- A task is active at one member at a time. It goes to its next owner only after its owner said that it gave
  the task up, or was fenced.
- The group asks for internal topics that its topology needs and that are missing (`topics_to_create`). It has
  no tasks before all topics exist.
- Every answer follows from what `take_changes` returned before it, so a coordinator that takes over goes on
  from there.
- A request that needs unknown topics waits until they are seen. It is then handled as if it had come at that
  moment.
"""

from typing import assert_never

from agent.groups.consumer.known_topics import both
from agent.groups.events import (
    Answer,
    Answered,
    CommitFence,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    DescribedStreamsMember,
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
    StreamsDescription,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    Sync,
    SyncAnswer,
    Token,
    TopicsCreated,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.roster import MemberRefused
from agent.groups.settings import GroupSettings
from agent.groups.streams.streams_heartbeats import answer_heartbeat, topics_of
from agent.groups.streams.streams_members import StreamsMember
from agent.groups.streams.streams_membership import StreamsMembership
from agent.groups.streams.streams_roster import STREAMS_PROTOCOL_TYPE, StreamsRoster
from agent.groups.streams.task_endpoints import TaskEndpoints
from agent.groups.streams.topology import InternalTopic
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup

_NO_TOPICS = TopicsWanted()


class StreamsGroup:
    kind: GroupKind = "streams"

    def __init__(self, settings: GroupSettings, stored: StoredGroup | None, now_ms: int) -> None:
        self._roster = StreamsRoster(stored)
        self._group = StreamsMembership(settings, self._roster, now_ms)
        self._endpoints = TaskEndpoints()
        self._parked: dict[Token, StreamsHeartbeat] = {}
        """Requests that wait for topics to be seen, in their order."""
        self._wanted = _NO_TOPICS

    @classmethod
    def converted(
        cls, settings: GroupSettings, *, generation: int, stored_member_ids: frozenset[str], now_ms: int
    ) -> "StreamsGroup":
        """Makes a streams group of a group without members that had another protocol, at its generation."""
        group = cls(settings, None, now_ms)
        group._roster.start_at(generation, "", stored_member_ids)
        return group

    @property
    def stored_member_ids(self) -> frozenset[str]:
        """The members that Postgres has once the changes taken so far are written."""
        return frozenset(self._roster.stored_member_ids)

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

    def handle(self, event: GroupEvent, now_ms: int) -> list[Answered]:
        match event:
            case StreamsHeartbeat():
                return self._serve_or_park(event, now_ms)
            case TopicsSeen():
                self._group.see(event, now_ms)
                parked, self._parked = self._parked, {}
                return [
                    answered for each in parked.values() for answered in self._serve_or_park(each, now_ms)
                ]
            case TopicsCreated():
                self._group.note_created(event.refused, now_ms)
                return []
            case _:
                return [Answered(token=event.token, answer=_refusal(event))]

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
            wanted = both(wanted, topics_of(parked))
        if wanted != self._wanted:
            self._wanted = wanted
        return self._wanted

    def topics_to_create(self) -> tuple[InternalTopic, ...]:
        return self._group.topics_to_create()

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,  # noqa: ARG002  # there are no static members
        generation: int,
        now_ms: int,  # noqa: ARG002  # a commit is not a sign of life here
    ) -> CommitFence | GroupFault:
        if generation < 0 and self.is_empty:
            return CommitFence()
        fault = self._check_member(member_id, generation)
        if fault is not None:
            return fault
        return CommitFence(member_id=member_id, member_epoch=self._roster.members[member_id].epoch)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupFault | None:
        if member_id is None and member_epoch < 0:
            return None
        return self._check_member(member_id or "", member_epoch)

    def check_delete(self) -> GroupFault | None:
        return None if self.is_empty else GroupFault.GROUP_NOT_EMPTY

    def check_offset_delete(self) -> GroupFault | None:
        """Offsets of topics that the topology does not read (`subscribed`) may always be deleted."""
        return None

    def subscribed(self, topic: str) -> bool:
        topology = self._roster.topology
        if self.is_empty or topology is None:
            return False
        return any(topic in part.all_sources for part in topology.subtopologies)

    def describe(self) -> GroupDescription:
        plan = self._group.plan
        return GroupDescription(
            state=self.state,
            kind=self.kind,
            generation=self._roster.epoch,
            assignment_epoch=self._roster.assignment_epoch,
            protocol_type=STREAMS_PROTOCOL_TYPE,
            protocol="",
            members=(),
            streams=StreamsDescription(
                topology=self._roster.topology,
                partition_counts=plan.partition_counts if plan.task_counts else None,
                members=tuple(map(self._described, self._roster.members.values())),
            ),
        )

    def configure(self, settings: GroupSettings) -> None:
        self._group.configure(settings)

    # --- within

    def _serve_or_park(self, event: StreamsHeartbeat, now_ms: int) -> list[Answered]:
        topics = self._group.topics
        if not (topics.cover(self._group.wanted()) and topics.cover(topics_of(event))):
            self._parked[event.token] = event
            return []
        try:
            answer = answer_heartbeat(self._group, self._endpoints, event, now_ms)
        except MemberRefused as refused:
            answer = StreamsHeartbeatAnswer(fault=refused.fault, message=refused.message)
        return [Answered(token=event.token, answer=answer)]

    def _check_member(self, member_id: str, epoch: int) -> GroupFault | None:
        member = self._roster.members.get(member_id)
        if member is None:
            return GroupFault.UNKNOWN_MEMBER
        is_current = member.commit_epoch <= epoch <= member.epoch
        return None if is_current else GroupFault.STALE_MEMBER_EPOCH

    def _described(self, member: StreamsMember) -> DescribedStreamsMember:
        return DescribedStreamsMember(
            member_id=member.member_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_epoch=member.epoch,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            endpoint=member.endpoint,
            client_tags=member.client_tags,
            assignment=member.assigned,
            target_assignment=self._roster.target(member.member_id),
        )


def _refusal(event: Join | Sync | Heartbeat | Leave | ConsumerHeartbeat) -> Answer:
    """Answers a member of another protocol, as Kafka does."""
    match event:
        case Join():
            return JoinAnswer(fault=GroupFault.INCONSISTENT_PROTOCOL, member_id=event.member_id)
        case Sync():
            return SyncAnswer(fault=GroupFault.UNKNOWN_MEMBER)
        case Heartbeat():
            return HeartbeatAnswer(fault=GroupFault.UNKNOWN_MEMBER)
        case Leave():
            return LeaveAnswer(
                members=tuple((leaving, GroupFault.UNKNOWN_MEMBER) for leaving in event.members)
            )
        case ConsumerHeartbeat():
            return ConsumerHeartbeatAnswer(
                fault=GroupFault.GROUP_NOT_FOUND, message="It is a streams group, not a consumer group."
            )
        case _:
            assert_never(event)
