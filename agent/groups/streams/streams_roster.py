"""The roster of a streams group (KIP-1071), with its topology. Only active tasks have one owner at a time."""

from collections.abc import Mapping
from typing import Any, Final

from agent.groups.events import GroupState, Tasks
from agent.groups.roster import Roster
from agent.groups.streams.streams_members import NO_TASKS, StreamsMember, member_document, read_member
from agent.groups.streams.topology import Topology, read_topology, topology_document
from sequencer.groups.stored_groups import StoredGroup, StoredMember

STREAMS_PROTOCOL_TYPE: Final = "streams"


class StreamsRoster(Roster[StreamsMember, Tasks, str]):
    kind = "streams"
    protocol_type = STREAMS_PROTOCOL_TYPE

    def __init__(self, stored: StoredGroup | None) -> None:
        super().__init__(NO_TASKS)
        self.is_ready = False
        """True if the topology has tasks."""
        self.is_delayed = False
        """True: the group waits for its first members and assigns nothing."""
        self.shutdown_asked_by: str | None = None
        """The member that asked all instances to stop."""
        self.topology: Topology | None = None
        self.version = 0
        """Rises with what changes, for those who keep something that follows from it."""
        if stored is not None:
            self.read(stored)

    @property
    def state(self) -> GroupState:
        return GroupState.NOT_READY if self._members and not self.is_ready else super().state

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

    def _attach(self, member: StreamsMember) -> None:
        self.version += 1
        super()._attach(member)

    def _detach(self, member: StreamsMember) -> None:
        self.version += 1
        super()._detach(member)

    def _document(self) -> Mapping[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "is_ready": self.is_ready,
            "is_delayed": self.is_delayed,
            "shutdown_asked_by": self.shutdown_asked_by,
            "topology": None if self.topology is None else topology_document(self.topology),
        }

    def _read_document(self, document: Mapping[str, Any]) -> None:
        self.fingerprint = document["fingerprint"]
        self.is_ready = document["is_ready"]
        self.is_delayed = document["is_delayed"]
        self.shutdown_asked_by = document["shutdown_asked_by"]
        self.topology = None if document["topology"] is None else read_topology(document["topology"])

    def _member_document(self, member: StreamsMember, target: Tasks) -> StoredMember:
        return member_document(member, target)

    def _read_member(self, member_id: str, stored: StoredMember) -> tuple[StreamsMember, Tasks]:
        return read_member(member_id, stored)
