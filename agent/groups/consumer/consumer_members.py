"""A member of a group of the new protocol (KIP-848), and how it is brought from what it has to what it is to have.

Pure values. A member's partitions are *assigned* (it was told to have them) or *revoking* (it was told to give them up
and has not said that it did); it owns both. `reconciled` promises that a partition is assigned to a member only when
`is_free` says that no other member owns it, and that a member's epoch rises to the target's only when it owns nothing
that the target takes from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from agent.groups.consumer.assignments import NOTHING, chosen, common, united, without
from agent.groups.events import Assignment, OfferedProtocol
from storage.identifiers import Partition, TopicId

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Also the member epoch of a static member that left for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """What a member has that still speaks the classic protocol."""

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
    """Which it asks for; None leaves it to the others."""
    epoch: int = 0
    previous_epoch: int = 0
    """Its epoch before the last answer that may have changed it: that answer may be lost."""
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def owned(self) -> Assignment:
        """Whatever it may be consuming from."""
        return united(self.assigned, self.revoking)


def is_reconciled(member: ConsumerMember, target: Assignment, target_epoch: int) -> bool:
    return member.epoch == target_epoch and not member.revoking and member.assigned == target


def reconciled(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[TopicId, Partition], bool],
) -> ConsumerMember:
    """The member one step nearer to its target; itself where no step can be made. `owned`: what it says that it still
    has; None if it says nothing, which confirms nothing."""
    if is_reconciled(member, target, target_epoch):
        return member
    if member.revoking and _still_has(owned, member.revoking):
        return member
    kept = common(member.assigned, target)
    to_revoke = without(member.assigned, target)
    if to_revoke and _still_has(owned, to_revoke):
        return replace(member, previous_epoch=member.epoch, assigned=kept, revoking=to_revoke)
    given_back = member.revoking

    def may_take(topic: TopicId, partition: Partition) -> bool:
        return is_free(topic, partition) or partition in given_back.get(topic, ())

    assigned = united(kept, chosen(without(target, kept), may_take))
    if assigned == member.assigned and member.epoch == target_epoch and not member.revoking:
        return member
    return replace(member, epoch=target_epoch, previous_epoch=member.epoch, assigned=assigned, revoking=NOTHING)


def _still_has(owned: Assignment | None, partitions: Assignment) -> bool:
    return owned is None or bool(common(owned, partitions))
