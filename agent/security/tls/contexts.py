"""Certificates and keys as PEM files, and the contexts of OpenSSL that are made of them.

Promises:
- TLS 1.2 is the least, or 1.3 if a setting says so. No renegotiation, no compression.
- Files that changed take effect for the next handshake. Open connections keep theirs.
- Files that cannot be used change nothing: the last good ones stay in use, the log and a metric say why.
- A key with a password never asks a terminal.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from pydantic import SecretStr

from agent.security.tls.x509 import BadCertificate, certificate_of_pem, expires_at_s
from storage.threads import Threads

log = logging.getLogger("tidelog")


class ClientAuth(StrEnum):
    """Kafka's `ssl.client.auth`."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_LEAST: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


ASKED_NAME: Final = "asked_name"
"""The attribute of a TLS connection that has the server's name, as the client asked for it."""


class UnusableFiles(ValueError):
    """Certificate, key or CA cannot be read, or do not belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. `certificate` holds the certificate and the chain behind it. `ca` holds the certificates of
    those who sign the other side's.
    """

    certificate: str
    key: str
    key_password: SecretStr | None = None
    ca: str | None = None

    def contents(self) -> tuple[bytes, ...]:
        """Raises UnusableFiles."""
        return tuple(_read(path) for path in (self.certificate, self.key, self.ca) if path is not None)


def server_context(files: TlsFiles, client_auth: ClientAuth, least_version: str) -> ssl.SSLContext:
    """Raises UnusableFiles."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _VERIFY[client_auth]
    context.sni_callback = _note_name
    return _filled(context, files, least_version)


def _note_name(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
    """Keeps the name by which the client knows this server (SNI)."""
    setattr(connection, ASKED_NAME, name)


def client_context(files: TlsFiles, least_version: str) -> ssl.SSLContext:
    """Makes the context of an agent that connects to another one. It trusts the CA alone, whatever name the
    other side's certificate has: agents are found by addresses that change. Raises UnusableFiles.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _filled(context, files, least_version)


def _filled(context: ssl.SSLContext, files: TlsFiles, least_version: str) -> ssl.SSLContext:
    context.minimum_version = _LEAST[least_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    password = "" if files.key_password is None else files.key_password.get_secret_value()
    try:
        context.load_cert_chain(files.certificate, files.key, lambda: password)
    except (OSError, ValueError) as error:
        raise UnusableFiles(f"{files.certificate} and {files.key}: {_why(files, error)}") from None
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            raise UnusableFiles(f"{files.ca}: {_said(error)}") from None
    return context


class TlsMetrics(Protocol):
    """What the metrics of an agent take of TLS (agent/metrics.py)."""

    def certificate_loaded(self, use: str, expires_at_s: float) -> None: ...

    def certificate_refused(self, use: str) -> None: ...


class KeptContext:
    """The context of certificate files as they were when they were last good. Raises UnusableFiles when it is
    made.
    """

    def __init__(
        self, use: str, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], metrics: TlsMetrics
    ) -> None:
        """`use` names it in logs and metrics."""
        self._use = use
        self._files = files
        self._make = make
        self._metrics = metrics
        self._seen = b""
        self.context = self._load()

    def look(self) -> None:
        """Loads the files again if they changed. Reads files, so it may block."""
        before = self._seen
        try:
            if _digest(self._files.contents()) == before:
                return
            self.context = self._load()
        except UnusableFiles as unusable:
            self._metrics.certificate_refused(self._use)
            log.error(
                "certificate files changed and cannot be used, the last good ones stay in use",
                extra={"use": self._use, "reason": str(unusable)},
            )
            return
        log.info("certificate files changed, new connections get them", extra={"use": self._use})

    def _load(self) -> ssl.SSLContext:
        contents = self._files.contents()
        context = self._make(self._files)
        try:
            expires_s = expires_at_s(certificate_of_pem(contents[0]))
        except BadCertificate as bad:
            raise UnusableFiles(f"{self._files.certificate}: {bad}") from None
        # What changes between the two reads differs from what was seen, and is loaded at the next look.
        self._seen = _digest(contents)
        self._metrics.certificate_loaded(self._use, expires_s)
        return context


class CertificateWatch:
    """Looks at the files of all contexts, again and again."""

    def __init__(self, kept: Sequence[KeptContext], interval_s: float) -> None:
        self._kept = kept
        self._interval_s = interval_s

    async def run(self) -> None:
        """Looks until cancelled."""
        threads = Threads("certificates", 1)
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                for kept in self._kept:
                    await threads.run(kept.look)
        finally:
            threads.close()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnusableFiles(f"{path}: {_said(error)}") from None


def _digest(contents: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"\0".join(hashlib.sha256(content).digest() for content in contents)).digest()


def _why(files: TlsFiles, error: OSError | ValueError) -> str:
    """Says more than OpenSSL, which reports a wrong password and a file without a key alike."""
    if isinstance(error, ssl.SSLError) and not error.reason:
        if b"ENCRYPTED" in _read(files.key):
            return "the key's password (TIDELOG_TLS_KEY_PASSWORD) is wrong, or not set"
        return "one of them is no PEM file of its kind"
    return _said(error)


def _said(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
