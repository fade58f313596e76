"""A connection to one agent for requests that librdkafka does not have, with librdkafka's options for TLS and
logins (`tidelog/kafka_client.py`).

Promises:
- What the options ask for is done, or the call fails: an option of TLS or SASL that is not known here is an
  error, so a connection is never less protected than the options say.
- With SCRAM, the agent proves that it knows the password, too.
- Every wait is bounded by the caller's time. No error has a secret.
"""

import base64
import hmac
import itertools
import secrets
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from agent.kafka.forwarding.forwarding import BadResponse, decode_response, encode_request
from agent.security.sasl import scram
from sequencer.security.credentials import ScramMechanism
from tidelog.errors import UserError

Address = tuple[str, int]

_CLIENT_ID: Final = "tidelog-cli"
_LARGEST_ANSWER_BYTES: Final = 100 << 20
_KNOWN: Final = frozenset(
    {
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
    }
)
_correlation_ids = itertools.count(1)


class AgentConnection:
    """Made by `connected`."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s

    def ask(self, payload: Any) -> Any:
        """Returns the answer. Raises OSError, BadResponse."""
        key, version = payload.__api_key__, payload.__version__
        body = encode_request(key, version, next(_correlation_ids), _CLIENT_ID, payload)
        self._connection.settimeout(self._left_s())
        self._connection.sendall(len(body).to_bytes(4, "big") + body)
        size = int.from_bytes(self._read(4), "big")
        if size > _LARGEST_ANSWER_BYTES:
            raise BadResponse("the answer is too long")
        return decode_response(key, version, self._read(size))

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._connection.settimeout(self._left_s())
            part = self._connection.recv(min(size - len(found), 1 << 16))
            if not part:
                raise ConnectionError("the agent hung up")
            found += part
        return bytes(found)

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        return left_s


@contextmanager
def connected(address: Address, options: Mapping[str, str], timeout_s: float) -> Iterator[AgentConnection]:
    """A connection that has logged in, if the options say so. `timeout_s`: for all of it. Raises UserError,
    OSError, BadResponse.
    """
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol not in ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"):
        raise UserError(f"security.protocol is {protocol}, which is none of Kafka's.")
    strange = sorted(name for name in options if name.startswith(("ssl.", "sasl.")) and name not in _KNOWN)
    if strange and protocol != "plaintext":
        raise UserError(
            f"Streams groups cannot be asked for with the options {', '.join(strange)}.",
            f"Known are {', '.join(sorted(_KNOWN))}.",
        )
    deadline_s = time.monotonic() + timeout_s
    with socket.create_connection(address, timeout_s) as plain:
        secured: socket.socket = plain
        if protocol.endswith("ssl"):
            secured = _context(options).wrap_socket(plain, server_hostname=address[0])
        with secured:
            connection = AgentConnection(secured, deadline_s)
            if protocol.startswith("sasl"):
                _log_in(connection, options)
            yield connection


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
        certificate = options.get("ssl.certificate.location")
        if certificate is not None:
            # Without a password OpenSSL would ask the terminal.
            password = options.get("ssl.key.password", "")
            context.load_cert_chain(certificate, options.get("ssl.key.location"), password)
    except OSError as error:
        raise UserError(f"The files of the options for TLS cannot be used: {error}.") from None
    if options.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _log_in(connection: AgentConnection, options: Mapping[str, str]) -> None:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms", "")
    user, password = options.get("sasl.username", ""), options.get("sasl.password", "")
    if mechanism != "PLAIN" and mechanism not in set(ScramMechanism):
        raise UserError(
            f"Streams groups cannot be asked for with sasl.mechanism {mechanism or '(none)'}.",
            "Use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
        )
    shaken = connection.ask(SaslHandshakeRequest(mechanism=mechanism))
    if shaken.error_code is not ErrorCode.none:
        raise UserError(f"The agent offers {', '.join(shaken.mechanisms)}, and not {mechanism}.")
    if mechanism == "PLAIN":
        _say(connection, f"\0{user}\0{password}".encode())
        return
    _by_scram(connection, ScramMechanism(mechanism), user, password)


def _by_scram(connection: AgentConnection, mechanism: ScramMechanism, user: str, password: str) -> None:
    """RFC 5802, as a client."""
    hashed = "sha256" if mechanism is ScramMechanism.SHA_256 else "sha512"
    nonce = secrets.token_urlsafe(24)
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = _say(connection, f"n,,{bare}".encode()).decode()
    fields = dict(part.partition("=")[::2] for part in challenge.split(","))
    if not fields.get("r", "").startswith(nonce):
        raise BadResponse("the agent's nonce is not this client's")
    salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
    if not scram.LEAST_ITERATIONS <= iterations <= scram.MOST_ITERATIONS:
        raise BadResponse("the agent asks for too few or too many iterations")
    salted = scram.salted_password(mechanism, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hashed)
    keys = scram.keys_of(mechanism, salted, salt, iterations)
    unsigned = f"c=biws,r={fields['r']}"
    signed = f"{bare},{challenge},{unsigned}".encode()
    signature = hmac.digest(keys.stored_key, signed, hashed)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    answer = _say(connection, f"{unsigned},p={proof}".encode())
    expected = b"v=" + base64.b64encode(hmac.digest(keys.server_key, signed, hashed))
    if not hmac.compare_digest(answer, expected):
        raise BadResponse("the agent does not know the password")


def _say(connection: AgentConnection, message: bytes) -> bytes:
    answer = connection.ask(SaslAuthenticateRequest(auth_bytes=message))
    if answer.error_code is not ErrorCode.none:
        raise UserError("The agent refuses the login.", "Check sasl.username and sasl.password.")
    return bytes(answer.auth_bytes)
