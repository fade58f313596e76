"""Access control lists (ACLs) in Postgres.

Promises:
- A change has effect as a whole, under one version. Versions become visible in their order.
- Adding what is there, and removing what is not, changes nothing.
- A reader that asks again and again for what changed since its last answer misses no change, also if many
  pages are read meanwhile. If too much was forgotten, it is told to begin again.
- Answers and the number of ACLs are bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sequencer.database.array_parameters import BytesArray, Int4Array, TextArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.security.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from sequencer.tenants.tenant_limits import MOST_ACLS, TenantLimitReached
from sequencer.tenants.tenant_names import local_name, tenant_of

SQL = load_statements("acls")

_TENANT_HAS_TOO_MANY: Final = 2

LONGEST_TEXT: Final = 1_024
"""Characters of a name, a principal or a host. Kafka has no bound but that of a request."""


class InvalidAcl(Exception):
    """No such ACL can exist. The message is for the client."""


class TooManyAcls(Exception):
    """There would be more ACLs than the cluster may have, or an answer would name more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlace:
    """A place in the order of changes."""

    version: int
    key: bytes


BEFORE_ALL_ACLS: Final = AclPlace(version=0, key=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPage:
    newest: int
    """The version of the last change."""
    forgotten: int
    """ACLs that were removed up to this version may be missing in `removed`."""
    added: Sequence[Acl]
    removed: Sequence[Acl]
    end: AclPlace
    """Where the next page begins."""
    is_last: bool


def check_acl(acl: Acl) -> None:
    """Raises InvalidAcl if it cannot be stored. The messages are Kafka's."""
    if not acl.name:
        raise InvalidAcl("Invalid empty resource name")
    if acl.resource_type is ResourceType.CLUSTER and local_name(acl.name) != CLUSTER_NAME:
        raise InvalidAcl(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in acl.principal:
        raise InvalidAcl(
            f"Could not parse principal from `{acl.principal[:300]}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    for text in (acl.name, acl.principal, acl.host):
        if len(text) > LONGEST_TEXT or "\0" in text:
            raise InvalidAcl(f"A name, principal or host has at most {LONGEST_TEXT} characters and no NUL")


class Acls:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, acls: Iterable[Acl], most: int) -> None:
        """Adds those that are not there, all or none. Raises TooManyAcls if there would be more than `most`,
        TenantLimitReached, InvalidAcl, and CommitOutcomeUnknown if it may be done."""
        by_key = {acl.key: acl for acl in acls}
        for acl in by_key.values():
            check_acl(acl)
        if not by_key:
            return
        keys = sorted(by_key)
        given = [by_key[key] for key in keys]
        [row] = await self._database.write(
            SQL["add_acls"],
            keys=BytesArray(keys),
            types=Int4Array(acl.resource_type for acl in given),
            patterns=Int4Array(acl.pattern_type for acl in given),
            names=TextArray(acl.name for acl in given),
            principals=TextArray(acl.principal for acl in given),
            hosts=TextArray(acl.host for acl in given),
            operations=Int4Array(acl.operation for acl in given),
            permissions=Int4Array(acl.permission for acl in given),
            of_tenants=TextArray(tenant_of(acl.name) or "" for acl in given),
            most=most,
            most_of_tenant=MOST_ACLS,
        )
        if row.verdict == _TENANT_HAS_TOO_MANY:
            raise TenantLimitReached("There are as many ACLs as this tenant may have.")
        if row.verdict:
            raise TooManyAcls(f"A cluster has at most {most} ACLs.")

    async def matching(self, asked: AclFilter, most: int, page: int = 2_000) -> Sequence[Acl]:
        """Reads in pages of this size. Raises TooManyAcls if more than `most` match."""
        found: list[Acl] = []
        after, is_last = b"", not _can_match(asked)
        while not is_last:
            rows = await self._database.read(SQL["matching_acls"], after=after, cap=page, **_filters([asked]))
            found += [_acl(row) for row in rows]
            if len(found) > most:
                raise TooManyAcls(f"More than {most} ACLs match.")
            is_last = len(rows) < page
            after = b"" if is_last else bytes(rows[-1].acl_key)
        return found

    async def remove(self, asked: Sequence[AclFilter], most: int) -> Sequence[Sequence[Acl]]:
        """Removes what any of the filters selects, all or nothing. Returns what each of them selected. Raises
        TooManyAcls if that is more than `most`, and CommitOutcomeUnknown if it may be done."""
        found: list[list[Acl]] = [[] for _ in asked]
        possible = [number for number, one in enumerate(asked) if _can_match(one)]
        if not possible:
            return found
        filters = _filters([asked[number] for number in possible])
        for row in await self._database.write(SQL["remove_acls"], most=most, **filters):
            if row.filter_number is None:
                raise TooManyAcls(f"More than {most} ACLs match.")
            found[possible[row.filter_number - 1]].append(_acl(row))
        return found


class AclChanges:
    """What agents read, again and again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, begin: AclPlace, cap: int) -> AclPage:
        """Returns at most `cap` ACLs that changed behind a place. Raises SequencerUnavailable."""
        rows = await self._database.read(
            SQL["acl_changes"], version=begin.version, acl_key=begin.key, cap=cap
        )
        found = [row for row in rows if row.acl_key is not None]
        is_last = len(found) < cap
        end = AclPlace(version=found[-1].version, key=bytes(found[-1].acl_key)) if found else begin
        return AclPage(
            newest=rows[0].newest,
            forgotten=rows[0].forgotten,
            added=[_acl(row) for row in found if not row.is_removed],
            removed=[_acl(row) for row in found if row.is_removed],
            end=end,
            is_last=is_last,
        )


def _can_match(asked: AclFilter) -> bool:
    """Postgres takes no NUL."""
    return not any("\0" in text for text in (asked.name, asked.principal, asked.host) if text is not None)


def _filters(asked: Sequence[AclFilter]) -> dict[str, Any]:
    return {
        "types": [_number(one.resource_type) for one in asked],
        "patterns": [_number(one.pattern_type) for one in asked],
        "match": [one.matches_name for one in asked],
        "names": [one.name for one in asked],
        "principals": [one.principal for one in asked],
        "hosts": [one.host for one in asked],
        "operations": [_number(one.operation) for one in asked],
        "permissions": [_number(one.permission) for one in asked],
        "within": [one.within for one in asked],
    }


def _number(value: int | None) -> int | None:
    return None if value is None else int(value)


def _acl(row: Row) -> Acl:
    return Acl(
        resource_type=ResourceType(row.resource_type),
        pattern_type=PatternType(row.pattern_type),
        name=row.name,
        principal=row.principal,
        host=row.host,
        operation=Operation(row.operation),
        permission=Permission(row.permission),
    )
