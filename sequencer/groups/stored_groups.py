"""A group as Postgres stores it (docs/design/groups.md#stored-groups): one row for the group, one per member,
and the offsets separately.

The documents are JSON objects of the group machines (`agent/groups`). The sequencer does not read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

GroupKind: TypeAlias = Literal["classic", "consumer", "streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """`epoch`: the member's epoch in the new protocol (KIP-848), the generation in the classic one. It fences
    offset commits."""

    epoch: int
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """What a coordinator reads when it takes a group over. `generation` is the group epoch in the new
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
    """What a coordinator writes, in one statement that takes effect only while its coordinator epoch is
    valid. `members`: those to write, and None for those to delete. All others stay."""

    kind: GroupKind
    generation: int
    state: str
    protocol_type: str
    document: Mapping[str, Any]
    members: Mapping[str, StoredMember | None]
    is_empty: bool
    """True: the group has no members, so offset retention starts."""
