"""A member of a group of the new protocol (KIP-848), and its steps from the partitions that it has to its
target.

Pure values. Partitions are sets by topic id (`partition_sets.py`).

Promise of `reconciled`: a member's epoch rises to the target's only if the member owns nothing that the
target takes from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from agent.groups.events import Assignment, OfferedProtocol
from agent.groups.partition_sets import next_step, united
from agent.groups.roster import is_reconciled
from storage.identifiers import Partition, TopicId

NOTHING: Assignment = {}


JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Also the member epoch of a static member that left for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """The part of a member that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[OfferedProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    """The assignor that it asks for. None: it accepts any."""
    epoch: int = 0
    previous_epoch: int = 0
    """Its epoch before the last answer that may have changed it. That answer may be lost."""
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def owned(self) -> Assignment:
        """All partitions that it may be consuming from."""
        return united(self.assigned, self.revoking)


def reconciled(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[TopicId, Partition], bool],
) -> ConsumerMember:
    """Returns the member one step nearer to its target, or the member itself if no step is possible. `owned`:
    the partitions that it says it still has. None: it said nothing, which confirms nothing.
    """
    if is_reconciled(member, target, target_epoch):
        return member
    step = next_step(member.assigned, member.revoking, target, owned, is_free)
    if step is None:
        return member
    if not step.is_done:
        return replace(member, previous_epoch=member.epoch, assigned=step.assigned, revoking=step.revoking)
    if step.assigned == member.assigned and member.epoch == target_epoch and not member.revoking:
        return member
    return replace(
        member, epoch=target_epoch, previous_epoch=member.epoch, assigned=step.assigned, revoking=NOTHING
    )
