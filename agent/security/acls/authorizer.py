"""Decides what a client may do.

Promises:
- A super user may do everything, whatever the ACLs say.
- Until the first snapshot of the ACLs was read, all others may do nothing.
- If there is no authorizer, or for a super user, a check costs one attribute: `Rights.is_unrestricted`.
- A decision always reads the newest snapshot. What is remembered of an older one is dropped.
- A client of a tenant may do nothing outside its tenant, whatever the ACLs and settings say. Its tenant's
  admins, or all of its clients if there is no authorizer, may do everything inside, except what would reach
  other tenants.
- A client of no tenant that is not unrestricted may do nothing with what belongs to a tenant.
- What is remembered is bounded: for each client, for all clients together, and in the length of names.

Pure. `known_acls.py` brings the snapshots. No word of Kafka's protocol is
here, so that other interfaces can ask, too.
"""

from ipaddress import IPv6Address, ip_address
from typing import Final
from weakref import WeakValueDictionary

from agent.security.acls.acl_index import EVERY_OPERATION, NO_OPERATION, AclIndex
from agent.security.acls.settings import AuthorizationSettings, principals_of
from agent.security.principal import Principal
from sequencer.security.acl import ANY_HOST, CLUSTER_NAME, Operation, ResourceType
from sequencer.tenants.tenant_names import prefix_of, tenant_of

LONGEST_REMEMBERED: Final = 249
"""The most characters of a name whose decision is remembered: the longest name of a topic. Clients may ask
for names of megabytes.
"""

_BEYOND_TENANT: Final = (
    1 << Operation.CLUSTER_ACTION | 1 << Operation.DESCRIBE_CONFIGS | 1 << Operation.ALTER_CONFIGS
)
"""Operations on the cluster that no client of a tenant has: agents belong to all tenants together."""


def spellings(host: str) -> tuple[str, ...]:
    """Returns how ACLs may write this IP address. Java, and so Kafka's users, write IPv6 without `::`."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return (host,)
    if not isinstance(address, IPv6Address):
        return (host,)
    if address.ipv4_mapped is not None:
        return (str(address.ipv4_mapped),)
    groups = address.exploded.split(":")
    return (str(address), ":".join(f"{int(group, 16):x}" for group in groups))


class Rights:
    """What one principal may do from one host. Connections of the same client share it."""

    __slots__ = (
        "__weakref__",
        "_authorizer",
        "_hosts",
        "_index",
        "_most_known",
        "_name",
        "_open_if_no_acl",
        "_operations",
        "_scope",
        "_some",
        "host",
        "is_unrestricted",
        "principal",
        "tenant",
    )

    def __init__(self, authorizer: "Authorizer", principal: Principal, host: str) -> None:
        self.principal = principal
        self.host = host
        tenant = tenant_of(principal.name)
        self.tenant = tenant
        """None: the client is of no tenant."""
        self._scope = "" if tenant is None else prefix_of(tenant)
        self.is_unrestricted = tenant is None and authorizer.is_unrestricted(principal)
        """True: every check is passed."""
        self._authorizer = authorizer
        self._name = str(principal)
        self._hosts = (*spellings(host), ANY_HOST)
        self._open_if_no_acl = authorizer.settings.allow_everyone_if_no_acl_found
        self._most_known = authorizer.settings.acl_decisions_per_client
        self._index: AclIndex | None = None
        self._operations: dict[tuple[ResourceType, str], int] = {}
        self._some: dict[tuple[Operation, ResourceType], bool] = {}

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Returns the operations that are allowed on a resource, one bit each."""
        if self.is_unrestricted:
            return EVERY_OPERATION
        if self._scope:
            return self._operations_in_tenant(resource_type, name)
        return NO_OPERATION if tenant_of(name) is not None else self._decided(resource_type, name)

    def allows_on_quotas(self, operation: Operation) -> bool:
        """Returns whether the client may do this with client quotas. Those of a tenant are not the agents'
        configs: in it, its admins and ACLs of its cluster decide.
        """
        found = (
            self._operations_in_tenant(ResourceType.CLUSTER, CLUSTER_NAME, beyond=0)
            if self._scope
            else self.operations(ResourceType.CLUSTER, CLUSTER_NAME)
        )
        return bool(found >> operation & 1)

    def _operations_in_tenant(
        self, resource_type: ResourceType, name: str, beyond: int = _BEYOND_TENANT
    ) -> int:
        is_cluster = resource_type is ResourceType.CLUSTER
        if is_cluster:
            name = self._scope + name
        if not name.startswith(self._scope):
            return NO_OPERATION
        if self._authorizer.is_admin(self._name) or not self._authorizer.is_on:
            found = EVERY_OPERATION
        else:
            found = self._decided(resource_type, name)
        return found & ~beyond if is_cluster else found

    def _decided(self, resource_type: ResourceType, name: str) -> int:
        index = self._authorizer.index
        if index is not self._index:
            self._forget(index)
        known = self._operations.get((resource_type, name))
        if known is not None:
            return known
        if index is None:
            return NO_OPERATION
        found = index.operations(
            self._name,
            self._hosts,
            resource_type,
            name,
            open_if_no_acl=self._open_if_no_acl,
            scope=self._scope,
        )
        if self._most_known and len(name) <= LONGEST_REMEMBERED:
            if len(self._operations) >= self._most_known:
                self._operations.clear()
            self._authorizer.make_room()
            self._operations[resource_type, name] = found
        return found

    def allows(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        return bool(self.operations(resource_type, name) >> operation & 1)

    def reaches(self, name: str) -> bool:
        """Returns whether a name may be shown to the client, and be changed by it, if it may do so with all
        names: it is of the client's tenant. What is a tenant's is only for that tenant and for operators.
        """
        if self._scope:
            return name.startswith(self._scope)
        return self.is_unrestricted or tenant_of(name) is None

    def allows_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Returns whether the operation is allowed on any resource of the type."""
        if self.is_unrestricted:
            return True
        if self._scope and (self._authorizer.is_admin(self._name) or not self._authorizer.is_on):
            return True
        index = self._authorizer.index
        if index is not self._index:
            self._forget(index)
        if index is None:
            return False
        known = self._some.get((operation, resource_type))
        if known is None:
            known = self._some[operation, resource_type] = index.allows_some(
                self._name,
                self._hosts,
                operation,
                resource_type,
                open_if_no_acl=self._open_if_no_acl,
                scope=self._scope,
            )
        return known

    def forget(self) -> None:
        """Drops what is remembered. It is decided again when it is asked for."""
        self._operations.clear()

    def _forget(self, index: AclIndex | None) -> None:
        self._index = index
        self._operations.clear()
        self._some.clear()


class Authorizer:
    def __init__(self, settings: AuthorizationSettings) -> None:
        self.settings = settings
        self.index: AclIndex | None = None
        """The newest snapshot. None: there was none yet."""
        self._super_users = principals_of(settings.super_users)
        self.admins: frozenset[str] = frozenset()
        """The principals that may do everything in their tenant."""
        self._rights: WeakValueDictionary[tuple[Principal, str], Rights] = WeakValueDictionary()
        self._remembered = 0
        """Decisions remembered since all were last dropped. There are at most as many now."""

    @property
    def is_on(self) -> bool:
        return self.settings.authorizer

    def is_unrestricted(self, principal: Principal) -> bool:
        return not self.is_on or str(principal) in self._super_users

    def take_admins(self, admins: frozenset[str]) -> None:
        self.admins = admins

    def is_admin(self, principal: str) -> bool:
        return principal in self.admins or principal in self._super_users

    def rights(self, principal: Principal, host: str) -> Rights:
        """Returns the rights of a client. They are kept for as long as a caller holds them."""
        found = self._rights.get((principal, host))
        if found is None:
            found = self._rights[principal, host] = Rights(self, principal, host)
        return found

    def make_room(self) -> None:
        """Counts one more decision that is remembered. Drops those of all clients if there are too many."""
        if self._remembered >= self.settings.acl_decisions:
            for rights in self._rights.values():
                rights.forget()
            self._remembered = 0
        self._remembered += 1
