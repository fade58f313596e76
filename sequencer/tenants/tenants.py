"""Tenants in Postgres: who there is, what they may have, and what they used (docs/tenants.md).

Promises:
- A tenant begins with nothing: it is refused while something has a name that would be its.
- A tenant is deleted only when nothing is left of it.
- A report of usage counts once, however often it is repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final
from uuid import UUID

from psycopg.types.json import Jsonb

from sequencer.database.array_parameters import Int8Array, TextArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenant_names import check_tenant_name, prefix_of, range_of

SQL = load_statements("tenants")

MOST_TENANTS: Final = 10_000
_PER_PAGE: Final = 1_000
_MOST_ROWS: Final = 100_000


class TenantExists(Exception):
    """There is a tenant of this name."""


class UnknownTenant(Exception):
    """There is no tenant of this name."""


class TenantNotEmpty(Exception):
    """Something has a name of the tenant. The message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    name: str
    created_at: datetime
    admins: tuple[str, ...]
    """Users of the tenant, by their names in it. They may do everything in it."""
    limits: TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a tenant used on a day, or in a part of it."""

    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOfDay:
    day: date
    tenant: str
    used: Used
    bytes_stored: int | None


class Tenants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str, admins: Sequence[str], limits: TenantLimits) -> TenantRow:
        """Raises InvalidTenantName, TenantExists, TenantNotEmpty, CommitOutcomeUnknown."""
        check_tenant_name(name)
        if left := await self._left(name):
            raise TenantNotEmpty(f"'{prefix_of(name)}' is what names of {left} begin with.")
        rows = await self._database.write(
            SQL["create_tenant"], name=name, admins=list(admins), limits=Jsonb(limits.as_stored())
        )
        if not rows:
            raise TenantExists(f"There is a tenant '{name}'.")
        return _tenant(rows[0])

    async def change(
        self, name: str, *, admins: Sequence[str] | None = None, limits: TenantLimits | None = None
    ) -> TenantRow:
        """None: as before. Raises UnknownTenant, CommitOutcomeUnknown."""
        rows = await self._database.write(
            SQL["change_tenant"],
            name=name,
            admins=None if admins is None else list(admins),
            limits=None if limits is None else Jsonb(limits.as_stored()),
        )
        if not rows:
            raise UnknownTenant(f"There is no tenant '{name}'.")
        return _tenant(rows[0])

    async def delete(self, name: str) -> None:
        """Raises UnknownTenant, TenantNotEmpty, CommitOutcomeUnknown."""
        async with self._database.transaction() as connection:
            await connection.execute(SQL["count_change"])
            if await (await connection.execute(SQL["lock_tenant"], {"name": name})).fetchone() is None:
                raise UnknownTenant(f"There is no tenant '{name}'.")
            # Who creates a topic of the tenant waits for its row, and then finds it deleted.
            row = await (await connection.execute(SQL["holds_names"], range_of(name))).fetchone()
            assert row is not None, "counts are one row"
            if left := _counted(row):
                raise TenantNotEmpty(f"Tenant '{name}' still has {left}.")
            await connection.execute(SQL["mark_tenant_deleted"], {"name": name})

    async def changes(self) -> int:
        """Returns how many times tenants were made, changed or deleted so far."""
        [row] = await self._database.read(SQL["tenant_changes"])
        return int(row.changes)

    async def list(self) -> Sequence[TenantRow]:
        """Returns all tenants, by name."""
        found: list[TenantRow] = []
        page = _PER_PAGE
        while page == _PER_PAGE and len(found) < MOST_TENANTS:
            after = found[-1].name if found else ""
            rows = await self._database.read(SQL["list_tenants"], after=after, cap=_PER_PAGE)
            found += map(_tenant, rows)
            page = len(rows)
        return found

    async def add_usage(self, reporter: UUID, number: int, used: Mapping[tuple[date, str], Used]) -> None:
        """Adds the report `number` of an agent's process. Numbers rise. May be repeated with the same
        number. Raises SequencerUnavailable, CommitOutcomeUnknown.
        """
        keys = sorted(used)
        await self._database.write(
            SQL["add_usage"],
            reporter=reporter,
            number=number,
            days=[day for day, _ in keys],
            tenants=TextArray(tenant for _, tenant in keys),
            bytes_in=Int8Array(used[key].bytes_in for key in keys),
            bytes_out=Int8Array(used[key].bytes_out for key in keys),
            requests=Int8Array(used[key].requests for key in keys),
        )

    async def measure(self, age_s: float, cap: int = 100) -> int:
        """Measures what some tenants store whose last measurement is older. Returns how many."""
        rows = await self._database.write(SQL["tenants_to_measure"], age_s=age_s, cap=cap)
        if rows:
            await self._database.write(SQL["note_stored"], tenants=TextArray(row.name for row in rows))
        return len(rows)

    async def usage(self, days: int, tenant: str | None = None) -> Sequence[UsageOfDay]:
        """Returns the last days, the youngest first."""
        rows = await self._database.read(SQL["usage"], days=days, tenant=tenant, cap=_MOST_ROWS)
        return [
            UsageOfDay(
                day=row.day,
                tenant=row.tenant,
                used=Used(bytes_in=row.bytes_in, bytes_out=row.bytes_out, requests=row.requests),
                bytes_stored=row.bytes_stored,
            )
            for row in rows
        ]

    async def forget_usage(self, days: int) -> None:
        """Drops what is older."""
        await self._database.write(SQL["forget_usage"], days=days)

    async def _left(self, name: str) -> str:
        [row] = await self._database.read(SQL["holds_names"], **range_of(name))
        return _counted(row)


def _counted(row: Row) -> str:
    """Returns what there is, in words. Empty: nothing."""
    kinds = ("topics", "groups", "transactions", "users", "acls", "quotas", "group_configs")
    found = [f"{getattr(row, kind)} {kind.replace('_', ' ')}" for kind in kinds if getattr(row, kind)]
    return ", ".join(found)


def _tenant(row: Row) -> TenantRow:
    return TenantRow(
        name=row.name,
        created_at=row.created_at,
        admins=tuple(row.admins),
        limits=TenantLimits.of(row.limits),
    )
