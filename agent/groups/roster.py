"""The members of a group whose coordinator assigns (KIP-848, KIP-1071): what each has and should have, and
which of that Postgres does not have yet.

Promises:
- No partition has two owners. A breach is an AssertionError before any client sees it.
- Epochs only rise.
- A change holds exactly the members that changed since the last one.

Postgres keeps one document for the group and one per member (JSON). What is read equals what was written.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from agent.groups.events import GroupFault, GroupState
from agent.groups.partition_sets import partitions_of
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup, StoredMember
from storage.identifiers import Partition


class MemberRefused(Exception):
    """A member's request gets a fault. Nothing has changed."""

    def __init__(self, fault: GroupFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


class Member(Protocol):
    """What a roster reads of a member."""

    @property
    def member_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def assigned(self) -> object: ...

    @property
    def revoking(self) -> Mapping[Any, frozenset[Partition]]: ...

    @property
    def owned(self) -> Mapping[Any, frozenset[Partition]]:
        """All that has one owner at a time and may be at this member."""
        ...


M = TypeVar("M", bound=Member)
T = TypeVar("T")
K = TypeVar("K")


def is_reconciled(member: Member, target: object, target_epoch: int) -> bool:
    return member.epoch == target_epoch and not member.revoking and member.assigned == target


class Roster(ABC, Generic[M, T, K]):
    """Members `M` with targets `T`. What they own is partitions of a key `K` (`partition_sets.py`)."""

    kind: ClassVar[GroupKind]
    protocol_type: ClassVar[str]

    def __init__(self, nothing: T) -> None:
        """`nothing` is the target of a member that has none."""
        self.epoch = 0
        self.assignment_epoch = 0
        self.fingerprint = ""
        """Of what the targets depend on, except the members, as of the group's epoch."""
        self.stored_member_ids: set[str] = set()
        """The members that Postgres has once the changes taken so far are written."""
        self._nothing = nothing
        self._members: dict[str, M] = {}
        self._targets: dict[str, T] = {}
        self._owners: dict[tuple[K, Partition], str] = {}
        self._changed: set[str] = set()
        self._group_changed = False

    def read(self, stored: StoredGroup) -> None:
        """Takes over what Postgres has. Call it once, at first."""
        self.epoch = stored.generation
        self.assignment_epoch = stored.document["assignment_epoch"]
        self._read_document(stored.document)
        self.stored_member_ids = set(stored.members)
        for member_id, kept in stored.members.items():
            member, target = self._read_member(member_id, kept)
            self.put(member)
            self.set_target(member_id, target)
        self._changed.clear()
        self._group_changed = False

    # --- reading

    @property
    def members(self) -> Mapping[str, M]:
        return self._members

    def target(self, member_id: str) -> T:
        return self._targets.get(member_id, self._nothing)

    def is_free(self, key: K, partition: Partition) -> bool:
        return (key, partition) not in self._owners

    @property
    def state(self) -> GroupState:
        if not self._members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        for member in self._members.values():
            if not is_reconciled(member, self.target(member.member_id), self.assignment_epoch):
                return GroupState.RECONCILING
        return GroupState.STABLE

    # --- changing

    def put(self, member: M) -> None:
        """Adds the member, or replaces what is known of it."""
        before = self._members.get(member.member_id)
        if before == member:
            return
        if before is not None:
            self._detach(before)
        self._members[member.member_id] = member
        self._attach(member)
        self._changed.add(member.member_id)

    def remove(self, member_id: str) -> None:
        self._detach(self._members.pop(member_id))
        self._targets.pop(member_id, None)
        self._changed.add(member_id)

    def set_target(self, member_id: str, target: T) -> None:
        if self.target(member_id) != target:
            self._targets[member_id] = target
            self._changed.add(member_id)

    def raise_epoch(self, fingerprint: str) -> None:
        self.epoch += 1
        self.fingerprint = fingerprint
        self._group_changed = True

    def assigned_all(self) -> None:
        """Marks all targets as those of the group's epoch."""
        self.assignment_epoch = self.epoch
        self._group_changed = True

    def start_at(self, generation: int, fingerprint: str, stored_member_ids: frozenset[str]) -> None:
        """Starts with a group that had another protocol until now, or is empty."""
        self.epoch = self.assignment_epoch = generation
        self.fingerprint = fingerprint
        self.stored_member_ids = set(stored_member_ids)
        self._changed |= stored_member_ids
        self._group_changed = True

    def _attach(self, member: M) -> None:
        for owned in partitions_of(member.owned):
            owner = self._owners.setdefault(owned, member.member_id)
            assert owner == member.member_id, f"{owned} is owned by {owner} and {member.member_id}"

    def _detach(self, member: M) -> None:
        for owned in partitions_of(member.owned):
            del self._owners[owned]

    # --- for Postgres

    def take_changes(self) -> GroupChange | None:
        if not self._changed and not self._group_changed:
            return None
        members: dict[str, StoredMember | None] = {}
        for member_id in sorted(self._changed):
            member = self._members.get(member_id)
            if member is not None:
                members[member_id] = self._member_document(member, self.target(member_id))
                self.stored_member_ids.add(member_id)
            elif member_id in self.stored_member_ids:
                members[member_id] = None
                self.stored_member_ids.remove(member_id)
        self._changed.clear()
        self._group_changed = False
        return GroupChange(
            kind=self.kind,
            generation=self.epoch,
            state=self.state.value,
            protocol_type=self.protocol_type,
            document={"assignment_epoch": self.assignment_epoch, **self._document()},
            members=members,
            is_empty=not self._members,
        )

    @abstractmethod
    def _document(self) -> Mapping[str, Any]:
        """What the group's document has besides the assignment epoch."""

    @abstractmethod
    def _read_document(self, document: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _member_document(self, member: M, target: T) -> StoredMember: ...

    @abstractmethod
    def _read_member(self, member_id: str, stored: StoredMember) -> tuple[M, T]:
        """Returns the member and its target."""
