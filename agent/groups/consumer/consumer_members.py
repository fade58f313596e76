"""A member of a group of the new protocol (KIP-848), and its steps from the partitions that it has to its
target.

Partitions are sets by topic id: every topic of an `Assignment` has at least one partition.

Pure values. A member's partitions are *assigned* (the member was told to have them) or *revoking* (it was
told to give them up and has not confirmed that). It owns both.

Promises of `reconciled`:
- A partition is assigned to a member only if `is_free` says that no other member owns it.
- A member's epoch rises to the target's only if the member owns nothing that the target takes from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from agent.groups.events import Assignment, OfferedProtocol
from storage.identifiers import Partition, TopicId

NOTHING: Assignment = {}


def partitions_of(assignment: Assignment) -> Iterator[tuple[TopicId, Partition]]:
    for topic, partitions in assignment.items():
        for partition in partitions:
            yield topic, partition


def united(one: Assignment, other: Assignment) -> Assignment:
    if not other:
        return one
    return {
        topic: one.get(topic, frozenset()) | other.get(topic, frozenset())
        for topic in one.keys() | other.keys()
    }


def common(one: Assignment, other: Assignment) -> Assignment:
    return _tidy({topic: partitions & other[topic] for topic, partitions in one.items() if topic in other})


def without(one: Assignment, other: Assignment) -> Assignment:
    return _tidy({topic: partitions - other.get(topic, frozenset()) for topic, partitions in one.items()})


def chosen(assignment: Assignment, choose: Callable[[TopicId, Partition], bool]) -> Assignment:
    """Returns the partitions that `choose` accepts."""
    return _tidy(
        {
            topic: frozenset(partition for partition in partitions if choose(topic, partition))
            for topic, partitions in assignment.items()
        }
    )


def is_part(one: Assignment, other: Assignment) -> bool:
    """True if all of `one` is in `other`."""
    return all(partitions <= other.get(topic, frozenset()) for topic, partitions in one.items())


def _tidy(assignment: dict[TopicId, frozenset[Partition]]) -> Assignment:
    return {topic: partitions for topic, partitions in assignment.items() if partitions}


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


def is_reconciled(member: ConsumerMember, target: Assignment, target_epoch: int) -> bool:
    return member.epoch == target_epoch and not member.revoking and member.assigned == target


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
    return replace(
        member, epoch=target_epoch, previous_epoch=member.epoch, assigned=assigned, revoking=NOTHING
    )


def _still_has(owned: Assignment | None, partitions: Assignment) -> bool:
    return owned is None or bool(common(owned, partitions))
