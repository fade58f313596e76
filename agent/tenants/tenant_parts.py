"""The parts of the agent, as the handlers of a tenant's requests see them."""

from typing import Any

from agent.tenants.local_topics import OwnTopics
from agent.tenants.tenant import Tenant


class TenantParts:
    """Has its own topics and its own cluster id. All else is shared, and asked with the tenant's names."""

    def __init__(self, parts: Any, tenant: Tenant) -> None:
        self._parts = parts
        self.topics = OwnTopics(parts.topics, tenant)
        self.cluster_id = tenant.cluster_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)
