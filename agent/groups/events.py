"""The events that go into a group's state machine, and the answers and faults that come out. Pure values.

Times are milliseconds. A `Token` names a request that waits. Each token is answered once, at once or later.
In the new protocol partitions have topic ids (KIP-848). In the classic one they are inside opaque bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NewType, TypeAlias

from agent.groups.streams.topology import Topology
from storage.identifiers import Partition, TopicId

Token = NewType("Token", int)

Assignment: TypeAlias = Mapping[TopicId, frozenset[Partition]]
TaskSets: TypeAlias = Mapping[str, frozenset[Partition]]
"""Tasks of a topology, by subtopology. A task has the number of the partitions that it reads."""


class GroupFault(Enum):
    """Why a request was refused. `agent/error_codes.py` has the codes."""

    UNKNOWN_MEMBER = auto()
    MEMBER_ID_REQUIRED = auto()
    ILLEGAL_GENERATION = auto()
    REBALANCE_IN_PROGRESS = auto()
    INCONSISTENT_PROTOCOL = auto()
    INVALID_SESSION_TIMEOUT = auto()
    GROUP_FULL = auto()
    FENCED_INSTANCE = auto()
    FENCED_MEMBER_EPOCH = auto()
    STALE_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    INVALID_REGEX = auto()
    INVALID_TOPOLOGY = auto()
    INVALID_TOPOLOGY_EPOCH = auto()
    TOPOLOGY_FENCED = auto()
    INVALID_REQUEST = auto()
    INVALID_GROUP = auto()
    GROUP_NOT_FOUND = auto()
    GROUP_NOT_EMPTY = auto()
    SUBSCRIBED_TO_TOPIC = auto()
    NOT_AUTHORIZED = auto()
    """The client may not use the group. Only handlers say this, never a machine."""
    TOPIC_NOT_AUTHORIZED = auto()
    """The client may not describe one of its topics."""
    NOT_COORDINATOR = auto()
    COORDINATOR_UNAVAILABLE = auto()
    """The coordinator cannot reach Postgres: try again."""
    TOO_MANY_GROUPS = auto()
    """The tenant has as many as it may. Only the coordinator says this, never a machine."""
    OVERLOADED = auto()
    """Too many requests wait: try again later. Only the coordinator says this, never a machine."""


class GroupState(Enum):
    """Values are Kafka's spelling. The classic protocol has the first five, the new one Empty, Assigning,
    Reconciling, Stable and Dead, the streams protocol NotReady, too.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    NOT_READY = "NotReady"


# --- events


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedProtocol:
    """An assignor that a classic member offers, with its subscription."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    token: Token
    member_id: str
    """Empty: a new member."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[OfferedProtocol, ...]
    requires_known_member_id: bool
    """JoinGroup v4 and later (KIP-394)."""
    can_skip_assignment: bool
    """JoinGroup v9 (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    token: Token
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    token: Token
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """One or many members (KIP-345). An administrator removes a static member only by its instance id."""

    token: Token
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat (KIP-848). None: unchanged since the last request. `member_epoch` 0 joins, -1
    leaves, -2 leaves for a while (static).
    """

    token: Token
    member_id: str
    """Given by the client from v1 on. Empty in v0's first request."""
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """-1: unchanged since the last request."""
    subscribed_topics: tuple[str, ...] | None
    subscribed_regex: str | None
    """Empty: no regular expression any more."""
    assignor: str | None
    owned: Assignment | None
    may_see: Callable[[str], bool] | None = field(default=None, compare=False)
    """Returns whether its client may describe a topic. None: every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The tasks of a member of a streams group."""

    active: TaskSets = field(default_factory=dict)
    standby: TaskSets = field(default_factory=dict)
    warmup: TaskSets = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an instance of Kafka Streams answers interactive queries."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeat:
    """StreamsGroupHeartbeat (KIP-1071). None: unchanged since the last request. `member_epoch` 0 joins, -1
    leaves.
    """

    token: Token
    member_id: str
    member_epoch: int
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """-1: unchanged since the last request."""
    topology: Topology | None
    """Only when it joins."""
    process_id: str | None
    endpoint: Endpoint | None
    client_tags: Mapping[str, str] | None
    owned: Tasks | None
    endpoint_epoch: int
    """Of the endpoints that the client knows."""
    asks_for_shutdown: bool
    """All instances of the application are to stop."""
    may_create: Callable[[str], bool] | None = field(default=None, compare=False)
    """Returns whether its client may create a topic. None: every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    topic_id: TopicId
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsWanted:
    """What a group must know of topics to assign them. `everything`: a member subscribes by a regular
    expression.
    """

    names: frozenset[str] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSeen:
    """An event after each lookup of topics. A request that needs topics not looked up yet waits for it."""

    topics: Mapping[str, TopicShape]
    """The existing topics among those looked up."""
    asked: TopicsWanted
    """`topics_wanted` at the time of the lookup. A name that is in it and not in `topics` does not exist."""
    hidden: frozenset[str] = frozenset()
    """The topics that no regular expression matches: those who subscribe may not describe them."""
    keeps_assigned: bool = False
    """True: it is not known yet who may describe what. So members with a regular expression keep the topics
    that they are assigned, though these are `hidden`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsCreated:
    """An event after each attempt to create the topics that a streams group misses (`topics_to_create`)."""

    refused: Mapping[str, str]
    """Why a topic could not be created, by its name."""


Request: TypeAlias = Join | Sync | Heartbeat | Leave | ConsumerHeartbeat | StreamsHeartbeat
"""The events that wait for an answer."""
GroupEvent: TypeAlias = Request | TopicsSeen | TopicsCreated


# --- answers


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    fault: GroupFault | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """Only the leader gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    fault: GroupFault | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    fault: GroupFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAnswer:
    fault: GroupFault | None = None
    members: tuple[tuple[LeavingMember, GroupFault | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswer:
    fault: GroupFault | None = None
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None: unchanged since the last answer."""


class StatusCode(Enum):
    """Kafka's codes of the statuses in an answer to StreamsGroupHeartbeat."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    code: StatusCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPartitions:
    """The partitions of which an instance has the state, by topic."""

    endpoint: Endpoint
    active: Mapping[str, frozenset[Partition]]
    standby: Mapping[str, frozenset[Partition]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeatAnswer:
    fault: GroupFault | None = None
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    statuses: tuple[Status, ...] = ()
    tasks: Tasks | None = None
    """None: unchanged since the last answer."""
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    """None: the client knows them."""


Answer: TypeAlias = (
    JoinAnswer | SyncAnswer | HeartbeatAnswer | LeaveAnswer | ConsumerHeartbeatAnswer | StreamsHeartbeatAnswer
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    token: Token
    answer: Answer


# --- offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFence:
    """What must still hold in Postgres when an offset commit is applied there. All None: a commit without a
    member, to a group without members.
    """

    generation: int | None = None
    """The classic protocol: the group's generation."""
    member_id: str | None = None
    """The new protocol: this member at this epoch."""
    member_epoch: int | None = None


# --- descriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member of either protocol. Fields of the other protocol are empty."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment_bytes: bytes = b""
    rack_id: str | None = None
    member_epoch: int = -1
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str | None = None
    assignment: Assignment = field(default_factory=dict)
    target_assignment: Assignment = field(default_factory=dict)
    is_classic: bool = False
    """True: a member of the classic protocol in a group of the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedStreamsMember:
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    topology_epoch: int
    process_id: str
    endpoint: Endpoint | None
    client_tags: Mapping[str, str]
    assignment: Tasks
    target_assignment: Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsDescription:
    """The part of a description that only a streams group has."""

    topology: Topology | None
    partition_counts: Mapping[str, int] | None
    """Of the topology's topics. None: the topology has no tasks yet."""
    members: tuple[DescribedStreamsMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    state: GroupState
    kind: str
    """`classic`, `consumer` or `streams`."""
    generation: int
    """In the new protocol: the group epoch."""
    assignment_epoch: int
    protocol_type: str
    protocol: str
    """The assignor."""
    members: tuple[DescribedMember, ...]
    """Of the classic and the consumer protocol."""
    streams: StreamsDescription | None = None
