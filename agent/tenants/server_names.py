"""Which tenant a TLS client asks for by the server's name (SNI), and the names that it is then sent to. Pure.

With the domain `kafka.example.com`, and an agent that advertises `b1.kafka.example.com`:

| the client asks for | tenant |
|---|---|
| `acme.kafka.example.com` | acme |
| `acme.b1.kafka.example.com` | acme |
| `b1.kafka.example.com`, `kafka.example.com` | none |
| a name outside the domain, or none | none |
| `a_b.kafka.example.com` | refused: no tenant has such a name, and the client is not of none |

A tenant is the first label of a name, so one record `*.b1.kafka.example.com` leads all tenants to the agent.
"""

from dataclasses import dataclass

from sequencer.tenants.tenant_names import check_tenant_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerName:
    """The client came by a name of this tenant, below this domain."""

    tenant: str
    domain: str

    def of_host(self, host: str) -> str:
        """Returns the tenant's name of an agent's advertised host."""
        return f"{self.tenant}.{host}" if _is_below(host, self.domain) else host


def asked_tenant(name: str | None, domain: str, advertised_host: str | None) -> ServerName | None:
    """Returns the tenant that a server name names. `advertised_host`: of the listener that was asked. Raises
    InvalidTenantName.
    """
    if not name or not domain:
        return None
    name = name.lower().rstrip(".")
    if name in (domain, (advertised_host or "").lower()) or not _is_below(name, domain):
        return None
    tenant = name.partition(".")[0]
    check_tenant_name(tenant)
    return ServerName(tenant=tenant, domain=domain)


def _is_below(host: str, domain: str) -> bool:
    host = host.lower()
    return host == domain or host.endswith(f".{domain}")
