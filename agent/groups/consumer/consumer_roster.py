"""The members of a group of the new protocol, what each has and should have, and which of that Postgres does
not have yet.

Promises:
- No partition has two owners. A breach is an AssertionError before any client sees it.
- Epochs only rise.
- A change holds exactly the members that changed since the last one.

Postgres keeps one document for the group and one per member (JSON). What is read equals what was written.
Partitions are written as ranges ("0-5,7"), topic ids as 32 hex digits.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agent.groups.classic.classic_members import CONSUMER_PROTOCOL_TYPE
from agent.groups.consumer.assignors import DEFAULT_ASSIGNOR
from agent.groups.consumer.consumer_members import (
    NOTHING,
    ClassicSide,
    ConsumerMember,
    is_reconciled,
)
from agent.groups.events import Assignment, GroupState, OfferedProtocol
from agent.groups.partition_sets import partitions_of, ranges, read_ranges
from sequencer.groups.stored_groups import GroupChange, StoredGroup, StoredMember
from storage.identifiers import Partition, TopicId


def member_document(member: ConsumerMember, target: Assignment) -> StoredMember:
    document: dict[str, Any] = {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topics": sorted(member.topics),
        "regex": member.regex,
        "assignor": member.assignor,
        "previous_epoch": member.previous_epoch,
        "assigned": _write(member.assigned),
        "revoking": _write(member.revoking),
        "target": _write(target),
    }
    if member.classic is not None:
        document["classic"] = {
            "session_timeout_ms": member.classic.session_timeout_ms,
            "protocols": [
                [offered.name, b64encode(offered.metadata).decode()] for offered in member.classic.protocols
            ],
        }
    return StoredMember(epoch=member.epoch, document=document)


def read_member(member_id: str, stored: StoredMember) -> tuple[ConsumerMember, Assignment]:
    """Returns the member and its target."""
    document = stored.document
    member = ConsumerMember(
        member_id=member_id,
        instance_id=document["instance_id"],
        rack_id=document["rack_id"],
        client_id=document["client_id"],
        client_host=document["client_host"],
        rebalance_timeout_ms=document["rebalance_timeout_ms"],
        topics=frozenset(document["topics"]),
        regex=document["regex"],
        assignor=document["assignor"],
        epoch=stored.epoch,
        previous_epoch=document["previous_epoch"],
        assigned=_read(document["assigned"]),
        revoking=_read(document["revoking"]),
        classic=_read_classic(document.get("classic")),
    )
    return member, _read(document["target"])


def _read_classic(document: Mapping[str, Any] | None) -> ClassicSide | None:
    if document is None:
        return None
    return ClassicSide(
        session_timeout_ms=document["session_timeout_ms"],
        protocols=tuple(
            OfferedProtocol(name=name, metadata=b64decode(metadata))
            for name, metadata in document["protocols"]
        ),
    )


def _write(assignment: Assignment) -> dict[str, str]:
    return {topic.hex: ranges(partitions) for topic, partitions in sorted(assignment.items())}


def _read(document: Mapping[str, str]) -> Assignment:
    return {TopicId(UUID(topic)): read_ranges(text) for topic, text in document.items()}


class ConsumerRoster:
    def __init__(self, stored: StoredGroup | None) -> None:
        self.epoch = 0
        self.assignment_epoch = 0
        self.fingerprint = ""
        """The topics' fingerprint as of the group's epoch (`KnownTopics.fingerprint`)."""
        self.stored_member_ids: set[str] = set()
        """The members that Postgres has once the changes taken so far are written."""
        self.new_protocol_members = 0
        self._members: dict[str, ConsumerMember] = {}
        self._targets: dict[str, Assignment] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[tuple[TopicId, Partition], str] = {}
        self._changed: set[str] = set()
        self._group_changed = False
        if stored is not None:
            self._read(stored)

    def _read(self, stored: StoredGroup) -> None:
        self.epoch = stored.generation
        self.assignment_epoch = stored.document["assignment_epoch"]
        self.fingerprint = stored.document["topics"]
        self.stored_member_ids = set(stored.members)
        for member_id, kept in stored.members.items():
            member, target = read_member(member_id, kept)
            self.put(member)
            self.set_target(member_id, target)
        self._changed.clear()
        self._group_changed = False

    # --- reading

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        return self._members

    def target(self, member_id: str) -> Assignment:
        return self._targets.get(member_id, NOTHING)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self._static.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def is_free(self, topic: TopicId, partition: Partition) -> bool:
        return (topic, partition) not in self._owners

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

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for, among those that ask for one."""
        asked = Counter(member.assignor for member in self._members.values() if member.assignor is not None)
        return min(asked, key=lambda name: (-asked[name], name)) if asked else DEFAULT_ASSIGNOR

    # --- changing

    def put(self, member: ConsumerMember) -> None:
        """Adds the member, or replaces what is known of it."""
        before = self._members.get(member.member_id)
        if before == member:
            return
        if before is not None:
            self._detach(before)
        self._members[member.member_id] = member
        self.new_protocol_members += member.classic is None
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        for owned in partitions_of(member.owned):
            owner = self._owners.setdefault(owned, member.member_id)
            assert owner == member.member_id, f"{owned} is owned by {owner} and {member.member_id}"
        self._changed.add(member.member_id)

    def remove(self, member_id: str) -> None:
        self._detach(self._members.pop(member_id))
        self._targets.pop(member_id, None)
        self._changed.add(member_id)

    def replace(self, old_id: str, new: ConsumerMember) -> None:
        """A static member returned under a new member id. The new id gets everything that the old one had."""
        target = self.target(old_id)
        self.remove(old_id)
        self.put(new)
        self.set_target(new.member_id, target)

    def set_target(self, member_id: str, target: Assignment) -> None:
        if self._targets.get(member_id, NOTHING) != target:
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
        """Starts with a group that was classic until now, or is empty."""
        self.epoch = self.assignment_epoch = generation
        self.fingerprint = fingerprint
        self.stored_member_ids = set(stored_member_ids)
        self._changed |= stored_member_ids
        self._group_changed = True

    def _detach(self, member: ConsumerMember) -> None:
        self.new_protocol_members -= member.classic is None
        for owned in partitions_of(member.owned):
            del self._owners[owned]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    # --- for Postgres

    def take_changes(self) -> GroupChange | None:
        if not self._changed and not self._group_changed:
            return None
        members: dict[str, StoredMember | None] = {}
        for member_id in sorted(self._changed):
            member = self._members.get(member_id)
            if member is not None:
                members[member_id] = member_document(member, self.target(member_id))
                self.stored_member_ids.add(member_id)
            elif member_id in self.stored_member_ids:
                members[member_id] = None
                self.stored_member_ids.remove(member_id)
        self._changed.clear()
        self._group_changed = False
        return GroupChange(
            kind="consumer",
            generation=self.epoch,
            state=self.state.value,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            document={"assignment_epoch": self.assignment_epoch, "topics": self.fingerprint},
            members=members,
            is_empty=not self._members,
        )
