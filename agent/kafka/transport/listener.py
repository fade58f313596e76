"""The Kafka listeners: accept connections, own their tasks, close overdue ones, and drain before the end.

Promises:
- There are at most `max_connections` of clients, and `max_forwarded_connections` that other agents open for
  theirs. Where clients must authenticate, a new one takes the place of one that has not.
- No request outlives `run`.
- A client of a TLS listener counts as a connection once its handshake is over. Before that, the acceptor
  bounds it (`agent/security/tls/acceptor.py`). If it showed a certificate, its principal is set before its
  first request.
- After `drain` no connection is accepted, and each open one closes once its requests are answered.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from agent.kafka.client_rates import TokenBuckets
from agent.kafka.context import ConnectionState
from agent.kafka.forwarding.forward_protocol import ACCEPTED, HELLO_LENGTH_BYTES, decode_hello
from agent.kafka.transport.connection import KafkaConnection, Shared, address_of
from agent.quotas.entities import QuotaKind
from agent.security.audit.events import Asker
from agent.security.listeners import KafkaListener
from agent.security.principal import ANONYMOUS, Principal
from agent.security.tls.acceptor import TlsAcceptor
from agent.security.tls.contexts import ClientAuth, KeptContext
from agent.security.tls.failure import HandshakeFailed
from agent.security.tls.principal_mapping import NoRuleMatches, PrincipalMapping
from agent.security.tls.transport import TlsTransport
from agent.security.tls.x509 import BadCertificate, subject_of
from agent.tenants.server_names import ServerName, asked_tenant
from sequencer.security.credentials import CredentialKey
from sequencer.tenants.tenant_names import InvalidTenantName, prefix_of, tenant_of

log = logging.getLogger("tidelog")

_SWEEP_INTERVAL_S = 1.0
_ALL_CLIENTS: Final = ""
_REFUSED_LOGINS: Final = frozenset({"certificate", "principal", "tenant"})
"""Failures of handshakes that say who may come. Others are of the network, or of what is not TLS."""


def bound_socket(host: str, port: int) -> socket.socket:
    """Binds a socket without listening, so that its port is known before any client can connect. Raises
    OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that name TCP. With it, an HTTP answer takes 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundListener:
    """One listener of the settings, and the socket that it binds."""

    listener: KafkaListener
    socket: socket.socket
    context: KeptContext | None = None
    """Set if it speaks TLS."""


class Listener:
    """Serves with `run`. End with `drain`, then cancel `run`."""

    def __init__(
        self,
        shared: Shared,
        bound: Sequence[BoundListener],
        acceptor: TlsAcceptor,
        mapping: PrincipalMapping,
    ) -> None:
        """`mapping` names the clients that show a certificate."""
        self._shared = shared
        self._bound = bound
        self._acceptor = acceptor
        self._mapping = mapping
        self._ids = count(1)
        self._connections: dict[KafkaConnection, asyncio.Future[None]] = {}
        """The open connections in the order in which they came, and a callback for each once it has ended."""
        self._forwarded = 0
        self._of_address: Counter[str] = Counter()
        """The open connections of clients by address."""
        per_s = shared.parts.quotas.settings.max_connection_creation_rate
        self._new = TokenBuckets(per_s=per_s, burst=per_s, most_clients=1, clock=time.monotonic)
        self._servers: list[asyncio.Server] = []
        self._accepting = True
        self.listening = asyncio.Event()

    @property
    def connections(self) -> int:
        """Connections of clients, and those that other agents opened for theirs."""
        return len(self._connections)

    def clients(self) -> Iterator[ConnectionState]:
        """The open connections of clients that came to this agent, in the order in which they came."""
        return (connection.state for connection in self._connections if connection.state.forwarded_by is None)

    async def run(self) -> None:
        """Listens until cancelled, then abandons what is left."""
        loop = asyncio.get_running_loop()
        try:
            for bound in self._bound:
                await self._serve(partial(self._arrived, bound), bound.socket)
            self.listening.set()
            while True:
                await asyncio.sleep(_SWEEP_INTERVAL_S)
                self._close_overdue(loop.time())
        finally:
            self._close_servers()
            self._acceptor.close()
            await asyncio.gather(*(connection.abandon() for connection in self._connections))

    async def drain(self) -> None:
        """Stops accepting. Returns when everything in flight is answered and every connection closed."""
        self._accepting = False
        self._close_servers()
        self._acceptor.close()
        for connection in list(self._connections):
            connection.drain()
        while self._connections:
            await asyncio.wait(list(self._connections.values()))

    def suspend(self, reason: str) -> None:
        """Hangs up on every client, and on new ones until `resume`: this agent may not serve now."""
        self._accepting = False
        for connection in list(self._connections):
            connection.close(reason)

    def resume(self) -> None:
        self._accepting = True

    def credentials_in_use(self) -> Set[CredentialKey]:
        """The credentials that open sessions have proved themselves with."""
        sessions = (connection.state.sasl for connection in self._connections)
        return {one.credential for one in sessions if one is not None and one.credential is not None}

    def end_sessions(self, deleted: Set[CredentialKey]) -> None:
        """Hangs up on the clients that proved themselves with credentials that were deleted."""
        for connection in list(self._connections):
            session = connection.state.sasl
            if session is not None and session.credential in deleted:
                connection.close("credential_deleted")

    async def take_forwarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection that another agent opened for one of its clients. Returns when it has ended or
        was refused. Raises BadHello and what the streams raise.
        """
        async with asyncio.timeout(self._shared.settings.forward_connect_timeout_s):
            length = int.from_bytes(await reader.readexactly(HELLO_LENGTH_BYTES), "big")
            hello = decode_hello(await reader.readexactly(length))
        if not self._accepting or self._forwarded >= self._shared.settings.max_forwarded_connections:
            self._shared.metrics.connections_closed.labels("forwarded_refused").inc()
            writer.close()
            return
        connection = KafkaConnection(self._shared, next(self._ids), self._opened, self._ended, hello)
        # The other side sends nothing before it is accepted, so no byte of the connection was read yet.
        writer.transport.set_protocol(connection)
        connection.connection_made(writer.transport)
        writer.transport.write(ACCEPTED)
        # Without a reference, the writer would close its transport.
        await asyncio.wait({self._connections[connection]})

    async def _serve(self, new_connection: Callable[[], asyncio.BaseProtocol], bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_server(new_connection, sock=bound, backlog=1024, start_serving=False)
        )
        await self._servers[-1].start_serving()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()

    def _refused(self, listener: KafkaListener, tls: TlsTransport, failure: HandshakeFailed) -> None:
        if failure.reason in _REFUSED_LOGINS:
            asker = Asker(address=address_of(tls), listener=listener.name)
            self._shared.parts.audit.login_failed(asker, "TLS", f"{failure.reason}: {failure}")

    def _arrived(self, bound: BoundListener) -> asyncio.BaseProtocol:
        if bound.context is None:
            return self._new_connection(bound.listener, ANONYMOUS)
        secured, refused = partial(self._secured, bound.listener), partial(self._refused, bound.listener)
        return self._acceptor.accept(bound.context, secured, refused)

    def _secured(self, listener: KafkaListener, tls: TlsTransport) -> KafkaConnection:
        certificate = tls.peer_certificate
        if certificate is None and listener.client_auth is ClientAuth.REQUIRED:
            raise HandshakeFailed("certificate", "there is no certificate")
        domain = self._shared.tenants.settings.tenant_server_names
        try:
            server = asked_tenant(tls.asked_name, domain, listener.advertised_host)
        except InvalidTenantName as invalid:
            raise HandshakeFailed("tenant", str(invalid)) from None
        if certificate is None or listener.security_protocol.has_sasl:
            principal = ANONYMOUS
            if server is not None and not listener.security_protocol.has_sasl:
                principal = Principal(prefix_of(server.tenant) + ANONYMOUS.name)
            return self._new_connection(listener, principal, server)
        try:
            name = self._mapping.name(subject_of(certificate))
        except (BadCertificate, NoRuleMatches) as unnamed:
            raise HandshakeFailed("principal", str(unnamed)) from None
        if server is not None and tenant_of(name) != server.tenant:
            raise HandshakeFailed("tenant", f"the certificate does not name a user of tenant {server.tenant}")
        connection = self._new_connection(listener, Principal(name), server)
        asker = Asker(principal=str(Principal(name)), address=address_of(tls), listener=listener.name)
        self._shared.parts.audit.logged_in(asker, "TLS")
        return connection

    def _new_connection(
        self, listener: KafkaListener, principal: Principal, server: ServerName | None = None
    ) -> KafkaConnection:
        connection = KafkaConnection(self._shared, next(self._ids), self._opened, self._ended)
        connection.state.server_name = server
        connection.state.listener, connection.state.principal = listener, principal
        return connection

    def _opened(self, connection: KafkaConnection) -> None:
        of_clients = len(self._connections) - self._forwarded
        if connection.state.forwarded_by is not None:
            self._forwarded += 1
        elif not self._accepting or (
            of_clients >= self._shared.settings.max_connections
            and not self._shared.unauthenticated.displace()
        ):
            connection.close("too_many_connections" if self._accepting else "not_serving")
        else:
            self._check_address(connection)
        self._connections[connection] = asyncio.get_running_loop().create_future()
        if connection.state.forwarded_by is None:
            self._of_address[connection.state.host] += 1
        self._count()

    def _check_address(self, connection: KafkaConnection) -> None:
        """Hangs up if the client's address has too many connections, or if it or all make them too
        fast (KIP-612). That costs less than the pause of Kafka, which keeps the socket.
        """
        quotas, host = self._shared.parts.quotas, connection.state.host
        settings = quotas.settings
        most = settings.connections_of_addresses.get(host, settings.max_connections_per_ip)
        if self._of_address[host] >= most:
            connection.close("too_many_connections_of_address")
        elif self._new.pause_s(_ALL_CLIENTS):
            connection.close("connection_rate_of_agent")
        elif pause_s := quotas.pause_s(QuotaKind.CONNECTION, host, ""):
            self._shared.metrics.quota_throttle_seconds.labels(QuotaKind.CONNECTION).inc(pause_s)
            connection.close("connection_rate")
        else:
            self._new.take(_ALL_CLIENTS, 1)
            quotas.charge(QuotaKind.CONNECTION, host, "", 1)

    def _ended(self, connection: KafkaConnection) -> None:
        self._connections.pop(connection).set_result(None)
        if connection.state.forwarded_by is None:
            host = connection.state.host
            self._of_address[host] -= 1
            if not self._of_address[host]:
                del self._of_address[host]
        self._forwarded -= connection.state.forwarded_by is not None
        self._count()

    def _count(self) -> None:
        metrics = self._shared.metrics
        metrics.connections.set(len(self._connections) - self._forwarded)
        metrics.forwarded_connections.set(self._forwarded)

    def _close_overdue(self, now_s: float) -> None:
        shared = self._shared
        shared.metrics.request_memory.set(shared.memory.used_bytes)
        shared.metrics.bulk_memory.set(shared.bulk_memory.used_bytes)
        shared.metrics.bulk_waiting.set(shared.bulk_memory.waiters)
        for connection in list(self._connections):
            reason = connection.overdue(now_s)
            if reason is not None:
                connection.close(reason)
