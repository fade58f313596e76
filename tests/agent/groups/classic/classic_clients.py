"""Simulated consumers of the classic protocol: what they send next after each answer."""

from dataclasses import dataclass
from enum import Enum, auto

from agent.groups.events import (
    Answer,
    GroupFault,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    OfferedProtocol,
    Sync,
    SyncAnswer,
    Token,
)
from tests.agent.groups.subscriptions import subscription

PARTITIONS = range(6)


class Phase(Enum):
    OUTSIDE = auto()
    """Must join next."""
    JOINED = auto()
    """Must sync next."""
    MEMBER = auto()
    """Sends heartbeats."""
    OVER = auto()
    """Left, died, or was fenced by its twin."""


@dataclass(slots=True, kw_only=True)
class SimulatedClient:
    name: str
    instance_id: str | None
    asks_for_id: bool
    """Speaks v4 or later (KIP-394)."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: str = "orders"
    assignors: tuple[str, ...] = ("range",)
    """All have `range`."""
    member_id: str = ""
    generation: int = -1
    phase: Phase = Phase.OUTSIDE
    waits_since_ms: int | None = None
    partitions: tuple[int, ...] = ()
    plan: dict[str, bytes] | None = None
    """What it assigns as a leader."""

    @property
    def identity(self) -> str:
        """Who owns partitions: an instance keeps its identity when it restarts."""
        return self.instance_id or self.member_id

    @property
    def is_live(self) -> bool:
        return self.phase is not Phase.OVER

    def next_request(self, token: Token) -> Join | Sync | Heartbeat:
        match self.phase:
            case Phase.JOINED:
                return self.sync(token)
            case Phase.MEMBER:
                return self.heartbeat(token)
        return self.join(token)

    def join(self, token: Token) -> Join:
        return Join(
            token=token,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            client_host="/10.0.0.1",
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type="consumer",
            protocols=tuple(
                OfferedProtocol(name=name, metadata=subscription(self.topics)) for name in self.assignors
            ),
            requires_known_member_id=self.asks_for_id,
            can_skip_assignment=self.asks_for_id,
        )

    def sync(self, token: Token) -> Sync:
        return Sync(
            token=token,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            protocol_type=None,
            protocol_name=None,
            assignments=self.plan or {},
        )

    def heartbeat(self, token: Token) -> Heartbeat:
        return Heartbeat(
            token=token, member_id=self.member_id, instance_id=self.instance_id, generation=self.generation
        )

    def hear(self, answer: Answer) -> None:
        self.waits_since_ms = None
        match answer:
            case JoinAnswer(fault=None):
                self.member_id = answer.member_id
                self.generation = answer.generation
                self.phase = Phase.JOINED
                self.plan = None
                if answer.leader == answer.member_id and not answer.skip_assignment:
                    self.plan = planned([member.member_id for member in answer.members])
            case JoinAnswer(fault=GroupFault.MEMBER_ID_REQUIRED):
                self.member_id = answer.member_id
            case SyncAnswer(fault=None):
                self.phase = Phase.MEMBER
                self.partitions = tuple(int(partition) for partition in answer.assignment.decode().split())
            case HeartbeatAnswer(fault=None):
                pass
            case JoinAnswer() | SyncAnswer() | HeartbeatAnswer():
                self._hear_fault(answer.fault)
            case _:
                raise AssertionError(f"unexpected {answer}")

    def _hear_fault(self, fault: GroupFault | None) -> None:
        self.partitions = ()
        self.phase = Phase.OUTSIDE
        match fault:
            case GroupFault.FENCED_INSTANCE:
                self.phase = Phase.OVER
            case GroupFault.UNKNOWN_MEMBER:
                self.member_id, self.generation = "", -1
            case (
                GroupFault.REBALANCE_IN_PROGRESS | GroupFault.ILLEGAL_GENERATION | GroupFault.NOT_COORDINATOR
            ):
                pass
            case _:
                raise AssertionError(f"unexpected {fault}")


def planned(member_ids: list[str]) -> dict[str, bytes]:
    """Assigns partitions in turn, as text."""
    return {
        member_id: " ".join(str(p) for p in PARTITIONS if p % len(member_ids) == index).encode()
        for index, member_id in enumerate(member_ids)
    }
