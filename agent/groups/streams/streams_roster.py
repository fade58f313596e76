"""The members of a streams group, its topology, what each member has and should have, and which of that
Postgres does not have yet.

Promises:
- No task is active at two members. A breach is an AssertionError before any client sees it.
- Epochs only rise.
- A change holds exactly the members that changed since the last one.
"""

from collections.abc import Mapping
from typing import Final

from agent.groups.events import GroupState, Tasks
from agent.groups.partition_sets import partitions_of
from agent.groups.streams.streams_members import (
    NO_TASKS,
    StreamsMember,
    is_reconciled,
    member_document,
    read_member,
)
from agent.groups.streams.topology import Topology, read_topology, topology_document
from sequencer.groups.stored_groups import GroupChange, StoredGroup, StoredMember
from storage.identifiers import Partition

STREAMS_PROTOCOL_TYPE: Final = "streams"


class StreamsRoster:
    def __init__(self, stored: StoredGroup | None) -> None:
        self.epoch = 0
        self.assignment_epoch = 0
        self.fingerprint = ""
        """Of what the targets depend on, except the members, as of the group's epoch."""
        self.is_ready = False
        """True if the topology has tasks."""
        self.is_delayed = False
        """True: the group waits for its first members and assigns nothing."""
        self.shutdown_asked_by: str | None = None
        """The member that asked all instances to stop."""
        self.topology: Topology | None = None
        self.version = 0
        """Counts what changed, for those who keep something that follows from it."""
        self.stored_member_ids: set[str] = set()
        """The members that Postgres has once the changes taken so far are written."""
        self._members: dict[str, StreamsMember] = {}
        self._targets: dict[str, Tasks] = {}
        self._owners: dict[tuple[str, Partition], str] = {}
        self._changed: set[str] = set()
        self._group_changed = False
        if stored is not None:
            self._read(stored)

    def _read(self, stored: StoredGroup) -> None:
        document = stored.document
        self.epoch = stored.generation
        self.assignment_epoch = document["assignment_epoch"]
        self.fingerprint = document["fingerprint"]
        self.is_ready = document["is_ready"]
        self.is_delayed = document["is_delayed"]
        self.shutdown_asked_by = document["shutdown_asked_by"]
        self.topology = None if document["topology"] is None else read_topology(document["topology"])
        self.stored_member_ids = set(stored.members)
        for member_id, kept in stored.members.items():
            member, target = read_member(member_id, kept)
            self.put(member)
            self.set_target(member_id, target)
        self._changed.clear()

    # --- reading

    @property
    def members(self) -> Mapping[str, StreamsMember]:
        return self._members

    def target(self, member_id: str) -> Tasks:
        return self._targets.get(member_id, NO_TASKS)

    def is_free(self, subtopology: str, number: Partition) -> bool:
        return (subtopology, number) not in self._owners

    @property
    def state(self) -> GroupState:
        if not self._members:
            return GroupState.EMPTY
        if not self.is_ready:
            return GroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        for member in self._members.values():
            if not is_reconciled(member, self.target(member.member_id), self.assignment_epoch):
                return GroupState.RECONCILING
        return GroupState.STABLE

    # --- changing

    def put(self, member: StreamsMember) -> None:
        """Adds the member, or replaces what is known of it."""
        before = self._members.get(member.member_id)
        if before == member:
            return
        if before is not None:
            self._detach(before)
        self._members[member.member_id] = member
        self.version += 1
        for owned in partitions_of(member.owned):
            owner = self._owners.setdefault(owned, member.member_id)
            assert owner == member.member_id, f"task {owned} is active at {owner} and {member.member_id}"
        self._changed.add(member.member_id)

    def remove(self, member_id: str) -> None:
        self._detach(self._members.pop(member_id))
        self.version += 1
        self._targets.pop(member_id, None)
        self._changed.add(member_id)

    def set_target(self, member_id: str, target: Tasks) -> None:
        if self._targets.get(member_id, NO_TASKS) != target:
            self._targets[member_id] = target
            self._changed.add(member_id)

    def set_topology(self, topology: Topology) -> None:
        self.topology = topology
        self.version += 1
        self._group_changed = True

    def delay(self, *, is_delayed: bool) -> None:
        self._group_changed = self._group_changed or self.is_delayed != is_delayed
        self.is_delayed = is_delayed

    def ask_for_shutdown(self, member_id: str | None) -> None:
        self._group_changed = self._group_changed or self.shutdown_asked_by != member_id
        self.shutdown_asked_by = member_id

    def note_ready(self, *, is_ready: bool) -> None:
        self._group_changed = self._group_changed or self.is_ready != is_ready
        self.is_ready = is_ready

    def raise_epoch(self, fingerprint: str) -> None:
        self.epoch += 1
        self.fingerprint = fingerprint
        self._group_changed = True

    def assigned_all(self) -> None:
        """Marks all targets as those of the group's epoch."""
        self.assignment_epoch = self.epoch
        self._group_changed = True

    def start_at(self, generation: int, stored_member_ids: frozenset[str]) -> None:
        """Starts with a group without members that had another protocol until now."""
        self.epoch = self.assignment_epoch = generation
        self.stored_member_ids = set(stored_member_ids)
        self._changed |= stored_member_ids
        self._group_changed = True

    def _detach(self, member: StreamsMember) -> None:
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
                members[member_id] = member_document(member, self.target(member_id))
                self.stored_member_ids.add(member_id)
            elif member_id in self.stored_member_ids:
                members[member_id] = None
                self.stored_member_ids.remove(member_id)
        self._changed.clear()
        self._group_changed = False
        return GroupChange(
            kind="streams",
            generation=self.epoch,
            state=self.state.value,
            protocol_type=STREAMS_PROTOCOL_TYPE,
            document={
                "assignment_epoch": self.assignment_epoch,
                "fingerprint": self.fingerprint,
                "is_ready": self.is_ready,
                "is_delayed": self.is_delayed,
                "shutdown_asked_by": self.shutdown_asked_by,
                "topology": None if self.topology is None else topology_document(self.topology),
            },
            members=members,
            is_empty=not self._members,
        )
