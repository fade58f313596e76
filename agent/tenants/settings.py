"""Settings of tenants."""

from pydantic import Field

from storage.settings import Settings


class TenantSettings(Settings):
    tenants_poll_s: float = Field(default=1.0, gt=0)
    """The pause between two looks for tenants that were made, changed or deleted."""
    tenant_server_names: str = Field(default="", pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$")
    """The domain of the agents' advertised hosts, such as `kafka.example.com`. A client that asks TLS for
    `acme.kafka.example.com`, or for `acme.` before an agent's advertised host, is a client of tenant acme.
    Empty: server names choose no tenant.
    """
    tenant_usage_report_s: float = Field(default=60.0, gt=0)
    """The pause between two reports of what tenants used, to their bill."""
    tenant_usage_measure_s: float = Field(default=3_600.0, gt=0)
    """How often the bytes that a tenant stores are added up."""
    tenant_usage_days: int = Field(default=400, ge=1)
    """Days that stay on the bill."""
