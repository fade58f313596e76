"""The names of what belongs to a tenant: `<tenant>~<name>`, for topics, groups, transactional ids, users and
resources of ACLs (docs/decisions/0137-tenants.md).

Promises:
- A topic's name without a tenant has no `~`, so it never equals a name of a tenant.
- `tenant_of` and `local_name` take a name apart in one way: at its first `~`. A tenant's name has none.

Clients of a tenant never see these names: agents translate them (`agent/tenants/`). Pure.
"""

import re
from typing import Final

SEPARATOR: Final = "~"
_TENANT: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_LEGAL: Final = re.compile(_TENANT)
_QUALIFIED: Final = re.compile(f"({_TENANT}){SEPARATOR}")


RESERVED: Final = frozenset({"topics", "tidelog"})
"""The namespace of tables of no tenant, and the catalog's name in SQL."""


class InvalidTenantName(Exception):
    """A tenant's name is a label of a host name: 1 to 63 of a-z 0-9 -, and no - at either end. Some are
    reserved.
    """


def is_tenant_name(name: str) -> bool:
    """Returns whether a tenant can have this name."""
    return _LEGAL.fullmatch(name) is not None and name not in RESERVED


def check_tenant_name(name: str) -> None:
    """Raises InvalidTenantName."""
    if name in RESERVED:
        raise InvalidTenantName(f"Tenant name {name!r} is taken: a namespace of tables has it.")
    if not is_tenant_name(name):
        raise InvalidTenantName(
            f"Tenant name {name[:100]!r} is illegal: 1 to 63 of a-z 0-9 -, and no - at either end"
        )


def prefix_of(tenant: str) -> str:
    """Returns what the names of all that belongs to the tenant begin with."""
    return tenant + SEPARATOR


def behind(prefix: str) -> str:
    """Returns the first name, by bytes, that comes after all that begin with a tenant's prefix."""
    return prefix[:-1] + chr(ord(SEPARATOR) + 1)


def range_of(tenant: str) -> dict[str, str]:
    """Returns the parameters of statements that look at the tenant's names, which lie together by bytes."""
    prefix = prefix_of(tenant)
    return {"prefix": prefix, "behind": behind(prefix)}


def tenant_of(name: str) -> str | None:
    """Returns the tenant that the name belongs to. None: to none."""
    if SEPARATOR not in name:
        return None
    found = _QUALIFIED.match(name)
    return None if found is None else found.group(1)


def local_name(name: str) -> str:
    """Returns the name as the clients of its tenant see it."""
    tenant = tenant_of(name)
    return name if tenant is None else name[len(tenant) + len(SEPARATOR) :]
