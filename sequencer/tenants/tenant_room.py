"""Whether a tenant may have one more of what its clients make by asking for a new id: groups, transactional
ids.
"""

from sequencer.database.database import Database
from sequencer.tenants.tenant_limits import TenantLimitReached
from sequencer.tenants.tenant_names import range_of


async def check_room(
    database: Database, has_room: str, tenant: str, *, most: int, what: str, **asked: str
) -> None:
    """Runs the statement `has_room`, which is given `asked` too. `most`: of a tenant for which no limit is
    set. `what` they are, in the error. Raises TenantLimitReached.
    """
    [row] = await database.read(has_room, tenant=tenant, most_of_tenant=most, **range_of(tenant), **asked)
    if not row.has_room:
        raise TenantLimitReached(f"There are as many {what} as this tenant may have.")
