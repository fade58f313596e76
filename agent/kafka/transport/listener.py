"""The Kafka listener: accepts connections, owns their tasks, closes overdue ones, and drains before the end.

Promises:
- There are at most `max_connections` of clients, and `max_forwarded_connections` that other agents open for
  theirs. Where clients must authenticate, a new one takes the place of one that has not.
- No request outlives `run`.
- After `drain` no connection is accepted, and each open one closes once its requests are answered.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Set
from itertools import count

from agent.kafka.context import ConnectionState
from agent.kafka.forwarding.forward_protocol import ACCEPTED, HELLO_LENGTH_BYTES, decode_hello
from agent.kafka.transport.connection import KafkaConnection, Shared
from sequencer.security.credentials import CredentialKey

log = logging.getLogger("tidelog")

_SWEEP_INTERVAL_S = 1.0


def bound_socket(host: str, port: int) -> socket.socket:
    """Binds a socket without listening, so that its port is known before any client can connect. Raises
    OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


class Listener:
    """Serves with `run`. End with `drain`, then cancel `run`."""

    def __init__(self, shared: Shared, bound: socket.socket, inside: socket.socket | None = None) -> None:
        """`inside` is for clients inside the agents' network, which get other addresses (routing.py)."""
        self._shared = shared
        self._bound = bound
        self._inside = inside
        self._ids = count(1)
        self._connections: dict[KafkaConnection, asyncio.Future[None]] = {}
        """The open connections in the order in which they came, and a callback for each once it has ended."""
        self._forwarded = 0
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
            await self._serve(self._new_connection, self._bound)
            if self._inside is not None:
                await self._serve(self._new_inside_connection, self._inside)
            self.listening.set()
            while True:
                await asyncio.sleep(_SWEEP_INTERVAL_S)
                self._close_overdue(loop.time())
        finally:
            self._close_servers()
            await asyncio.gather(*(connection.abandon() for connection in self._connections))

    async def drain(self) -> None:
        """Stops accepting. Returns when everything in flight is answered and every connection closed."""
        self._accepting = False
        self._close_servers()
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

    async def _serve(self, new_connection: Callable[[], KafkaConnection], bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_server(new_connection, sock=bound, backlog=1024, start_serving=False)
        )
        await self._servers[-1].start_serving()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()

    def _new_connection(self) -> KafkaConnection:
        return KafkaConnection(self._shared, next(self._ids), self._opened, self._ended)

    def _new_inside_connection(self) -> KafkaConnection:
        connection = self._new_connection()
        connection.state.is_inside = True
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
        self._connections[connection] = asyncio.get_running_loop().create_future()
        self._count()

    def _ended(self, connection: KafkaConnection) -> None:
        self._connections.pop(connection).set_result(None)
        self._forwarded -= connection.state.forwarded_by is not None
        self._count()

    def _count(self) -> None:
        metrics = self._shared.metrics
        metrics.connections.set(len(self._connections) - self._forwarded)
        metrics.forwarded_connections.set(self._forwarded)

    def _close_overdue(self, now_s: float) -> None:
        self._shared.metrics.request_memory.set(self._shared.memory.used_bytes)
        for connection in list(self._connections):
            reason = connection.overdue(now_s)
            if reason is not None:
                connection.close(reason)
