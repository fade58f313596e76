"""The tenants that this agent knows, and which connections belong to one.

Promises:
- A tenant that is made, changed or deleted in Postgres is so here after `tenants_poll_s` and one statement.
- While Postgres is away, the last list goes on to decide. That is bounded: an agent that cannot renew its
  lease in Postgres stops serving.
- A client whose tenant is not known is served nothing. It never counts as a client of no tenant.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agent.tenants.api_names import API_NAMES
from agent.tenants.settings import TenantSettings
from agent.tenants.tenant import Tenant, cluster_id_of
from sequencer.database.database import SequencerUnavailable
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenants import TenantRow


class _Rows(Protocol):
    async def changes(self) -> int: ...

    async def list(self) -> Sequence[TenantRow]: ...


class KnownTenants:
    def __init__(self, rows: _Rows, settings: TenantSettings, cluster_id: str) -> None:
        self.settings = settings
        self._rows = rows
        self._cluster_id = cluster_id
        self._changes: int | None = None
        self._known: dict[str, Tenant] = {}
        self._parts: dict[str, Any] = {}
        self.on_admins: Callable[[frozenset[str]], None] = lambda _: None
        """Hears of the principals that may do everything in their tenant, whenever they change."""
        self.on_limits: Callable[[Mapping[str, TenantLimits]], None] = lambda _: None
        """Hears of the limits of all tenants, whenever they change."""
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Follows the changes, until cancelled."""
        while True:
            with contextlib.suppress(SequencerUnavailable):
                await self.refresh()
            await asyncio.sleep(self.settings.tenants_poll_s)

    def forget_all(self) -> None:
        """Another Postgres became the primary: the list is read again."""
        self._changes = None

    async def refresh(self) -> None:
        """Returns once all changes that were made before this call are known. Raises
        SequencerUnavailable.
        """
        changes = await self._rows.changes()
        if changes != self._changes:
            rows = await self._rows.list()
            self._known = {row.name: self._known.get(row.name) or self._tenant(row.name) for row in rows}
            self._parts = {name: parts for name, parts in self._parts.items() if name in self._known}
            self._changes = changes
            self.on_admins(
                frozenset(
                    f"User:{self._known[row.name].qualified(admin)}" for row in rows for admin in row.admins
                )
            )
            self.on_limits({row.name: row.limits for row in rows})
        self.loaded.set()

    def get(self, name: str) -> Tenant | None:
        return self._known.get(name)

    def refusal(self, tenant: str, api_key: int) -> str | None:
        """Returns why a request of the tenant's client closes its connection. None: it is served."""
        if tenant not in self._known:
            return f"there is no tenant {tenant}"
        return None if api_key in API_NAMES else "the API is not served to tenants"

    def parts_of(self, tenant: Tenant, make: Callable[[Tenant], Any]) -> Any:
        """Returns the parts of the agent as the tenant's requests see them, made once."""
        parts = self._parts.get(tenant.name)
        if parts is None:
            parts = self._parts[tenant.name] = make(tenant)
        return parts

    def _tenant(self, name: str) -> Tenant:
        return Tenant(name=name, cluster_id=cluster_id_of(self._cluster_id, name))
