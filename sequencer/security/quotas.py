"""Client quotas in Postgres (KIP-546), and what each agent wants of them.

Promises:
- An alteration has effect as a whole, under one version. Versions become visible in their order.
- A reader that asks again and again for what changed since its last answer misses no change. If too much was
  forgotten, it learns that it has to begin again.
- The number of entities is bounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg.types.json import Jsonb

from sequencer.database.array_parameters import BytesArray, Int4Array
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.tenants.tenant_limits import MOST_QUOTAS, TenantLimitReached
from sequencer.tenants.tenant_names import tenant_of

SQL = load_statements("quotas")

PER_PAGE: Final = 2_000
_TENANT_HAS_TOO_MANY: Final = 2

Entity = frozenset[tuple[str, str | None]]
"""Pairs of a type ("user", "client-id", "ip") and a name. None: the default of that type."""
Quotas = Mapping[str, float]


class TooManyQuotas(Exception):
    """There would be more entities with quotas than the cluster may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPlace:
    """A place in the order of changes."""

    version: int
    entity: Entity | None


BEFORE_ALL_QUOTAS: Final = QuotaPlace(version=0, entity=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPage:
    newest: int
    """The version of the last change."""
    forgotten: int
    """Entities that lost their quotas up to this version may be missing."""
    changed: Sequence[tuple[Entity, Quotas]]
    end: QuotaPlace
    is_last: bool


class ClientQuotas:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def alter(self, changes: Mapping[Entity, Mapping[str, float | None]], most: int) -> None:
        """Sets quotas, and removes those that are None. Names are free of NUL. All names of an entity are of
        one tenant, or of none. Raises TooManyQuotas, TenantLimitReached, and CommitOutcomeUnknown if it may
        be done.
        """
        if not changes:
            return
        given = [
            {"entity": dict(entity), "quotas": dict(quotas), "tenant": _tenant(entity)}
            for entity, quotas in changes.items()
        ]
        [row] = await self._database.write(
            SQL["alter"], changes=Jsonb(given), most=most, most_of_tenant=MOST_QUOTAS
        )
        if row.verdict == _TENANT_HAS_TOO_MANY:
            raise TenantLimitReached("There are quotas of as many entities as this tenant may have.")
        if row.verdict:
            raise TooManyQuotas(f"A cluster has quotas of at most {most} entities.")

    async def all(self) -> dict[Entity, Quotas]:
        found: dict[Entity, Quotas] = {}
        after, page = None, PER_PAGE
        while page == PER_PAGE:
            rows = await self._database.read(SQL["all"], after=after, cap=PER_PAGE)
            found |= dict(map(_entry, rows))
            page = len(rows)
            after = Jsonb(rows[-1].entity) if rows else None
        return found


class QuotaUse:
    """What agents read and write, again and again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, begin: QuotaPlace) -> QuotaPage:
        """Returns the entities that changed behind a place. Raises SequencerUnavailable."""
        entity = None if begin.entity is None else Jsonb(dict(begin.entity))
        rows = await self._database.read(SQL["changes"], version=begin.version, entity=entity, cap=PER_PAGE)
        found = [row for row in rows if row.entity is not None]
        changed = [_entry(row) for row in found]
        end = QuotaPlace(version=found[-1].version, entity=changed[-1][0]) if found else begin
        return QuotaPage(
            newest=rows[0].newest,
            forgotten=rows[0].forgotten,
            changed=changed,
            end=end,
            is_last=len(found) < PER_PAGE,
        )

    async def report(
        self, node_id: int, wanted: Mapping[bytes, float], kept_s: float
    ) -> dict[bytes, Sequence[float]]:
        """Writes which part in [0, 1] of each quota this agent wants, for `kept_s`. Returns what others want.
        Raises SequencerUnavailable.
        """
        keys = sorted(wanted)
        rows = await self._database.run_local(
            SQL["report"],
            keys=BytesArray(keys),
            wanted=Int4Array(round(wanted[key] * 1_000_000) for key in keys),
            node_id=node_id,
            kept_s=kept_s,
        )
        return {bytes(row.quota_key): row.wanted for row in rows}


def _tenant(entity: Entity) -> str | None:
    return next((tenant for _, name in entity if name and (tenant := tenant_of(name))), None)


def _entry(row: Row) -> tuple[Entity, dict[str, Any]]:
    return frozenset(row.entity.items()), row.quotas
