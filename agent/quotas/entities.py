"""Which quotas there are, whom they may be set for, and which of them applies to a client (pure).

An entity is a set of (type, name). A further type is one more entry in `PRECEDENCE` and in `ALLOWED_KEYS`.
"""

import ipaddress
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sequencer.security.quotas import Entity, Quotas
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenant_names import prefix_of, tenant_of

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"


class QuotaKind(StrEnum):
    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"
    PRIORITY = "tidelog_priority"
    """No rate: a mark of the client's traffic (`agent/traffic_class.py`), which Kafka does not have."""


CLIENT_KINDS: Final = (QuotaKind.PRODUCE, QuotaKind.FETCH, QuotaKind.REQUEST, QuotaKind.MUTATION)
_CLIENT_KEYS: Final = frozenset({*CLIENT_KINDS, QuotaKind.PRIORITY})
ALLOWED_KEYS: Final[Mapping[frozenset[str], frozenset[str]]] = {
    frozenset({USER, CLIENT_ID}): _CLIENT_KEYS,
    frozenset({USER}): _CLIENT_KEYS,
    frozenset({CLIENT_ID}): _CLIENT_KEYS,
    frozenset({IP}): frozenset({QuotaKind.CONNECTION}),
}
"""The keys that go with each combination of types."""
_LARGEST: Final = {
    QuotaKind.PRODUCE: (2**63 - 1, "LONG"),
    QuotaKind.FETCH: (2**63 - 1, "LONG"),
    QuotaKind.CONNECTION: (2**31 - 1, "INT"),
}
_PRIORITIES: Final = (1.0, 2.0)
_FRACTION: Final = 1e-6
_LONGEST_NAME: Final = 1_024

# The precedence of KIP-55 and KIP-546, the most specific first. A letter for each of user and client id: "="
# is its own name, "*" the default, "-" not part of the entity.
PRECEDENCE: Final = ("==", "=*", "=-", "*=", "**", "*-", "-=", "-*")


OF_WHOLE_TENANTS: Final[Mapping[str, QuotaKind]] = {
    "produce_bytes_rate": QuotaKind.PRODUCE,
    "fetch_bytes_rate": QuotaKind.FETCH,
    "request_percentage": QuotaKind.REQUEST,
    "mutation_rate": QuotaKind.MUTATION,
}
"""The limits of a tenant as a whole, by their names in TenantLimits."""


class InvalidQuota(Exception):
    """No such quota can exist. The message is for the client, and Kafka's."""


def check_entity(entity: Mapping[str, str | None]) -> frozenset[str]:
    """Returns the keys that may be set for it. Raises InvalidQuota."""
    if not entity:
        raise InvalidQuota("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidQuota(f"Unhandled client quota entity type: {kind[:100]}")
        if name == "":
            raise InvalidQuota(f"Empty {kind} not supported")
        if name is not None and (len(name) > _LONGEST_NAME or "\0" in name):
            raise InvalidQuota(f"A name has at most {_LONGEST_NAME} characters and no NUL")
    keys = ALLOWED_KEYS.get(frozenset(entity))
    if keys is None:
        raise InvalidQuota("Invalid empty client quota entity")
    address = entity.get(IP)
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise InvalidQuota(f"{address} is not a valid IP or resolvable host.") from None
    return keys


def tenant_of_entity(entity: Mapping[str, str | None]) -> str | None:
    """Returns the tenant that the entity's names belong to. None: to none. Raises InvalidQuota."""
    tenants = {name and tenant_of(name) for kind, name in entity.items() if kind != IP}
    if len(tenants) > 1:
        raise InvalidQuota("All names of an entity belong to one tenant, or none does.")
    return next(iter(tenants), None)


def check_value(keys: frozenset[str], key: str, value: float) -> None:
    """Raises InvalidQuota."""
    if key not in keys:
        raise InvalidQuota(f"Invalid configuration key {key[:100]}")
    if not 0 < value < float("inf"):
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    if key == QuotaKind.PRIORITY and value not in _PRIORITIES:
        raise InvalidQuota(f"{key} must be 1 (interactive) or 2 (bulk)")
    if key in _LARGEST:
        largest, name = _LARGEST[QuotaKind(key)]
        if value > largest:
            raise InvalidQuota(f"Proposed value for {key} is too large for a {name}.")
        if value % 1.0 > _FRACTION:
            raise InvalidQuota(f"Quota {key} cannot be a fractional value.")


def rates_of_tenants(limits: Mapping[str, TenantLimits]) -> dict[str, Quotas]:
    """Returns what each tenant as a whole may do, of those with such a limit."""
    found: dict[str, Quotas] = {}
    for tenant, limit in limits.items():
        stored = limit.as_stored()
        rates: Quotas = {
            kind: float(stored[name]) for name, kind in OF_WHOLE_TENANTS.items() if stored.get(name, 0) > 0
        }
        if rates:
            found[tenant] = rates
    return found


def levels(user: str, client_id: str) -> list[tuple[Entity, tuple[str, str]]]:
    """Returns the entities whose quotas may apply to a client, the most specific first, and for each the user
    and the client id that share one quota. "": it is shared by all of them.

    A tenant's client ids and defaults are its own: they are named `<tenant>~<client id>` and `<tenant>~`. A
    client of no tenant that says such a client id shares nothing with the tenant.
    """
    found = []
    tenant = tenant_of(user)
    default = None if tenant is None else prefix_of(tenant)
    client_id = (default or "") + client_id
    for of_user, of_client in PRECEDENCE:
        if of_client == "=" and tenant_of(client_id) != tenant:
            continue
        parts = [(USER, of_user, user), (CLIENT_ID, of_client, client_id)]
        entity = frozenset((kind, name if how == "=" else default) for kind, how, name in parts if how != "-")
        shared = ("" if of_user == "-" else user, "" if of_client == "-" else client_id)
        found.append((entity, shared))
    return found


def quota_of(
    kind: QuotaKind, user: str, client_id: str, quotas: Mapping[Entity, Quotas]
) -> tuple[float, tuple[str, str]] | None:
    """Returns the quota of this client and who shares it. None: it has none."""
    for entity, shared in levels(user, client_id):
        value = quotas.get(entity, {}).get(kind)
        if value is not None:
            return value, shared
    return None


def matches(entity: Entity, exact: Mapping[str, str | None], any_of: frozenset[str], *, strict: bool) -> bool:
    """True if the filter of DescribeClientQuotas selects this entity. `exact`: names; None is the default."""
    given = dict(entity)
    if strict and (not given or len(given) != len(exact) + len(any_of)):
        return False
    return all(kind in given and given[kind] == name for kind, name in exact.items()) and all(
        kind in given for kind in any_of
    )
