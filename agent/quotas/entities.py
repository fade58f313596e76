"""Which quotas there are, whom they may be set for, and which of them applies to a client (pure).

An entity is a set of (type, name). A further type is one more entry in `PRECEDENCE` and in `ALLOWED_KEYS`.
"""

import ipaddress
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sequencer.security.quotas import Entity, Quotas

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


def levels(user: str, client_id: str) -> list[tuple[Entity, tuple[str, str]]]:
    """Returns the entities whose quotas may apply to a client, the most specific first, and for each the user
    and the client id that share one quota. "": it is shared by all of them.
    """
    found = []
    for of_user, of_client in PRECEDENCE:
        parts = [(USER, of_user, user), (CLIENT_ID, of_client, client_id)]
        entity = frozenset((kind, name if how == "=" else None) for kind, how, name in parts if how != "-")
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
