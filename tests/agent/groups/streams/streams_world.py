"""A streams group's world in virtual time: clients, a coordinator that dies, and the topics.

A client processes a task from the moment when it takes what it was told until it told the coordinator that it
gave the task up, or is no member any more.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import UUID

from agent.groups.events import (
    Answered,
    GroupFault,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    Tasks,
    TaskSets,
    Token,
    TopicsCreated,
    TopicShape,
    TopicsSeen,
)
from agent.groups.partition_sets import partitions_of
from agent.groups.settings import GroupSettings
from agent.groups.streams.streams import StreamsGroup
from agent.groups.streams.topology import InternalTopic, Subtopology, Topology, topology_of
from sequencer.groups.stored_groups import StoredGroup, StoredMember
from storage.identifiers import Partition, TopicId

SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 10_000, 15_000, 1_000
SETTINGS = GroupSettings(
    group_streams_session_timeout_ms=SESSION_MS,
    group_streams_heartbeat_interval_ms=HEARTBEAT_MS,
    group_streams_num_standby_replicas=1,
    group_streams_initial_rebalance_delay_ms=0,
)


def a_topic(name: str, partition_count: int = 0, config: Mapping[str, str] | None = None) -> InternalTopic:
    return InternalTopic(name=name, partition_count=partition_count, config=config or {})


def a_part(subtopology_id: str, *sources: str, **parts: Any) -> Subtopology:
    given: dict[str, Any] = {
        "repartition_sources": (),
        "repartition_sinks": (),
        "changelogs": (),
        "copartitioned": (),
    }
    return Subtopology(subtopology_id=subtopology_id, source_topics=sources, **(given | parts))


WORD_COUNT = topology_of(
    0,
    [
        a_part("0", "lines", repartition_sinks=("words",)),
        a_part("1", repartition_sources=(a_topic("words"),), changelogs=(a_topic("counts"),)),
    ],
)


def a_heartbeat(member_id: str, epoch: int, **values: Any) -> StreamsHeartbeat:
    joins = epoch == 0
    given: dict[str, Any] = {
        "token": Token(1),
        "rack_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "rebalance_timeout_ms": REBALANCE_MS if joins else -1,
        "topology": WORD_COUNT if joins else None,
        "process_id": member_id if joins else None,
        "endpoint": None,
        "client_tags": None,
        "owned": Tasks() if joins else None,
        "endpoint_epoch": -1,
        "asks_for_shutdown": False,
    }
    return StreamsHeartbeat(member_id=member_id, member_epoch=epoch, **(given | values))


def sets_of(tasks: frozenset[tuple[str, Partition]]) -> TaskSets:
    found: dict[str, set[Partition]] = {}
    for part, number in tasks:
        found.setdefault(part, set()).add(number)
    return {part: frozenset(numbers) for part, numbers in found.items()}


class World:
    """The group is reached by `ask`. It is loaded from what was written as soon as the coordinator died."""

    def __init__(self, settings: GroupSettings = SETTINGS, **topics: int) -> None:
        self.settings = settings
        self.topics: dict[str, TopicShape] = {}
        self.created: list[str] = []
        self.refuses: dict[str, str] = {}
        """Topics that cannot be created, with the reason."""
        self.attempts: list[tuple[int, list[str]]] = []
        """When the group tried to create which topics."""
        self.now_ms = 0
        self._ids = count(1)
        self._stored: StoredGroup | None = None
        self.group = StreamsGroup(settings, None, 0)
        for name, partitions in topics.items():
            self.make_topic(name, partitions)

    def make_topic(self, name: str, partition_count: int) -> None:
        topic_id = TopicId(UUID(int=next(self._ids)))
        self.topics[name] = TopicShape(topic_id=topic_id, partition_count=partition_count)

    def ask(self, event: StreamsHeartbeat) -> StreamsHeartbeatAnswer:
        answered = self.group.handle(event, self.now_ms) + self._settled()
        self._write()
        [answer] = [each.answer for each in answered if each.token == event.token]
        assert isinstance(answer, StreamsHeartbeatAnswer)
        return answer

    def look_again(self) -> None:
        """The topics are looked up again."""
        self.group.handle(self._seen(), self.now_ms)
        self._settled()
        self._write()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.group.tick(self.now_ms)
        self._settled()
        self._write()

    def restart(self) -> None:
        """The coordinator dies. Another one takes the group over."""
        self.group = StreamsGroup(self.settings, self._stored, self.now_ms)

    def owners(self) -> dict[str, frozenset[tuple[str, Partition]]]:
        """What may be active at each member, as the group knows."""
        return {
            member.member_id: frozenset(partitions_of(member.owned))
            for member in self.group._roster.members.values()
        }

    def _settled(self) -> list[Answered]:
        answered: list[Answered] = []
        asked = None
        while True:
            missing = self.group.topics_to_create()
            wanted = self.group.topics_wanted()
            if not missing and (wanted == asked or self.group._group.topics.cover(wanted)):
                return answered
            for topic in missing:
                if topic.name not in self.refuses:
                    self.created.append(topic.name)
                    self.make_topic(topic.name, topic.partition_count)
            if missing:
                self.attempts.append((self.now_ms, [topic.name for topic in missing]))
                self.group.handle(TopicsCreated(refused=dict(self.refuses)), self.now_ms)
            asked = self.group.topics_wanted()
            answered += self.group.handle(self._seen(), self.now_ms)

    def _seen(self) -> TopicsSeen:
        wanted = self.group.topics_wanted()
        shapes = {name: self.topics[name] for name in wanted.names if name in self.topics}
        return TopicsSeen(topics=shapes, asked=wanted)

    def _write(self) -> None:
        change = self.group.take_changes()
        if change is None:
            return
        members: dict[str, StoredMember] = dict(self._stored.members) if self._stored else {}
        for member_id, member in change.members.items():
            if member is None:
                del members[member_id]
            else:
                document = json.loads(json.dumps(member.document))
                members[member_id] = StoredMember(epoch=member.epoch, document=document)
        self._stored = StoredGroup(
            group_id="g",
            kind=change.kind,
            generation=change.generation,
            state=change.state,
            protocol_type=change.protocol_type,
            document=json.loads(json.dumps(change.document)),
            members=members,
        )
        assert change.is_empty == (not members)


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """A thread of Kafka Streams. It reports its tasks when they changed, and everything after a failure."""

    world: World
    member_id: str
    process_id: str
    topology: Topology = WORD_COUNT
    epoch: int = 0
    active: frozenset[tuple[str, Partition]] = frozenset()
    told: Tasks = field(default_factory=Tasks)
    said: TaskSets | None = None
    """What it last said that it has active."""
    had: dict[int, frozenset[tuple[str, Partition]]] = field(default_factory=dict)
    """What it may commit with each epoch: what it processed then, without what it gave up."""
    alive: bool = True
    takes: bool = True
    """True if it may take what it was told. False between a request that says what it has and an answer,
    because it gave up the rest with that request.
    """
    answer: StreamsHeartbeatAnswer | None = None
    """On its way."""

    def beat(self, *, times: int = 1, **values: Any) -> None:
        """Sends a heartbeat, or the same one again. The answer waits until `hear` or `lose`."""
        mine = sets_of(self.active)
        says = self.epoch == 0 or self.said != mine or times > 1
        self.said, self.takes = mine, not says
        if says:
            self.had = {epoch: had & self.active for epoch, had in self.had.items()}
        owned = Tasks(active=mine, standby=self.told.standby) if says else None
        joins = {"topology": self.topology, "process_id": self.process_id} if self.epoch == 0 else {}
        event = a_heartbeat(self.member_id, self.epoch, **joins, owned=owned)
        for _ in range(times):
            self.answer = self.world.ask(replace(event, **values))

    def hear(self) -> None:
        answer, self.answer = self.answer, None
        if answer is None or not self.alive:
            return
        self.takes = True
        if answer.fault in (GroupFault.UNKNOWN_MEMBER, GroupFault.FENCED_MEMBER_EPOCH):
            self.epoch, self.active, self.told, self.said = 0, frozenset(), Tasks(), None
            self.had.clear()
            return
        assert answer.fault is None, answer
        self.epoch = answer.member_epoch
        if answer.tasks is not None:
            self.told = answer.tasks
        self._note()

    def lose(self) -> None:
        """The answer does not arrive. The client says everything again."""
        if self.answer is not None:
            self.answer, self.said = None, None

    def reconcile(self) -> None:
        """Takes what it was told. Not while a request is under way that says what it has."""
        if self.alive and self.answer is None:
            told = frozenset(partitions_of(self.told.active))
            self.active = told if self.takes else told & self.active
            self._note()

    def step(self) -> None:
        self.beat()
        self.hear()
        self.reconcile()

    def leave(self) -> None:
        self.alive, self.active = False, frozenset()
        self.world.ask(a_heartbeat(self.member_id, -1))

    def _note(self) -> None:
        self.had[self.epoch] = self.had.get(self.epoch, frozenset()) | self.active
