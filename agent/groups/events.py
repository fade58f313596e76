"""What goes into a group's state machine and what comes out: events, answers, faults (pure values).

Times are milliseconds. A `Token` names a request that waits; each is answered once, at once or later. Partitions are
named by topic id where the new protocol does (KIP-848) and inside opaque bytes where the classic one does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NewType, TypeAlias

from storage.identifiers import Partition, TopicId

Token = NewType("Token", int)

Assignment: TypeAlias = Mapping[TopicId, frozenset[Partition]]


class GroupFault(Enum):
    """Why a request was refused; `agent/error_codes.py` has the codes."""

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
    INVALID_REQUEST = auto()
    INVALID_GROUP = auto()
    GROUP_NOT_FOUND = auto()
    GROUP_NOT_EMPTY = auto()
    SUBSCRIBED_TO_TOPIC = auto()
    NOT_COORDINATOR = auto()
    COORDINATOR_UNAVAILABLE = auto()
    """The coordinator cannot reach Postgres: try again."""
    OVERLOADED = auto()
    """More is waiting than may: try again later. Said by the coordinator, never by a machine."""


class GroupState(Enum):
    """Values are Kafka's spelling. The classic protocol has the first five, the new one Empty, Assigning, Reconciling,
    Stable and Dead."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"


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
    """One or many (KIP-345); an admin removes a static member by its instance id alone."""

    token: Token
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat (KIP-848). None: as last said. `member_epoch` 0 joins, -1 leaves, -2 leaves for a while
    (static)."""

    token: Token
    member_id: str
    """Given by the client from v1 on; empty in v0's first."""
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """-1: as last said."""
    subscribed_topics: tuple[str, ...] | None
    subscribed_regex: str | None
    """Empty: no regular expression any more."""
    assignor: str | None
    owned: Assignment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    topic_id: TopicId
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsWanted:
    """What a group must know of topics to assign them. `everything`: a regular expression is subscribed to."""

    names: frozenset[str] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSeen:
    """An event whenever topics were looked at. A request that needs topics never asked for waits for it."""

    topics: Mapping[str, TopicShape]
    """The topics there are, as far as asked."""
    asked: TopicsWanted
    """What `topics_wanted` was when they were looked up: a name asked for and not in `topics` does not exist."""


GroupEvent: TypeAlias = Join | Sync | Heartbeat | Leave | ConsumerHeartbeat | TopicsSeen


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
    """For the leader alone."""


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
    """None: unchanged since last told."""


Answer: TypeAlias = JoinAnswer | SyncAnswer | HeartbeatAnswer | LeaveAnswer | ConsumerHeartbeatAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    token: Token
    answer: Answer


# --- offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFence:
    """What must still hold in Postgres when an offset commit is applied there. All None: a commit without a member, to
    a group that has none."""

    generation: int | None = None
    """The classic protocol: the group's generation."""
    member_id: str | None = None
    """The new protocol: this member at this epoch."""
    member_epoch: int | None = None


# --- descriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member, of either protocol; what the other protocol has is left empty."""

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
    """A member of the classic protocol in a group of the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    state: GroupState
    kind: str
    """`classic` or `consumer`."""
    generation: int
    """The group epoch in the new protocol."""
    assignment_epoch: int
    protocol_type: str
    protocol: str
    """The assignor."""
    members: tuple[DescribedMember, ...]
