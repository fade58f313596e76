"""The settings of listeners and of TLS: options of `tidelog agent` and variables `TIDELOG_<NAME>`. Each text
names Kafka's config.

Promise: every bound of TLS is named here.
"""

from dataclasses import replace
from typing import Literal, Protocol, Self

from pydantic import Field, SecretStr, model_validator

from agent.security.listeners import (
    KafkaListener,
    SecurityProtocol,
    duplicate_binds,
    named_listeners,
    of_listener,
    parse_addresses,
    parse_map,
)
from agent.security.tls.contexts import ClientAuth, TlsFiles
from agent.security.tls.principal_mapping import PrincipalMapping
from storage.settings import Settings


class SimpleListener(Protocol):
    """The settings of an agent with one listener (`AgentSettings`)."""

    @property
    def kafka_host(self) -> str: ...
    @property
    def kafka_port(self) -> int: ...
    @property
    def advertised_host(self) -> str | None: ...
    @property
    def advertised_port(self) -> int | None: ...


class ListenerSettings(Settings):
    listeners: str = ""
    """Several Kafka listeners, `OUTSIDE://0.0.0.0:9094,INSIDE://0.0.0.0:9092` (Kafka's listeners). Empty: one
    listener, at `kafka_host` and `kafka_port`.
    """
    advertised_listeners: str = ""
    """The addresses that each listener advertises to its clients, written in the same way (Kafka's
    advertised.listeners). A listener that is not named advertises the bound address. The first listener's
    address is the agent's identity.
    """
    listener_security_protocol_map: str = ""
    """The security protocol of each listener, `OUTSIDE:SSL,INSIDE:PLAINTEXT` (Kafka's
    listener.security.protocol.map). A listener that is not named has the protocol of its name.
    """
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The security protocol of the one listener, if `listeners` is empty."""
    insecure: bool = False
    """Whether to start without a warning although clients need not prove who they are."""

    tls_certificate_file: str | None = None
    """The PEM file of the agent's certificate, with the chain behind it (Kafka's ssl.keystore.location)."""
    tls_key_file: str | None = None
    """The PEM file of its private key."""
    tls_key_password: SecretStr | None = None
    """The password of the private key, if it has one (Kafka's ssl.key.password)."""
    tls_ca_file: str | None = None
    """The PEM file of the CAs that sign the certificates of clients (Kafka's ssl.truststore.location)."""
    tls_client_auth: str = "none"
    """Whether clients show a certificate: none, requested or required, for all listeners or as
    `OUTSIDE:required,INSIDE:none` (Kafka's ssl.client.auth).
    """
    tls_principal_mapping_rules: str = "DEFAULT"
    """How the subject of a client's certificate becomes its name (Kafka's ssl.principal.mapping.rules)."""
    tls_least_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken (Kafka's ssl.enabled.protocols)."""
    tls_reload_s: float = Field(default=10.0, gt=0)
    """The pause between two looks at the certificate files. New files count for new connections."""
    tls_handshake_timeout_s: float = Field(default=10.0, gt=0)
    """How long a handshake may take."""
    tls_handshakes: int = Field(default=256, ge=1)
    """Handshakes at once, per use of TLS: Kafka, HTTP, peers. One more ends the oldest of the host that has
    most.
    """

    http_tls: bool = False
    """Whether the HTTP side speaks TLS."""
    http_tls_certificate_file: str | None = None
    """The certificate of the HTTP side. By default `tls_certificate_file`."""
    http_tls_key_file: str | None = None
    """Its private key. By default `tls_key_file`."""

    peer_tls: Literal["off", "accepted", "preferred", "required"] = "off"
    """TLS between agents. off: none. accepted: others may use it. preferred: this agent uses it too.
    required: others must. A running cluster goes through them one by one.
    """
    peer_tls_certificate_file: str | None = None
    """The certificate that an agent shows to others. By default `tls_certificate_file`."""
    peer_tls_key_file: str | None = None
    """Its private key. By default `tls_key_file`."""
    peer_tls_ca_file: str | None = None
    """The CAs that sign the certificates of agents. By default `tls_ca_file`."""

    def kafka_listeners(self, agent: SimpleListener) -> tuple[KafkaListener, ...]:
        """Returns the listeners, at least one."""
        if self.listeners.strip():
            return self._described_listeners()
        [one] = self._described_listeners()
        return (
            replace(
                one,
                host=agent.kafka_host,
                port=agent.kafka_port,
                advertised_host=agent.advertised_host,
                advertised_port=agent.advertised_port,
            ),
        )

    def _described_listeners(self) -> tuple[KafkaListener, ...]:
        """Returns the listeners, without the address if there is one that these settings do not name. Raises
        ValueError.
        """
        if self.listeners.strip():
            return named_listeners(
                parse_addresses(self.listeners),
                parse_addresses(self.advertised_listeners),
                parse_map(self.listener_security_protocol_map),
                self.tls_client_auth,
            )
        protocol = SecurityProtocol(self.security_protocol)
        client_auth = ClientAuth(of_listener(self.tls_client_auth, protocol, ClientAuth.NONE))
        return (KafkaListener(name=protocol, security_protocol=protocol, client_auth=client_auth),)

    def principal_mapping(self) -> PrincipalMapping:
        return PrincipalMapping.parse(self.tls_principal_mapping_rules)

    def kafka_files(self) -> TlsFiles:
        return self._files(self.tls_certificate_file, self.tls_key_file, self.tls_ca_file)

    def http_files(self) -> TlsFiles:
        return self._files(
            self.http_tls_certificate_file or self.tls_certificate_file,
            self.http_tls_key_file or self.tls_key_file,
            None,
        )

    def peer_files(self) -> TlsFiles:
        return self._files(
            self.peer_tls_certificate_file or self.tls_certificate_file,
            self.peer_tls_key_file or self.tls_key_file,
            self.peer_tls_ca_file or self.tls_ca_file,
        )

    def _files(self, certificate: str | None, key: str | None, ca: str | None) -> TlsFiles:
        assert certificate is not None, "the validator has checked it"
        assert key is not None, "the validator has checked it"
        return TlsFiles(certificate=certificate, key=key, key_password=self.tls_key_password, ca=ca)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        listeners = self._described_listeners()
        if not self.listeners.strip() and (self.advertised_listeners or self.listener_security_protocol_map):
            raise ValueError(
                "TIDELOG_ADVERTISED_LISTENERS and TIDELOG_LISTENER_SECURITY_PROTOCOL_MAP need "
                "TIDELOG_LISTENERS; one listener is set by TIDELOG_KAFKA_HOST, TIDELOG_ADVERTISED_HOST and "
                "TIDELOG_SECURITY_PROTOCOL"
            )
        if (twice := duplicate_binds(listeners)) is not None:
            raise ValueError(f"TIDELOG_LISTENERS: {twice} binds the address of another listener")
        encrypted = [listener for listener in listeners if listener.security_protocol.is_encrypted]
        if encrypted and not (self.tls_certificate_file and self.tls_key_file):
            raise ValueError(
                f"the listener {encrypted[0].name} needs TIDELOG_TLS_CERTIFICATE_FILE and "
                "TIDELOG_TLS_KEY_FILE"
            )
        if any(one.client_auth is not ClientAuth.NONE for one in encrypted) and not self.tls_ca_file:
            raise ValueError("TIDELOG_TLS_CLIENT_AUTH needs TIDELOG_TLS_CA_FILE: who signs clients?")
        if bool(self.http_tls_certificate_file) != bool(self.http_tls_key_file):
            raise ValueError(
                "TIDELOG_HTTP_TLS_CERTIFICATE_FILE and TIDELOG_HTTP_TLS_KEY_FILE are given together"
            )
        if bool(self.peer_tls_certificate_file) != bool(self.peer_tls_key_file):
            raise ValueError(
                "TIDELOG_PEER_TLS_CERTIFICATE_FILE and TIDELOG_PEER_TLS_KEY_FILE are given together"
            )
        if self.http_tls and not (self.http_tls_certificate_file or self.tls_certificate_file):
            raise ValueError("TIDELOG_HTTP_TLS needs TIDELOG_TLS_CERTIFICATE_FILE and TIDELOG_TLS_KEY_FILE")
        if self.peer_tls != "off":
            if not (self.peer_tls_certificate_file or self.tls_certificate_file):
                raise ValueError(
                    "TIDELOG_PEER_TLS needs TIDELOG_PEER_TLS_CERTIFICATE_FILE and "
                    "TIDELOG_PEER_TLS_KEY_FILE, or TIDELOG_TLS_CERTIFICATE_FILE and TIDELOG_TLS_KEY_FILE"
                )
            if not (self.peer_tls_ca_file or self.tls_ca_file):
                raise ValueError("TIDELOG_PEER_TLS needs TIDELOG_PEER_TLS_CA_FILE or TIDELOG_TLS_CA_FILE")
        self.principal_mapping()
        return self
