"""A classic group as documents in Postgres, and back. Bytes are base64, as JSON has none."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from agent.groups.classic.classic_members import ClassicMember
from agent.groups.events import OfferedProtocol
from sequencer.groups.stored_groups import StoredMember


def group_document(protocol_name: str | None, leader: str | None) -> Mapping[str, Any]:
    return {"protocol_name": protocol_name, "leader": leader}


def stored_member(member: ClassicMember, generation: int) -> StoredMember:
    return StoredMember(
        epoch=generation,
        document={
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "protocols": [[offered.name, _text(offered.metadata)] for offered in member.protocols],
            "assignment": _text(member.assignment),
        },
    )


def restored_member(member_id: str, stored: StoredMember) -> ClassicMember:
    document = stored.document
    return ClassicMember(
        member_id=member_id,
        instance_id=document["instance_id"],
        client_id=document["client_id"],
        client_host=document["client_host"],
        session_timeout_ms=document["session_timeout_ms"],
        rebalance_timeout_ms=document["rebalance_timeout_ms"],
        protocols=tuple(
            OfferedProtocol(name=name, metadata=b64decode(metadata)) for name, metadata in document["protocols"]
        ),
        assignment=b64decode(document["assignment"]),
    )


def _text(content: bytes) -> str:
    return b64encode(content).decode("ascii")
