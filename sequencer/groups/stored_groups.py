"""A group as it is kept in Postgres (DESIGN §8): one row for the group, one per member, and the offsets
apart.

The documents are JSON objects whose content is the group machines' own (`agent/groups`); the sequencer looks
at nothing in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

GroupKind: TypeAlias = Literal["classic", "consumer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """`epoch`: the member's epoch in the new protocol (KIP-848), the generation in the classic one; offset
    commits are fenced by it."""

    epoch: int
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """What a coordinator finds when it takes a group over. `generation` is the group epoch in the new
    protocol."""

    group_id: str
    kind: GroupKind
    generation: int
    state: str
    protocol_type: str
    document: Mapping[str, Any]
    members: Mapping[str, StoredMember]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """What a coordinator writes, in one statement that holds only while its coordinator epoch does.
    `members`: those to write, and None for those to delete; all others stay."""

    kind: GroupKind
    generation: int
    state: str
    protocol_type: str
    document: Mapping[str, Any]
    members: Mapping[str, StoredMember | None]
    is_empty: bool
    """No members at all: offset retention starts."""
