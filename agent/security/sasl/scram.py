"""SCRAM (RFC 5802, RFC 7677, KIP-84): the server's side of an exchange of four messages.

Promises:
- The password never reaches the server. A client proves it with a signature over both nonces, so a recorded
  exchange is of no use later.
- A user that does not exist gets a salt and a number of iterations that are always the same (`decoy`), and
  fails where a wrong password fails, with the same work.
- Any bytes are answered or raise SaslRefused.
- An exchange keeps few KiB, whatever the client sends: a message has at most 4,096 bytes, and a name that no
  user can have is refused.

As in Kafka's clients, names and passwords are taken as they are: SASLprep is not applied. Channel binding is
not offered. Refused: `tokenauth` (KIP-48) and mandatory extensions.

Pure: the caller finds the credential and makes the nonce.
"""

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from agent.security.sasl.steps import SaslRefused
from sequencer.security.credentials import ScramKeys, ScramMechanism, can_be_user

LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384
"""Kafka's bounds (ScramMechanism.MIN_ITERATIONS, ScramControlManager.MAX_ITERATIONS)."""
NONCE_BYTES: Final = 24
SALT_CHARACTERS: Final = 26
"""Salts have the form of those that Kafka's tools make: letters and digits. A decoy must look like them."""
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
_LONGEST_MESSAGE: Final = 4_096
"""In bytes. A name of 255 bytes takes 765 at most, where all of them are escaped."""
_LONGEST_NONCE: Final = 256
"""In characters. Clients use 20 to 50."""
_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>(?P<binding>n|y|p=[A-Za-z0-9.\-]+),(?:a=(?P<authzid>[^,]*))?,)"
    r"(?P<bare>n=(?P<name>[^,]*),r=(?P<nonce>[^,]+)(?P<extensions>(?:,[A-Za-z]+=[^,]*)*))",
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unsigned>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[^,]+)(?:,[A-Za-z]=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_ESCAPE: Final = re.compile(r"=(2C|3D)?")


def digest_bytes(mechanism: ScramMechanism) -> int:
    return hashlib.new(_HASHES[mechanism]).digest_size


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes 1 to 15 ms of CPU. Other threads may run meanwhile."""
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)


def keys_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """Returns what the server keeps of a salted password."""
    client_key = _sign(mechanism, salted, b"Client Key")
    return ScramKeys(
        salt=salt,
        iterations=iterations,
        stored_key=_hash(mechanism, client_key),
        server_key=_sign(mechanism, salted, b"Server Key"),
    )


def proves(mechanism: ScramMechanism, password: bytes, keys: ScramKeys) -> bool:
    """True if it is the password, in UTF-8. Takes as long as `salted_password`."""
    salted = salted_password(mechanism, password.decode(), keys.salt, keys.iterations)
    found = keys_of(mechanism, salted, keys.salt, keys.iterations)
    return hmac.compare_digest(found.stored_key, keys.stored_key)


def a_salt(randomness: bytes) -> bytes:
    """Returns a salt of 26 letters and digits from at least 32 random bytes."""
    number = int.from_bytes(randomness, "big")
    digits = []
    for _ in range(SALT_CHARACTERS):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits).encode()


def decoy(mechanism: ScramMechanism, user: str, decoy_key: bytes, iterations: int) -> ScramKeys:
    """Returns keys for a user that does not exist: no password fits them."""
    seed = hmac.digest(decoy_key, f"{mechanism}\0{user}".encode(errors="surrogatepass"), "sha512")
    size = digest_bytes(mechanism)
    return ScramKeys(
        salt=a_salt(seed),
        iterations=iterations,
        stored_key=hmac.digest(seed, b"stored key", "sha512")[:size],
        server_key=hmac.digest(seed, b"server key", "sha512")[:size],
    )


class ScramExchange:
    """One login. Call `first`, `challenge` and `final` once each, in this order."""

    def __init__(self, mechanism: ScramMechanism, nonce: bytes) -> None:
        """`nonce`: at least 24 random bytes, never used before."""
        self._mechanism = mechanism
        self._own_nonce = base64.urlsafe_b64encode(nonce).decode().rstrip("=")
        # Bytes, because one rare character makes each character of a text take four.
        self._header = self._client_first = self._server_first = b""
        self._nonce = ""
        self._keys: ScramKeys | None = None
        self.user: str | None = None

    def first(self, message: bytes) -> str:
        """Takes the client's first message. Returns the user that it names. Raises SaslRefused."""
        found = _CLIENT_FIRST.fullmatch(_text(message))
        if found is None:
            raise SaslRefused("the client's first message is not SCRAM's")
        user = _name(found["name"])
        if not can_be_user(user):
            raise SaslRefused("no user can have this name")
        self.user = user
        if found["binding"].startswith("p"):
            raise SaslRefused("the client asks for channel binding, which is not offered", user)
        if not _PRINTABLE.fullmatch(found["nonce"]):
            raise SaslRefused("the client's nonce is not printable", user)
        if len(found["nonce"]) > _LONGEST_NONCE:
            raise SaslRefused(f"the client's nonce has more than {_LONGEST_NONCE} characters", user)
        if any(extension.partition("=")[0] == "tokenauth" for extension in found["extensions"].split(",")):
            raise SaslRefused("the client offers a delegation token: tokens (KIP-48) are not served", user)
        if found["authzid"] and _name(found["authzid"]) != user:
            raise SaslRefused("the client asks to act for another user", user)
        self._header, self._client_first = found["header"].encode(), found["bare"].encode()
        self._nonce = found["nonce"] + self._own_nonce
        return user

    def challenge(self, keys: ScramKeys) -> bytes:
        """Returns the server's first message."""
        assert self._keys is None, "the client was not challenged yet"
        self._keys = keys
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}".encode()
        return self._server_first

    def final(self, message: bytes) -> bytes:
        """Takes the client's proof. Returns the server's. Raises SaslRefused."""
        keys = self._keys
        assert keys is not None, "the client was challenged"
        found = _CLIENT_FINAL.fullmatch(_text(message))
        if found is None:
            raise SaslRefused("the client's final message is not SCRAM's", self.user)
        if _decoded(found["binding"]) != self._header:
            raise SaslRefused("the client repeats another header than it began with", self.user)
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise SaslRefused("the client's nonce is of another exchange", self.user)
        signed = b",".join((self._client_first, self._server_first, found["unsigned"].encode()))
        proof = _decoded(found["proof"])
        signature = _sign(self._mechanism, keys.stored_key, signed)
        if len(proof) != len(signature):
            raise SaslRefused("the client's proof has a wrong length", self.user)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(_hash(self._mechanism, client_key), keys.stored_key):
            raise SaslRefused("the password is wrong, or there is no such user", self.user)
        verifier = base64.b64encode(_sign(self._mechanism, keys.server_key, signed))
        return b"v=" + verifier


def _sign(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, _HASHES[mechanism])


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(_HASHES[mechanism], data).digest()


def _text(message: bytes) -> str:
    if len(message) > _LONGEST_MESSAGE:
        raise SaslRefused(f"the client's message has more than {_LONGEST_MESSAGE} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise SaslRefused("the client's message is not UTF-8") from error


def _name(escaped: str) -> str:
    """Reads a `saslname`: `=2C` is a comma, `=3D` an equals sign, and no other `=` occurs."""
    if not escaped or "\0" in escaped:
        raise SaslRefused("the client names no user")
    if any(not found[1] for found in _ESCAPE.finditer(escaped)):
        raise SaslRefused("the client's user name has an = that escapes nothing")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if base64.b64encode(found).decode() != text:
        raise SaslRefused("the client's message is not base64")
    return found
