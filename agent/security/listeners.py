"""The Kafka listeners of an agent, as its settings describe them (KIP-103). Pure.

A listener has a name, an address that it binds, a security protocol, and an advertised address.
Metadata, DescribeCluster and FindCoordinator answer a client with the addresses of the listeners of the same
name, at all agents.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.security.tls.contexts import ClientAuth

_LISTENER: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})://(\[[^\]]*\]|[^:/\s]*):(\d{1,5})")
_LARGEST_PORT: Final = 65_535
MOST_LISTENERS: Final = 16


class SecurityProtocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaListener:
    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    client_auth: ClientAuth = ClientAuth.NONE
    """Of TLS listeners. With SASL, the name of a certificate does not count, as in Kafka."""
    advertised_host: str | None = None
    """None: the bound one."""
    advertised_port: int | None = None

    @property
    def authenticates(self) -> bool:
        """True if every client proves who it is."""
        if self.security_protocol.has_sasl:
            return True
        return self.security_protocol.is_encrypted and self.client_auth is ClientAuth.REQUIRED


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


def parse_addresses(text: str) -> dict[str, Address]:
    """Returns the addresses of `NAME://host:port,...` by name, in order. Raises ValueError."""
    addresses: dict[str, Address] = {}
    for item in _items(text):
        found = _LISTENER.fullmatch(item)
        if found is None or int(found.group(3)) > _LARGEST_PORT:
            raise ValueError(f"'{item}' is not NAME://host:port")
        name = found.group(1).upper()
        if name in addresses:
            raise ValueError(f"the listener {name} is there twice")
        addresses[name] = Address(found.group(2).strip("[]"), int(found.group(3)))
    if len(addresses) > MOST_LISTENERS:
        raise ValueError(f"there are more than {MOST_LISTENERS} listeners")
    return addresses


def parse_map(text: str) -> dict[str, str]:
    """Returns the values of `NAME:value,...` by name. Raises ValueError."""
    values: dict[str, str] = {}
    for item in _items(text):
        name, colon, value = item.partition(":")
        if not colon or not name or not value:
            raise ValueError(f"'{item}' is not NAME:value")
        values[name.strip().upper()] = value.strip()
    return values


def of_listener(text: str, name: str, default: str) -> str:
    """Returns what a setting says of one listener: `value` for all, or `NAME:value,...`. Raises
    ValueError.
    """
    if ":" not in text:
        return text.strip() or default
    return parse_map(text).get(name, default)


def named_listeners(
    bound: Mapping[str, Address],
    advertised: Mapping[str, Address],
    protocols: Mapping[str, str],
    client_auth: str,
) -> tuple[KafkaListener, ...]:
    """Makes listeners of Kafka's three settings. A listener that the map does not name has the protocol of
    its name. Raises ValueError.
    """
    for setting, names in (
        ("ADVERTISED_LISTENERS", advertised),
        ("LISTENER_SECURITY_PROTOCOL_MAP", protocols),
    ):
        strange = sorted(set(names) - set(bound))
        if strange and setting == "ADVERTISED_LISTENERS":
            raise ValueError(
                f"TIDELOG_{setting} names {', '.join(strange)}, which TIDELOG_LISTENERS does not"
            )
    return tuple(
        KafkaListener(
            name=name,
            host=address.host,
            port=address.port,
            security_protocol=security_protocol(protocols.get(name, name), name),
            client_auth=ClientAuth(of_listener(client_auth, name, ClientAuth.NONE)),
            advertised_host=advertised[name].host if name in advertised else None,
            advertised_port=advertised[name].port if name in advertised else None,
        )
        for name, address in bound.items()
    )


def security_protocol(text: str, listener: str) -> SecurityProtocol:
    """Raises ValueError."""
    try:
        return SecurityProtocol(text.upper())
    except ValueError:
        raise ValueError(
            f"the listener {listener} has no security protocol: TIDELOG_LISTENER_SECURITY_PROTOCOL_MAP must "
            f"name PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL for it, not '{text}'"
        ) from None


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the address. A name other than localhost is taken to be public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_listeners(listeners: Iterable[KafkaListener]) -> tuple[KafkaListener, ...]:
    """Returns the listeners that others than this machine reach without proving who they are."""
    return tuple(
        listener for listener in listeners if not listener.authenticates and not is_loopback(listener.host)
    )


def duplicate_binds(listeners: Sequence[KafkaListener]) -> str | None:
    """Returns the name of a listener that binds what an earlier one binds."""
    seen: set[tuple[str, int]] = set()
    for listener in listeners:
        if listener.port and (listener.host, listener.port) in seen:
            return listener.name
        seen.add((listener.host, listener.port))
    return None


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
