"""What a handler gets with a request, in addition to the request."""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from agent.client_network import network_of
from agent.kafka.transport.memory import Reservation
from agent.kafka.transport.request_order import Turn
from agent.quotas.entities import QuotaKind
from agent.security.acls.authorizer import Authorizer, Rights
from agent.security.audit.events import Asker
from agent.security.listeners import KafkaListener
from agent.security.principal import ANONYMOUS, Principal
from agent.security.sasl.session import SaslSession
from agent.settings import AgentSettings
from agent.tenants.server_names import ServerName
from agent.tenants.tenant import Tenant
from agent.write_path.appended_batches import OwnLane
from agent.write_path.producer_window import ProducerWindow
from sequencer.tenants.tenant_names import tenant_of

if TYPE_CHECKING:
    from agent.read_path.watch import Watch
    from storage.identifiers import NodeId, Partition, TopicId


Parts_co = TypeVar("Parts_co", covariant=True)

_PLAIN: Final = KafkaListener()
_GROUPS_NOTED: Final = 8
_LONGEST_NAME: Final = 255


@dataclass(slots=True, kw_only=True)
class ConnectionState:
    """What lives as long as a connection and belongs to no single request. The connection owns it. Handlers
    may read it and note things.
    """

    connection_id: int
    peer: str
    """The client's address, `host:port`."""
    principal: Principal = ANONYMOUS
    """Who the client is. Set once it has authenticated."""
    listener: KafkaListener = _PLAIN
    """The listener that the client came to."""
    server_name: ServerName | None = None
    """The name by which a TLS client asked for this server, if it is a tenant's."""
    sasl: SaslSession | None = None
    """How it proves that. None: its listener does not ask."""
    authorizer: Authorizer | None = None
    """Decides what the client may do. Only the states of tests that ask for no rights lack it."""
    forwarded_by: "NodeId | None" = None
    """The agent that the client came to, if it is another one. The requests are then served here or refused,
    never forwarded again.
    """
    zone: str | None = None
    """The zone of that agent."""
    connected_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    client_id: str | None = None
    """The client id of its last request."""
    software_name: str = ""
    """The client's library and its version, from ApiVersions version 3 on (KIP-511)."""
    software_version: str = ""
    requests: int = 0
    is_gone: bool = False
    """Set if the client hung up or closed its side. Long work for it then ends, unless it is to be carried
    out.
    """
    window: ProducerWindow = field(default_factory=ProducerWindow)
    """Its produce requests in flight."""
    groups: list[str] = field(default_factory=list)
    """The first few groups that its requests named."""
    is_bulk: bool = False
    """True if its last Produce was bulk or waits for bulk. Its requests then take their memory from bulk's
    part.
    """
    bulk_until_s: float = -math.inf
    """The loop time until which its Produce requests count as bulk, whatever their marks are."""
    lane: OwnLane = field(default_factory=OwnLane)
    """Its batches in the write path."""
    muted_until_s: float = 0.0
    """The loop time until which the connection is not read: the client is over a quota."""
    muted_for: tuple[QuotaKind, str, str] | None = None
    """Over which quota, and its user and client id."""
    redirected: "dict[tuple[TopicId, Partition], float]" = field(default_factory=dict)
    """When this connection was first redirected for a partition (see agent/kafka/routing/routing.py)."""
    silences_seen: int | None = None
    """The count of silent agents when this connection last asked for a partition. None: it has not asked."""
    refreshed: "tuple[TopicId, int, float] | None" = None
    """The partition that was refused after the last agent fell silent, so that the client asks for Metadata,
    and the time.
    """

    _rights: Rights | None = None
    _tenant_name: str | None = None
    _named: Principal | None = None
    """The principal whose tenant that is."""

    @property
    def tenant_name(self) -> str | None:
        """The tenant that the client belongs to: its principal's name says so."""
        if self._named is not self.principal:
            self._named, self._tenant_name = self.principal, tenant_of(self.principal.name)
        return self._tenant_name

    @property
    def rights(self) -> Rights:
        """What the client may do now."""
        rights = self._rights
        if rights is None or rights.principal is not self.principal:
            assert self.authorizer is not None, "an agent's connections have an authorizer"
            rights = self._rights = self.authorizer.rights(self.principal, self.host)
            # Another connection of the client may have made them, with an equal principal.
            self.principal = rights.principal
        return rights

    @property
    def host(self) -> str:
        """The client's address without the port, as ACLs name hosts."""
        return self.peer.rpartition(":")[0]

    @property
    def network(self) -> str:
        """Whom bounds of hosts count it with."""
        return network_of(self.host)

    def note_request(self, client_id: str | None, groups: Iterable[str]) -> None:
        self.requests += 1
        self.client_id = client_id
        for group in groups:
            if len(self.groups) >= _GROUPS_NOTED:
                return
            if (name := group[:_LONGEST_NAME]) not in self.groups:
                self.groups.append(name)


def asker_of(connection: ConnectionState, client_id: str | None) -> Asker:
    return Asker(
        principal=str(connection.principal),
        address=connection.peer,
        listener=connection.listener.name,
        client_id=client_id or "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext(Generic[Parts_co]):
    """`Parts_co`: the parts of the agent that the handler uses (agent/kafka/uses.py)."""

    api_key: int
    api_version: int
    client_id: str | None
    client_zone: str
    """The zone that the client names, else this agent's."""
    connection: ConnectionState
    settings: AgentSettings
    parts: Parts_co
    received_at_s: float
    """On the event loop's clock: `asyncio.get_running_loop().time()`."""
    memory: Reservation
    """The request's bytes in the agent's budget. `memory.retain()` keeps them reserved after the response."""
    turn: Turn | None
    """Set for APIs that are pipelined or parked (see `Order` in agent/kafka/api.py)."""
    watch: "Watch | None"
    """Set for long polls. The connection ends their wait through it."""
    tenant: Tenant | None = None
    """The client's tenant. Requests have its names, as the cluster knows them, when they reach a handler."""

    @property
    def prefix(self) -> str:
        """What the names of all begin with that the client's tenant has. Empty: it is of no tenant."""
        return "" if self.tenant is None else self.tenant.prefix

    def known_as(self, name: str) -> str:
        """Returns the cluster's name for what the client names: inside a group, topics have the names of its
        clients.
        """
        return name if self.tenant is None else self.tenant.qualified(name)

    def seen_by_client(self, name: str) -> str:
        """Returns the name of a topic, a group or a transactional id, as the client knows it."""
        return name if self.tenant is None else self.tenant.local(name)

    def deadline_s(self, wait_s: float, longest_s: float) -> float:
        """Returns the loop time at which the response is due for a request that may wait `wait_s`, limited to
        [0, longest_s].
        """
        return self.received_at_s + min(max(wait_s, 0.0), longest_s)

    def remaining_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - asyncio.get_running_loop().time())
