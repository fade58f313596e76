"""Accepts TLS connections for one use (Kafka, HTTP, peers), with a bound on handshakes.

Promises:
- At most `tls_handshakes` handshakes are under way, each for at most `tls_handshake_timeout_s`. One more ends
  the oldest of the host that has most, so stalled handshakes keep no other host out, and others of the same
  host only while they take longer than it takes that host to open `tls_handshakes` connections.
- A connection that fails is counted with its reason, and logged, at most some per second
  (`agent/security/line_limit.py`).
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from agent.client_network import network_of
from agent.metrics import Metrics
from agent.security.line_limit import STRANGERS_LINES_OF_HOST_PER_S, STRANGERS_LINES_PER_S, FairLineLimit
from agent.security.listener_settings import ListenerSettings
from agent.security.tls.contexts import KeptContext
from agent.security.tls.failure import HandshakeFailed
from agent.security.tls.transport import TlsTransport, receive_buffer

log = logging.getLogger("tidelog")

Application = Callable[[TlsTransport], asyncio.BaseProtocol]
"""Makes the protocol of a secured connection. Raises HandshakeFailed to refuse it."""
Refused = Callable[[TlsTransport, HandshakeFailed], None]


class TlsAcceptor:
    def __init__(self, use: str, settings: ListenerSettings, metrics: Metrics) -> None:
        """`use` names it in logs and metrics."""
        self._use = use
        self._settings = settings
        self._metrics = metrics
        self._received = receive_buffer()
        self._lines = FairLineLimit(STRANGERS_LINES_PER_S, STRANGERS_LINES_OF_HOST_PER_S, time.monotonic)
        self._under_way: dict[TlsTransport, tuple[str, asyncio.TimerHandle]] = {}
        """Host and timer, oldest first."""
        self._of_network: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def accept(
        self, kept: KeptContext, application: Application, refused: Refused | None = None
    ) -> TlsTransport:
        """Returns the protocol of a connection that was just accepted. `refused` hears of its failure."""
        return TlsTransport(kept.context, _Handshake(self, application, refused), self._received)

    def close(self) -> None:
        """Ends the handshakes that are under way."""
        for connection in list(self._under_way):
            connection.give_up("hung_up", "this agent stops")

    # --- events of handshakes

    def began(self, connection: TlsTransport) -> None:
        host = _host_of(connection)
        if len(self._under_way) >= self._settings.tls_handshakes:
            self._displace_one()
        timer = asyncio.get_running_loop().call_later(
            self._settings.tls_handshake_timeout_s, connection.give_up, "timeout", "it took too long"
        )
        self._under_way[connection] = (host, timer)
        self._of_network[network_of(host)] += 1
        self._count()

    def secured(self, connection: TlsTransport) -> None:
        self._forget(connection)
        self._metrics.tls_handshakes.labels(self._use, "done").inc()

    def failed(self, connection: TlsTransport, failure: HandshakeFailed) -> None:
        host = self._forget(connection)
        self._metrics.tls_handshakes.labels(self._use, failure.reason).inc()
        left_out = self._lines.take(network_of(host))
        if left_out is not None:
            fields = {"use": self._use, "reason": failure.reason, "detail": str(failure), "peer": host}
            log.warning("TLS handshake failed", extra={**fields, "left_out_before": left_out})

    def _displace_one(self) -> None:
        busiest = max(self._of_network, key=self._of_network.__getitem__)
        oldest = next(
            connection for connection, (host, _) in self._under_way.items() if network_of(host) == busiest
        )
        oldest.give_up("displaced", "others came while it waited")

    def _forget(self, connection: TlsTransport) -> str:
        host, timer = self._under_way.pop(connection, ("", None))
        if timer is None:
            return _host_of(connection)
        timer.cancel()
        network = network_of(host)
        self._of_network[network] -= 1
        if not self._of_network[network]:
            del self._of_network[network]
        self._count()
        return host

    def _count(self) -> None:
        self._metrics.tls_handshakes_under_way.labels(self._use).set(len(self._under_way))


class _Handshake:
    """One connection's handshake."""

    __slots__ = ("_acceptor", "_application", "_refused")

    def __init__(self, acceptor: TlsAcceptor, application: Application, refused: Refused | None) -> None:
        self._acceptor = acceptor
        self._application = application
        self._refused = refused

    def began(self, connection: TlsTransport) -> None:
        self._acceptor.began(connection)

    def secured(self, connection: TlsTransport) -> asyncio.BaseProtocol:
        protocol = self._application(connection)
        self._acceptor.secured(connection)
        return protocol

    def failed(self, connection: TlsTransport, failure: HandshakeFailed) -> None:
        self._acceptor.failed(connection, failure)
        if self._refused is not None:
            self._refused(connection, failure)


def _host_of(connection: TlsTransport) -> str:
    peer = connection.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else str(peer)
