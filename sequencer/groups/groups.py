"""Groups: which agent coordinates each, and what its coordinator needs after a crash
(docs/design/groups.md#coordinators).

Promises:
- A claim fences every earlier coordinator for ever. An epoch is never used twice, even if a group is deleted
  and made again.
- A claim sees everything that earlier coordinators' successful writes and commits have left.
- A write takes effect as a whole or not at all, and only while the writer's epoch is valid.
- A deleted group leaves neither members nor offsets.
- A tenant has about as many groups, and as many groups with configs, as its limit says. Agents that make
  some at the same time may pass it by as many.
- A change of a group's configs (KIP-848) is one step. A group has configs whether it exists or not, as in
  Kafka. The agent knows their names and values.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from psycopg.types.json import Json, Jsonb

from sequencer.database.array_parameters import Int4Array, Int8Array, TextArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.groups.stored_groups import GroupChange, GroupKind, StoredGroup, StoredMember
from sequencer.tenants.tenant_limits import MOST_GROUPS
from sequencer.tenants.tenant_names import tenant_of
from sequencer.tenants.tenant_room import check_room
from storage.identifiers import NodeId

SQL = load_statements("groups")
CONFIGS_SQL = load_statements("group_configs")

LONGEST_ID_BYTES = 1_024
"""The most bytes of a group's or a member's id in UTF-8: two of them fit an entry of Postgres' index."""
GROUPS_PER_PAGE = 1_000
"""The most groups per statement of a listing. Longer listings take several statements."""


class InvalidId(Exception):
    """No group and no member can have this id; see `can_be_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGroup:
    """`stored` is None if the claim made the group, or it was never written since it was made. It may still
    have offsets."""

    coordinator_epoch: int
    stored: StoredGroup | None
    config: Mapping[str, str]
    """The configs that an administrator set (`GroupConfigs`)."""


class DeleteOutcome(Enum):
    DELETED = "deleted"
    NOT_EMPTY = "not empty"
    NOT_COORDINATOR = "not coordinator"
    """Another agent has claimed it, or it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    kind: GroupKind
    protocol_type: str
    state: str
    """As last written, in Kafka's spelling."""
    coordinator: NodeId
    """The agent that claimed it last. That agent may be gone."""


class Groups:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, group_id: str, node_id: NodeId, *, create: bool) -> ClaimedGroup | None:
        """Makes the agent the group's coordinator under a new epoch. None: there is no such group, and
        `create` is False. Raises InvalidId, and TenantLimitReached if the tenant may not have one more. It
        may be repeated: that fences the earlier attempt.
        """
        refuse_impossible_id(group_id)
        tenant = tenant_of(group_id) if create else None
        rows = await self._database.run(
            SQL["claim"], group_id=group_id, node_id=node_id, create=create and tenant is None
        )
        if not rows and tenant is not None:
            await _check_room(self._database, SQL["has_room"], tenant, group_id)
            rows = await self._database.run(SQL["claim"], group_id=group_id, node_id=node_id, create=True)
        if not rows:
            return None
        stored = _stored(group_id, rows[0]) if rows[0].kind is not None else None
        return ClaimedGroup(
            coordinator_epoch=rows[0].coordinator_epoch, stored=stored, config=rows[0].config or {}
        )

    async def write(self, group_id: str, coordinator_epoch: int, change: GroupChange) -> bool:
        """False: the writer is fenced, and nothing was written. Raises InvalidId for a member's id.

        Raises CommitOutcomeUnknown: it may be applied, now or a little later. Then claim the group again, and
        continue from what the claim returns: the claim waits for the write or fences it.
        """
        for member_id, member in change.members.items():
            if member is not None:
                refuse_impossible_id(member_id)
        [row] = await self._database.write(
            SQL["write"], **write_parameters(group_id, coordinator_epoch, change)
        )
        return bool(row.held)

    async def still_held(self, held: Mapping[str, int]) -> dict[str, Mapping[str, str]]:
        """Returns those of an agent's groups, given with the epochs of its claims, that no other agent has
        claimed since, each with its configs.
        """
        rows = await self._database.read(
            SQL["still_held"], group_ids=TextArray(held), coordinator_epochs=Int8Array(held.values())
        )
        return {row.group_id: row.config or {} for row in rows}

    async def delete(self, group_id: str, coordinator_epoch: int) -> DeleteOutcome:
        """Deletes the group with its members and offsets, if it is empty. Raises CommitOutcomeUnknown if it
        may be gone."""
        [row] = await self._database.write(
            SQL["delete"], group_id=group_id, coordinator_epoch=coordinator_epoch
        )
        return DeleteOutcome(row.outcome)

    async def list(
        self,
        states: Collection[str] = (),
        kinds: Collection[GroupKind] = (),
        *,
        with_members: bool = False,
        within: str = "",
    ) -> Sequence[ListedGroup]:
        """Returns all groups of these states and kinds, by id. No states, or no kinds, means any.
        `with_members`: only groups with members as last written, so also those whose coordinator died with
        all of them. `within`: only a tenant's groups, whose ids begin with this. A long list is not from one
        moment.
        """
        found: list[ListedGroup] = []
        page, after = GROUPS_PER_PAGE, within
        while page == GROUPS_PER_PAGE:
            rows = await self._database.read(
                SQL["list"],
                states=list(states),
                kinds=list(kinds),
                with_members=with_members,
                after=after,
                cap=GROUPS_PER_PAGE,
            )
            found += [_listed(row) for row in rows if row.group_id.startswith(within)]
            page = len(rows) if rows and rows[-1].group_id.startswith(within) else 0
            after = rows[-1].group_id if rows else after
        return found


async def _check_room(database: Database, statement: str, tenant: str, group_id: str) -> None:
    """Raises TenantLimitReached."""
    await check_room(database, statement, tenant, most=MOST_GROUPS, what="groups", group_id=group_id)


def can_be_id(text: str) -> bool:
    """True if a group or a member can have this id: 1 to 1,024 bytes of UTF-8 without NUL, which Postgres'
    text type refuses."""
    return 0 < len(text.encode()) <= LONGEST_ID_BYTES and "\0" not in text


def refuse_impossible_id(text: str) -> None:
    """Raises InvalidId."""
    if not can_be_id(text):
        raise InvalidId(
            f"{text[:50]!r} is no id of a group or member: 1 to {LONGEST_ID_BYTES} bytes, none of them NUL"
        )


def write_parameters(group_id: str, coordinator_epoch: int, change: GroupChange) -> Mapping[str, Any]:
    """Returns the parameters of `write_group` (functions/write_group.sql)."""
    written = {member_id: member for member_id, member in change.members.items() if member is not None}
    return {
        "group_id": group_id,
        "coordinator_epoch": coordinator_epoch,
        "kind": change.kind,
        "generation": change.generation,
        "state": change.state,
        "protocol_type": change.protocol_type,
        "document": Json(change.document),
        "is_empty": change.is_empty,
        "removed_ids": TextArray(change.members.keys() - written.keys()),
        "member_ids": TextArray(written),
        "member_epochs": Int4Array(member.epoch for member in written.values()),
        "member_documents": TextArray(json.dumps(member.document) for member in written.values()),
    }


def _stored(group_id: str, row: Row) -> StoredGroup:
    members = zip(row.member_ids, row.member_epochs, row.member_documents, strict=True)
    return StoredGroup(
        group_id=group_id,
        kind=row.kind,
        generation=row.generation,
        state=row.state,
        protocol_type=row.protocol_type,
        document=row.document,
        members={
            member_id: StoredMember(epoch=epoch, document=document) for member_id, epoch, document in members
        },
    )


def _listed(row: Row) -> ListedGroup:
    return ListedGroup(
        group_id=row.group_id,
        kind=row.kind,
        protocol_type=row.protocol_type,
        state=row.state,
        coordinator=NodeId(row.coordinator),
    )


class GroupConfigs:
    """The configs that administrators set for groups."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, group_ids: Collection[str]) -> dict[str, Mapping[str, str]]:
        """Returns the configs of those groups that have any set."""
        possible = TextArray(group_id for group_id in group_ids if can_be_id(group_id))
        rows = await self._database.read(CONFIGS_SQL["configs_of"], group_ids=possible)
        return {row.group_id: row.config for row in rows}

    async def alter(self, group_id: str, set: Mapping[str, str], remove: Collection[str] = ()) -> None:
        """Sets some configs and returns others to their defaults. Raises InvalidId, TenantLimitReached, and
        CommitOutcomeUnknown if it may be done.
        """
        refuse_impossible_id(group_id)
        if set:
            await self.check_limit(group_id)
        trimmed = {name: value.strip() for name, value in set.items()}
        await self._database.write(
            CONFIGS_SQL["alter"], group_id=group_id, set=Jsonb(trimmed), remove=list(remove)
        )

    async def check_limit(self, group_id: str) -> None:
        """Raises InvalidId, and TenantLimitReached if no further group of the tenant may have configs."""
        refuse_impossible_id(group_id)
        tenant = tenant_of(group_id)
        if tenant is not None:
            await _check_room(self._database, CONFIGS_SQL["has_room"], tenant, group_id)

    async def list(self, within: str = "") -> Sequence[str]:
        """Returns the groups with any config set, by id. `within`: only those whose ids begin with a tenant's
        prefix.
        """
        found: list[str] = []
        page, after = GROUPS_PER_PAGE, within
        while page == GROUPS_PER_PAGE:
            rows = await self._database.read(CONFIGS_SQL["list"], after=after, cap=GROUPS_PER_PAGE)
            # By their bytes, the ids that begin with a prefix lie together.
            found += [row.group_id for row in rows if row.group_id.startswith(within)]
            page = len(rows) if rows and rows[-1].group_id.startswith(within) else 0
            after = rows[-1].group_id if rows else after
        return found
