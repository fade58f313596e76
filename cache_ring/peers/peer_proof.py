"""Two agents prove to each other that they belong to one cluster. Pure: bytes in, bytes out.

The proof opens each connection to a peer port, before any other protocol. Both sides know the cluster's
secrets (`sequencer/cluster/agents.py`) and prove it with an HMAC-SHA256 over what both have sent. No secret
leaves an agent.

| message | direction | bytes |
|---|---|---|
| hello | to the accepting side | `PREFACE`, a nonce (32), the ids (8 each) of one or two secrets |
| challenge | from the accepting side | the id of the newest common secret (8), a nonce (32), a proof (32) |
| proof | to the accepting side | a proof (32) |

The second id of a hello is zero if its side knows one secret.

Promises:
- A side that knows none of the secrets fails, whatever it sends or replays: each nonce counts once, and the
  proofs of the two sides differ.
- Proofs are compared in constant time.
- All messages have a fixed size, 168 bytes together.

The rest of the connection is neither signed nor encrypted. Anyone who can change packets between agents can
take over an open connection.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from cache_ring.peers.page_protocol import ProtocolViolation
from sequencer.cluster.agents import PeerSecret

PREFACE: Final = b"TIDELOG PEERS 1\n"
NONCE_BYTES: Final = 32
_ID_BYTES: Final = 8
_PROOF_BYTES: Final = 32
_IDS: Final = 2
HELLO_BYTES: Final = len(PREFACE) + NONCE_BYTES + _IDS * _ID_BYTES
CHALLENGE_BYTES: Final = _ID_BYTES + NONCE_BYTES + _PROOF_BYTES
PROOF_BYTES: Final = _PROOF_BYTES
_NO_ID: Final = bytes(_ID_BYTES)


class NotAPeer(ProtocolViolation):
    """The other side does not know the cluster's secret."""


def may_be_hello(begun: bytes | bytearray) -> bool:
    """True if a connection that begins with these bytes may be a peer's."""
    return PREFACE.startswith(bytes(begun[: len(PREFACE)]))


class Initiator:
    """The side that connects. `nonce` must be random, and used once."""

    def __init__(self, secrets: Sequence[PeerSecret], nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES, "a nonce has a fixed size"
        self._secrets = {_id_of(secret): secret for secret in secrets[:_IDS]}
        self.hello = PREFACE + nonce + b"".join(self._secrets).ljust(_IDS * _ID_BYTES, b"\0")

    def proof(self, challenge: bytes | bytearray) -> bytes:
        """Returns the response to a challenge. Raises NotAPeer if the challenge does not prove the other
        side."""
        given = bytes(challenge)
        secret = self._secrets.get(given[:_ID_BYTES])
        if secret is None:
            raise NotAPeer("it names a secret that this agent does not know")
        shared = self.hello + given[:-_PROOF_BYTES]
        if not hmac.compare_digest(given[-_PROOF_BYTES:], _proof(secret, b"asked", shared)):
            raise NotAPeer("it does not know the cluster's secret")
        return _proof(secret, b"asker", shared)


class Responder:
    """The side that accepts. `nonce` must be random, and used once."""

    def __init__(self, secrets: Sequence[PeerSecret], nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES, "a nonce has a fixed size"
        self._secrets = secrets
        self._nonce = nonce
        self._expected = b""

    def challenge(self, hello: bytes | bytearray) -> bytes:
        """Returns the response to a hello. Raises NotAPeer, before any cryptography, if the hello names no
        known secret."""
        given = bytes(hello)
        if not may_be_hello(given):
            raise NotAPeer("it does not begin as a peer does")
        ids = given[len(PREFACE) + NONCE_BYTES :]
        known = {ids[start : start + _ID_BYTES] for start in range(0, len(ids), _ID_BYTES)} - {_NO_ID}
        secret = next((secret for secret in self._secrets if _id_of(secret) in known), None)
        if secret is None:
            raise NotAPeer("it knows no secret that this agent knows")
        opening = _id_of(secret) + self._nonce
        shared = given + opening
        self._expected = _proof(secret, b"asker", shared)
        return opening + _proof(secret, b"asked", shared)

    def check(self, proof: bytes | bytearray) -> None:
        """Raises NotAPeer if the other side did not prove itself."""
        assert self._expected, "a proof answers a challenge"
        if not hmac.compare_digest(bytes(proof), self._expected):
            raise NotAPeer("it does not know the cluster's secret")


def _id_of(secret: PeerSecret) -> bytes:
    """Identifies a secret without revealing it."""
    return hashlib.sha256(b"tidelog peer secret id" + secret.value).digest()[:_ID_BYTES]


def _proof(secret: PeerSecret, side: bytes, shared: bytes) -> bytes:
    return hmac.digest(secret.value, side + shared, "sha256")
