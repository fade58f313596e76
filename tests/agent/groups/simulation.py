"""Simulates a group's world in virtual time: consumers of both protocols, a coordinator that dies, and the
topics that they read.

The checks use what consumers see: `holders` says which consumers may be consuming from a partition. A
consumer does so from the moment when it gets the partition until it told the coordinator that it gave it up,
or is no member any more (fenced or expired: its broker knows, and it will learn it).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from agent.groups.consumer.consumer_protocol import (
    by_id,
    by_name,
    read_assignment,
    read_subscription,
    write_assignment,
)
from agent.groups.consumer.known_topics import matching
from agent.groups.events import (
    Answer,
    Answered,
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupEvent,
    GroupFault,
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
    TopicShape,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.group import Group
from agent.groups.partition_sets import partitions_of
from agent.groups.settings import GroupSettings
from sequencer.groups.stored_groups import StoredGroup
from storage.identifiers import Partition, TopicId
from tests.agent.groups.consumer.consumer_transcript import subscription_with
from tests.agent.groups.transcript import written

SESSION_MS = 10_000
REBALANCE_MS = 15_000

One = tuple[TopicId, Partition]


def as_assignment(partitions: Iterable[One]) -> Assignment:
    found: dict[TopicId, set[Partition]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, set()).add(partition)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


@dataclass(slots=True, kw_only=True, eq=False)
class Consumer:
    """A consumer's process. Dead ones stay until no other part counts on them."""

    name: str
    world: "World"
    instance_id: str | None = None
    topics: frozenset[str] = frozenset()
    member_id: str = ""
    owned: frozenset[One] = frozenset()
    alive: bool = True
    waits: bool = False
    """For an answer."""

    @property
    def holds(self) -> frozenset[One]:
        return self.owned

    @property
    def subscribed(self) -> frozenset[str]:
        return self.topics & self.world.topics.keys()

    def act(self) -> None:
        raise NotImplementedError

    def answered(self, answer: Answer) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        """Its answer will not come: the connection broke."""
        self.waits = False

    def send(self, event: GroupEvent) -> None:
        self.waits = True
        self.world.ask(self, event)

    def token(self) -> Token:
        return self.world.token(self)


@dataclass(slots=True, kw_only=True, eq=False)
class NewConsumer(Consumer):
    """A consumer of the new protocol, as Java's: it reports owned partitions when they changed, and all
    fields after any error.
    """

    regex: str | None = None
    epoch: int = 0
    told: frozenset[One] = frozenset()
    said: frozenset[One] | None = None
    """What it last said that it owns."""
    says_all: bool = True
    takes: bool = True
    """True if it may take what it was assigned. False between a request that names what it owns and the
    answer, because it gave up the rest with that request.
    """

    @property
    def holds(self) -> frozenset[One]:
        return self.owned | self.told if self.takes else self.owned

    @property
    def subscribed(self) -> frozenset[str]:
        names = self.topics | (matching(self.regex, self.world.topics) if self.regex else frozenset())
        return names & self.world.topics.keys()

    def act(self) -> None:
        if not self.waits and self.alive:
            self._beat(self.epoch)

    def reconcile(self) -> None:
        if self.alive:
            self.owned = self.told if self.takes else self.told & self.owned

    def resubscribe(self, topics: frozenset[str], regex: str | None) -> None:
        self.topics, self.regex, self.says_all = topics, regex, True

    def leave(self, *, for_a_while: bool) -> None:
        self.owned = self.told = frozenset()
        self._beat(-2 if for_a_while and self.instance_id is not None else -1)
        self.alive = False

    def _beat(self, epoch: int) -> None:
        says_all = self.says_all or epoch == 0
        owned = self.owned if says_all or self.owned != self.said else None
        self.said = self.owned
        self.says_all = False
        self.takes = self.takes and owned is None
        self.send(
            ConsumerHeartbeat(
                token=self.token(),
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=self.instance_id,
                rack_id=None,
                client_id=self.name,
                client_host="/10.0.0.1",
                rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
                subscribed_topics=tuple(sorted(self.topics)) if says_all else None,
                subscribed_regex=(self.regex or "") if says_all else None,
                assignor=None,
                owned=None if owned is None else as_assignment(owned),
            )
        )

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, ConsumerHeartbeatAnswer)
        self.waits = False
        if answer.fault is None:
            assert answer.member_id == self.member_id
            self.epoch = answer.member_epoch
            self.takes = True
            if answer.assignment is not None:
                self.told = frozenset(partitions_of(answer.assignment))
            return
        self.owned = self.told = frozenset()
        self.says_all = True
        self.epoch = 0
        if answer.fault in (GroupFault.UNRELEASED_INSTANCE, GroupFault.FENCED_INSTANCE):
            self.alive = False
        else:
            retried = (GroupFault.FENCED_MEMBER_EPOCH, GroupFault.UNKNOWN_MEMBER, GroupFault.GROUP_NOT_FOUND)
            assert answer.fault in retried, answer

    def lost(self) -> None:
        self.waits = False
        self.says_all = True


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicConsumer(Consumer):
    """A consumer of the classic protocol, eager or cooperative. Its step is the next request that such a
    client sends.
    """

    cooperative: bool
    generation: int = -1
    needs: str = "join"
    assigns: tuple[tuple[str, bytes], ...] | None = None
    """The leader's list of the members and their subscriptions."""
    leads: dict[str, TopicShape] | None = None
    """The topics that the leader assigned. It rejoins when they change."""

    def act(self) -> None:
        if self.waits or not self.alive:
            return
        if self.needs == "join":
            self._join()
        elif self.needs == "sync":
            self._sync()
        elif self.leads is not None and self.leads != self.world.topics:
            self._rejoin()
        else:
            self.send(Heartbeat(token=self.token(), **self._identity()))  # type: ignore[arg-type]

    def resubscribe(self, topics: frozenset[str]) -> None:
        if not self.waits:
            self.topics = topics
            self._rejoin()

    def leave(self) -> None:
        self.owned = frozenset()
        member = LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
        self.send(Leave(token=self.token(), members=(member,)))
        self.alive = False

    def _identity(self) -> dict[str, object]:
        return {"member_id": self.member_id, "instance_id": self.instance_id, "generation": self.generation}

    def _rejoin(self) -> None:
        if not self.cooperative:
            self.owned = frozenset()
        self.needs = "join"

    def _lose_all(self) -> None:
        self.owned = frozenset()
        self.generation = -1
        self.needs = "join"

    def _join(self) -> None:
        names = {shape.topic_id: name for name, shape in self.world.topics.items()}
        owned = by_name(as_assignment(self.owned if self.cooperative else ()), names.get)
        text = "+".join(f"{name}:{','.join(map(str, sorted(numbers)))}" for name, numbers in owned.items())
        metadata = subscription_with("+".join(sorted(self.topics)), text)
        self.send(
            Join(
                token=self.token(),
                member_id=self.member_id,
                instance_id=self.instance_id,
                client_id=self.name,
                client_host="/10.0.0.1",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer",
                protocols=(
                    OfferedProtocol(
                        name="cooperative-sticky" if self.cooperative else "range", metadata=metadata
                    ),
                ),
                requires_known_member_id=True,
                can_skip_assignment=True,
            )
        )

    def _sync(self) -> None:
        assignments = {}
        if self.assigns is not None:
            assignments = self.world.assign(dict(self.assigns))
            self.leads = dict(self.world.topics)
        self.send(
            Sync(
                token=self.token(),
                protocol_type=None,
                protocol_name=None,
                assignments=assignments,
                **self._identity(),  # type: ignore[arg-type]
            )
        )

    def answered(self, answer: Answer) -> None:
        self.waits = False
        match answer:
            case JoinAnswer(fault=None):
                self.member_id, self.generation, self.needs = answer.member_id, answer.generation, "sync"
                leads = answer.leader == answer.member_id
                assigns = leads and not answer.skip_assignment
                self.assigns = (
                    tuple((one.member_id, one.metadata) for one in answer.members) if assigns else None
                )
                self.leads = {} if leads else None
            case JoinAnswer(fault=GroupFault.MEMBER_ID_REQUIRED):
                self.member_id = answer.member_id
            case SyncAnswer(fault=None):
                ids = {name: shape.topic_id for name, shape in self.world.topics.items()}
                given = frozenset(
                    partitions_of(by_id(read_assignment(answer.assignment).partitions, ids.get))
                )
                gives_up = self.owned - given
                self.owned = given
                self.needs = "heartbeat"
                if gives_up:
                    self._rejoin()
            case HeartbeatAnswer(fault=None) | LeaveAnswer():
                pass
            case _:
                self._failed(answer)

    def _failed(self, answer: Answer) -> None:
        match answer.fault:
            case GroupFault.REBALANCE_IN_PROGRESS:
                self._rejoin()
            case GroupFault.ILLEGAL_GENERATION:
                self._lose_all()
            case GroupFault.UNKNOWN_MEMBER:
                self._lose_all()
                self.member_id = ""
            case GroupFault.FENCED_INSTANCE:
                self._lose_all()
                self.alive = False
            case _:
                raise AssertionError(answer)

    def lost(self) -> None:
        self.waits = False
        if self.needs in ("join", "sync"):
            self._rejoin()


@dataclass(slots=True, kw_only=True)
class World:
    """Postgres, one coordinator at a time, and the clock."""

    topics: dict[str, TopicShape] = field(default_factory=dict)
    consumers: list[Consumer] = field(default_factory=list)
    now_ms: int = 0
    stored: StoredGroup | None = None
    writes: int = 0
    dies: str | None = None
    """`before` or `after` its next write: the coordinator."""
    loses: set[str] = field(default_factory=set)
    """The consumers whose next answer is lost."""
    highest: int = 0
    group: Group = field(init=False)
    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(
            group_consumer_session_timeout_ms=SESSION_MS, group_initial_rebalance_delay_ms=500
        )
    )
    _asked: TopicsWanted = field(default_factory=TopicsWanted)
    _askers: dict[Token, Consumer] = field(default_factory=dict)
    _tokens: "count[int]" = field(default_factory=count)
    _ids: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """A coordinator takes over what is in Postgres."""
        ids = self._ids
        self.group = Group(self.settings, lambda: f"id{next(ids)}", self.stored, self.now_ms)
        self._asked = TopicsWanted()
        askers, self._askers = self._askers, {}
        for consumer in askers.values():
            consumer.lost()

    # --- topics

    def make_topic(self, name: str, partitions: int) -> None:
        self.topics[name] = TopicShape(
            topic_id=TopicId(UUID(int=1_000 + next(self._ids))), partition_count=partitions
        )

    def grow_topic(self, name: str, more: int) -> None:
        old = self.topics[name]
        self.topics[name] = TopicShape(topic_id=old.topic_id, partition_count=old.partition_count + more)

    def show_topics(self) -> None:
        self._process(self._look())

    def _look(self) -> list[Answered]:
        wanted = self._asked = self.group.topics_wanted()
        shapes = {
            name: shape for name, shape in self.topics.items() if wanted.everything or name in wanted.names
        }
        return self.group.handle(TopicsSeen(topics=shapes, asked=wanted), self.now_ms)

    # --- requests

    def token(self, consumer: Consumer) -> Token:
        token = Token(next(self._tokens))
        self._askers[token] = consumer
        return token

    def ask(self, _: Consumer, event: GroupEvent) -> None:
        self._process(self.group.handle(event, self.now_ms))

    def _process(self, answered: list[Answered]) -> None:
        while self.group.topics_wanted() != self._asked:
            answered += self._look()
        dies, self.dies = self.dies, None
        if dies == "before":
            self._begin()
            return
        change = self.group.take_changes()
        if change is not None:
            self.stored = written("g", self.stored, change)
            self.writes += 1
            assert self.stored.generation == self.group.generation
            assert set(self.stored.members) <= {member.member_id for member in self.group.describe().members}
        assert self.group.generation >= self.highest, "epochs never go down"
        self.highest = self.group.generation
        if dies == "after":
            self._begin()
            return
        for one in answered:
            consumer = self._askers.pop(one.token)  # a second answer to a request fails here
            if not consumer.alive or consumer.name in self.loses:
                self.loses.discard(consumer.name)
                consumer.lost()
            else:
                consumer.answered(one.answer)
        self.check()

    def pass_time(self, until_ms: int) -> None:
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._process(self.group.tick(self.now_ms))
        self.now_ms = until_ms

    # --- what must hold

    def check(self) -> None:
        members = {member.member_id for member in self.group.describe().members}
        holders: dict[One, str] = {}
        for consumer in self.consumers:
            if consumer.alive and consumer.member_id in members:
                for one in consumer.holds:
                    assert one not in holders, f"{one} is held by {holders[one]} and {consumer.name}"
                    holders[one] = consumer.name

    def unowned(self) -> list[str]:
        """Returns, of the topics that a living consumer subscribes to, the partitions without a consumer,
        those with a wrong consumer, and those with two (one may not know yet that it is no member any more).
        """
        wanted = {
            (shape.topic_id, Partition(number))
            for consumer in self.consumers
            if consumer.alive
            for name in consumer.subscribed
            for shape in [self.topics[name]]
            for number in range(shape.partition_count)
        }
        had = Counter(one for consumer in self.consumers if consumer.alive for one in consumer.owned)
        return sorted(map(str, wanted.symmetric_difference(had))) + [
            f"{one} twice" for one in had if had[one] > 1
        ]

    def assign(self, subscriptions: dict[str, bytes]) -> dict[str, bytes]:
        """A leader's assignor: round robin. Cooperative: partitions that another member still has are left
        out.
        """
        read = {member: read_subscription(metadata) for member, metadata in sorted(subscriptions.items())}
        owners = {
            (topic, partition): member
            for member, subscription in read.items()
            for topic, partitions in subscription.owned.items()
            for partition in partitions
        }
        given: dict[str, dict[str, set[Partition]]] = {member: {} for member in read}
        turn = 0
        for topic in sorted(self.topics):
            takers = [member for member, subscription in read.items() if topic in subscription.topics]
            for number in range(self.topics[topic].partition_count if takers else 0):
                taker = takers[turn % len(takers)]
                turn += 1
                if owners.get((topic, Partition(number)), taker) == taker:
                    given[taker].setdefault(topic, set()).add(Partition(number))
        return {
            member: write_assignment(
                {topic: frozenset(numbers) for topic, numbers in mine.items()}, like=subscriptions[member]
            )
            for member, mine in given.items()
        }
