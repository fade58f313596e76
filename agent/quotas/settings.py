"""The settings of client quotas: options of `tidelog agent` and variables `TIDELOG_<NAME>`."""

from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address

from pydantic import Field, field_validator

from storage.settings import Settings


class QuotaSettings(Settings):
    quota_poll_s: float = Field(default=1.0, gt=0)
    """How often an agent asks Postgres for changes of quotas, and reports what its clients use of them."""
    quota_clients: int = Field(default=10_000, ge=1)
    """The most quotas in use that an agent tracks. Past that, the tenant with most of them loses one."""
    quota_reports_per_s: int = Field(default=5_000, ge=1)
    """The most rows of use that all agents together write to Postgres per second."""
    max_client_quotas: int = Field(default=10_000, ge=1)
    """The most entities with quotas in a cluster."""
    max_connections_per_ip: int = Field(default=2_147_483_647, ge=0)
    """The most connections of one address to this agent (Kafka's max.connections.per.ip)."""
    max_connections_per_ip_overrides: str = Field(default="")
    """Other bounds for addresses, such as 10.0.0.1:200,[2001:db8::1]:50 (Kafka's
    max.connections.per.ip.overrides).
    """
    max_connection_creation_rate: int = Field(default=2_147_483_647, ge=1)
    """The most new connections of clients to this agent per second (Kafka's max.connection.creation.rate).
    Further ones are closed at once.
    """

    @cached_property
    def connections_of_addresses(self) -> Mapping[str, int]:
        """The overrides, parsed."""
        return _overrides(self.max_connections_per_ip_overrides)

    @field_validator("max_connections_per_ip_overrides")
    @classmethod
    def _are_bounds(cls, value: str) -> str:
        _overrides(value)
        return value


def _overrides(text: str) -> Mapping[str, int]:
    found = {}
    for part in (part.strip() for part in text.split(",")):
        address, _, most = part.rpartition(":")
        if not part:
            continue
        if not most.isdecimal():
            raise ValueError(f"'{part}' has no number of connections: say 10.0.0.1:200")
        try:
            found[str(ip_address(address.removeprefix("[").removesuffix("]")))] = int(most)
        except ValueError:
            raise ValueError(f"'{address}' is no IP address: say 10.0.0.1:200 or [2001:db8::1]:50") from None
    return found
