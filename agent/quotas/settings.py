"""The settings of client quotas: options of `tidelog agent` and variables `TIDELOG_<NAME>`."""

from pydantic import Field

from storage.settings import Settings


class QuotaSettings(Settings):
    quota_poll_s: float = Field(default=1.0, gt=0)
    """How often an agent asks Postgres for changes of quotas, and reports what its clients use of them."""
    quota_clients: int = Field(default=10_000, ge=1)
    """The most quotas in use that an agent tracks. Past that, it forgets the one that was silent longest."""
    quota_reports_per_s: int = Field(default=5_000, ge=1)
    """The most rows of use that all agents together write to Postgres per second."""
    max_client_quotas: int = Field(default=10_000, ge=1)
    """The most entities with quotas in a cluster."""
    max_connections_per_ip: int = Field(default=2_147_483_647, ge=0)
    """The most connections of one address to this agent (Kafka's max.connections.per.ip)."""
