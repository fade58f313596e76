"""Whom a bound counts as one, as long as nothing but the address is known of a client.

Whoever has an IPv6 address mostly has all of its /64 (RFC 6177), so a bound of each address would bound
nothing. Kafka's settings and quotas that name addresses mean exact ones, and so do ACLs.
"""

from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

_KEPT: Final = 10_000
_NETWORK_BITS: Final = 64


@lru_cache(_KEPT)
def network_of(host: str) -> str:
    """Returns the /64 of an IPv6 address, as its first address. Everything else stays as it is, but for an
    IPv4 address in IPv6 notation, which is that IPv4 address.
    """
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
    return network if address.scope_id is None else f"{network}%{address.scope_id}"
