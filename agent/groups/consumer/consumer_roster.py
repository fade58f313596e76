"""The roster of a group of the new protocol (KIP-848). Its documents have partitions as ranges ("0-5,7"), and
topic ids as 32 hex digits.
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
)
from agent.groups.events import Assignment, OfferedProtocol
from agent.groups.partition_sets import ranges, read_ranges
from agent.groups.roster import Roster
from sequencer.groups.stored_groups import StoredGroup, StoredMember
from storage.identifiers import TopicId


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


class ConsumerRoster(Roster[ConsumerMember, Assignment, TopicId]):
    """`fingerprint` is that of the topics (`KnownTopics.fingerprint`)."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, stored: StoredGroup | None) -> None:
        super().__init__(NOTHING)
        self.new_protocol_members = 0
        self._static: dict[str, str] = {}
        if stored is not None:
            self.read(stored)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self._static.get(instance_id)
        return None if member_id is None else self._members[member_id]

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for, among those that ask for one."""
        asked = Counter(member.assignor for member in self._members.values() if member.assignor is not None)
        return min(asked, key=lambda name: (-asked[name], name)) if asked else DEFAULT_ASSIGNOR

    def replace(self, old_id: str, new: ConsumerMember) -> None:
        """A static member returned under a new member id. The new id gets everything that the old one had."""
        target = self.target(old_id)
        self.remove(old_id)
        self.put(new)
        self.set_target(new.member_id, target)

    def _attach(self, member: ConsumerMember) -> None:
        self.new_protocol_members += member.classic is None
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        super()._attach(member)

    def _detach(self, member: ConsumerMember) -> None:
        self.new_protocol_members -= member.classic is None
        super()._detach(member)
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    def _document(self) -> Mapping[str, Any]:
        return {"topics": self.fingerprint}

    def _read_document(self, document: Mapping[str, Any]) -> None:
        self.fingerprint = document["topics"]

    def _member_document(self, member: ConsumerMember, target: Assignment) -> StoredMember:
        return member_document(member, target)

    def _read_member(self, member_id: str, stored: StoredMember) -> tuple[ConsumerMember, Assignment]:
        return read_member(member_id, stored)
