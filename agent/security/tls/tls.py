"""The TLS of one agent: its contexts, their acceptors, and the watch over their files.

Raises UnusableFiles when it is made: an agent with a wrong certificate does not start.
"""

import ssl
from collections.abc import Callable
from functools import partial

from agent.metrics import Metrics
from agent.security.listener_settings import ListenerSettings
from agent.security.listeners import KafkaListener
from agent.security.tls.acceptor import TlsAcceptor
from agent.security.tls.contexts import (
    CertificateWatch,
    ClientAuth,
    KeptContext,
    TlsFiles,
    client_context,
    server_context,
)
from agent.security.tls.peers import TlsOfPeers


class Tls:
    def __init__(self, settings: ListenerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._kept: list[KeptContext] = []
        self._of_kafka: dict[ClientAuth, KeptContext] = {}
        self.watch = CertificateWatch(self._kept, settings.tls_reload_s)

    def acceptor(self, use: str) -> TlsAcceptor:
        return TlsAcceptor(use, self._settings, self._metrics)

    def of_http(self) -> KeptContext | None:
        """Returns None if the HTTP side speaks no TLS. Raises UnusableFiles."""
        if not self._settings.http_tls:
            return None
        make = partial(
            server_context, client_auth=ClientAuth.NONE, least_version=self._settings.tls_least_version
        )
        return self._keep("http", self._settings.http_files(), make)

    def of_peers(self) -> TlsOfPeers | None:
        """Returns None if agents speak no TLS with each other. Raises UnusableFiles."""
        mode, files = self._settings.peer_tls, self._settings.peer_files
        if mode == "off":
            return None
        least_version = self._settings.tls_least_version
        accepting = partial(server_context, client_auth=ClientAuth.REQUIRED, least_version=least_version)
        opening = partial(client_context, least_version=least_version)
        return TlsOfPeers(
            self.acceptor("peer"),
            self._keep("peer", files(), accepting),
            None if mode == "accepted" else self._keep("peer", files(), opening),
            is_required=mode == "required",
        )

    def of_listener(self, listener: KafkaListener) -> KeptContext | None:
        """Returns None if the listener speaks no TLS. Raises UnusableFiles."""
        if not listener.security_protocol.is_encrypted:
            return None
        kept = self._of_kafka.get(listener.client_auth)
        if kept is None:
            make = partial(
                server_context,
                client_auth=listener.client_auth,
                least_version=self._settings.tls_least_version,
            )
            kept = self._keep("kafka", self._settings.kafka_files(), make)
            self._of_kafka[listener.client_auth] = kept
        return kept

    def _keep(self, use: str, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext]) -> KeptContext:
        kept = KeptContext(use, files, make, self._metrics)
        self._kept.append(kept)
        return kept
