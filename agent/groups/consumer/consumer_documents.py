"""How a group of the new protocol is kept in Postgres: one document for the group, one per member (JSON).

Promises that what is read is what was written. Partitions are written as ranges ("0-5,7"), topic ids as 32 hex digits.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agent.groups.consumer.consumer_members import ClassicSide, ConsumerMember
from agent.groups.events import Assignment, OfferedProtocol
from sequencer.groups.stored_groups import StoredMember
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
            "protocols": [[offered.name, b64encode(offered.metadata).decode()] for offered in member.classic.protocols],
        }
    return StoredMember(epoch=member.epoch, document=document)


def read_member(member_id: str, stored: StoredMember) -> tuple[ConsumerMember, Assignment]:
    """The member and its target."""
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
            OfferedProtocol(name=name, metadata=b64decode(metadata)) for name, metadata in document["protocols"]
        ),
    )


def _write(assignment: Assignment) -> dict[str, str]:
    return {topic.hex: _ranges(partitions) for topic, partitions in sorted(assignment.items())}


def _read(document: Mapping[str, str]) -> Assignment:
    return {TopicId(UUID(topic)): frozenset(_numbers(ranges)) for topic, ranges in document.items()}


def _ranges(partitions: frozenset[Partition]) -> str:
    runs: list[list[int]] = []
    for partition in sorted(partitions):
        if runs and runs[-1][1] == partition - 1:
            runs[-1][1] = partition
        else:
            runs.append([partition, partition])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(ranges: str) -> list[Partition]:
    numbers: list[Partition] = []
    for run in ranges.split(","):
        first, _, last = run.partition("-")
        numbers.extend(map(Partition, range(int(first), int(last or first) + 1)))
    return numbers
