"""The transit engine of HashiCorp Vault: encrypts and decrypts small secrets with a key that Vault keeps.

Promises:
- Each call ends within `encryption_timeout_s`, as TransitFailed if it fails. Its text says what to do.
- Token and CA are read from their files for each call, so Vault Agent may renew them. The token goes to the
  address in the settings only, not where a redirect points, and in the clear to no proxy. It is in no error
  and no log line.
- An answer of more than ANSWER_BYTES, or one that is not as expected, is TransitFailed.
"""

import asyncio
import base64
import binascii
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from storage.encryption.settings import EncryptionSettings, is_vault_path
from storage.threads import Threads

ANSWER_BYTES: Final = 1 << 16
_FILE_BYTES: Final = 1 << 20
_OWN_SHARE: Final = 0.9
"""Of `encryption_timeout_s`. The caller has the same bound, and its error would not name Vault."""
_SAID_LENGTH: Final = 300
_TOKEN: Final = re.compile(r"[!-z|~]{1,16384}")
"""A token in JSON, as Vault Agent writes it with response wrapping, has braces."""
_CIPHERTEXT: Final = re.compile(r"vault:v([1-9][0-9]{0,8}):[0-9A-Za-z+/=]+")
_TOKEN_FILE: Final = "TIDELOG_ENCRYPTION_VAULT_TOKEN_FILE"
_CA_FILE: Final = "TIDELOG_ENCRYPTION_VAULT_CA_FILE"
_ADDRESS: Final = "TIDELOG_ENCRYPTION_VAULT_ADDRESS"


class TransitFailed(Exception):
    """Vault did not encrypt or decrypt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitKey:
    mount: str
    name: str

    def __str__(self) -> str:
        return f"{self.mount}/{self.name}"

    def path(self, action: str) -> str:
        """Returns the path of the API below /v1/. Nothing in a name leads elsewhere."""
        parts = [*self.mount.split("/"), action, self.name]
        if not all(map(is_vault_path, (self.mount, self.name))) or "/" in self.name:
            raise TransitFailed(f"{str(self)!r} is not the name of a key in Vault")
        return "/".join(quote(part, safe="") for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    fields: Mapping[str, Any] = field(repr=False)
    """The JSON. Empty: it is none."""
    said: str
    """Vault's errors, without the token. Empty: it did what was asked."""


class VaultTransit:
    """Each call has its own connection: an agent keeps keys for minutes."""

    def __init__(self, settings: EncryptionSettings) -> None:
        self._address = (settings.encryption_vault_address or "").rstrip("/")
        self._by_tls = self._address.startswith("https:")
        self._namespace = settings.encryption_vault_namespace
        self._token_file = Path(settings.encryption_vault_token_file or "")
        self._ca_file = settings.encryption_vault_ca_file
        self._timeout_s = settings.encryption_timeout_s
        self._threads = Threads("vault files", 1)  # a file of a secret's mount may hang
        self._trusted: tuple[str | None, ssl.SSLContext] | None = None

    async def encrypt(self, key: TransitKey, secret: bytes, bound_to: bytes) -> tuple[int, bytes]:
        """Returns the version of the key that encrypted, and the encrypted secret."""
        asked = {"plaintext": _text(secret), "associated_data": _text(bound_to)}
        found = await self._call("encrypt", key, asked, "ciphertext")
        written = _CIPHERTEXT.fullmatch(found)
        if written is None:
            raise TransitFailed(f"Vault at {self._address} does not answer as the transit engine does")
        return int(written[1]), found.encode()

    async def decrypt(self, key: TransitKey, encrypted: bytes, bound_to: bytes) -> bytes:
        """Returns what `encrypt` was given, if `bound_to` is the same."""
        asked = {
            "ciphertext": encrypted.decode("ascii", errors="replace"),
            "associated_data": _text(bound_to),
        }
        try:
            return base64.b64decode(await self._call("decrypt", key, asked, "plaintext"), validate=True)
        except (binascii.Error, ValueError):
            raise TransitFailed(
                f"Vault at {self._address} does not answer as the transit engine does"
            ) from None

    async def _call(self, action: str, key: TransitKey, asked: Mapping[str, str], wanted: str) -> str:
        path, slow = key.path(action), f"{_TOKEN_FILE}: {self._token_file} cannot be read"
        try:
            async with asyncio.timeout(self._timeout_s * _OWN_SHARE):
                token, trusted = await self._threads.run(self._read_files)
                slow = f"Vault at {self._address} gave no answer: check {_ADDRESS} and the network"
                answer = await self._post(path, asked, token, trusted)
        except TimeoutError:
            raise TransitFailed(f"{slow} (within {self._timeout_s:g} s)") from None
        data = answer.fields.get("data")
        found = data.get(wanted) if isinstance(data, dict) else None
        if answer.status != 200:
            raise TransitFailed(
                f"Vault at {self._address} does not {action} with {key}: {self._to_do(answer, key)}"
            )
        if not isinstance(found, str):
            raise TransitFailed(
                f"Vault at {self._address} does not answer as the transit engine does: is {_ADDRESS} "
                "that of Vault?"
            )
        return found

    async def _post(
        self, path: str, asked: Mapping[str, str], token: str, trusted: ssl.SSLContext
    ) -> _Answer:
        import httpx

        headers = {"X-Vault-Token": token, "X-Vault-Request": "true", "Accept-Encoding": "identity"}
        if self._namespace is not None:
            headers["X-Vault-Namespace"] = self._namespace
        body = bytearray()
        try:
            async with (
                httpx.AsyncClient(verify=trusted, timeout=None, trust_env=self._by_tls) as client,
                client.stream("POST", f"{self._address}/v1/{path}", json=asked, headers=headers) as response,
            ):
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > ANSWER_BYTES:
                        raise TransitFailed(
                            f"Vault at {self._address} answers with more than {ANSWER_BYTES} bytes"
                        )
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise TransitFailed(self._unreachable(_clipped(str(error), token))) from None
        fields = _object(bytes(body))
        if response.status_code == 200:
            return _Answer(status=200, fields=fields, said="")
        errors = fields.get("errors")
        said = " ".join(map(str, errors)) if isinstance(errors, list) else body.decode(errors="replace")
        return _Answer(status=response.status_code, fields=fields, said=_clipped(said, token))

    def _unreachable(self, reason: str) -> str:
        where = f"Vault at {self._address}"
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            return f"{where} has a certificate that is not trusted: set {_CA_FILE} to its CA ({reason})"
        return f"{where} cannot be reached: check {_ADDRESS} and that Vault runs ({reason})"

    def _to_do(self, answer: _Answer, key: TransitKey) -> str:
        said = answer.said
        if answer.status == 403 and "invalid token" in said:
            to_do = f"the token in {self._token_file} is not valid, or no longer: renew it"
        elif answer.status == 403:
            to_do = (
                f"the key is missing, or the policy of the token in {self._token_file} does not allow update "
                f"on {key.mount}/encrypt/{key.name} and {key.mount}/decrypt/{key.name}"
            )
        elif answer.status == 404:
            to_do = (
                f"there is no transit engine at {key.mount}: check TIDELOG_ENCRYPTION_VAULT_MOUNT and "
                "TIDELOG_ENCRYPTION_VAULT_NAMESPACE"
            )
        elif 300 <= answer.status < 400:
            to_do = f"it redirects to another server: set {_ADDRESS} to that one"
        else:
            to_do = next((to_do for text, to_do in _REFUSALS if text in said), f"status {answer.status}")
        return f"{to_do} ({said})" if said else to_do

    def _read_files(self) -> tuple[str, ssl.SSLContext]:
        import httpx  # noqa: F401  # 0.05 s, here and not on the event loop

        token = _read(_TOKEN_FILE, self._token_file).strip()
        if not _TOKEN.fullmatch(token):
            raise TransitFailed(f"{_TOKEN_FILE}: {self._token_file} has no token, or more than one")
        authorities = None if self._ca_file is None else _read(_CA_FILE, Path(self._ca_file))
        if self._trusted is None or self._trusted[0] != authorities:
            self._trusted = authorities, self._trusting(authorities)
        return token, self._trusted[1]

    def _trusting(self, authorities: str | None) -> ssl.SSLContext:
        if authorities is None:
            return ssl.create_default_context()
        try:
            # Comments between certificates may have any letters. An empty text would mean the system's CAs.
            return ssl.create_default_context(cadata=authorities.encode("ascii", "replace").decode() or "-")
        except ssl.SSLError:
            raise TransitFailed(f"{_CA_FILE}: {self._ca_file} has no certificates in PEM") from None


_REFUSALS: Final = (
    ("sealed", "unseal it"),
    (
        "non-AEAD",
        "the key needs a type with associated data, such as aes256-gcm96 or chacha20-poly1305: make another",
    ),
    ("'context'", "the key is derived: make one without derivation"),
    ("not found", "the key does not exist: restore it from a backup of Vault"),
    ("authentication failed", "it is of another topic, of another key that had this name, or changed"),
    ("too old", "the key's min_decryption_version is too high: lower it, and run `tidelog keys rewrap`"),
    ("too new", "the key lacks the version that encrypted: restore it from a newer backup of Vault"),
    ("HTTPS server", f"{_ADDRESS} must begin with https://"),
)
"""What Vault says, and what to do."""


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(setting: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES + 1)
        if len(data) > _FILE_BYTES:
            raise TransitFailed(f"{setting}: {path} has more than {_FILE_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise TransitFailed(f"{setting}: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TransitFailed(f"{setting}: {path} is not text") from None


def _clipped(said: str, token: str) -> str:
    """A server, or a proxy, may repeat what it was sent."""
    text = " ".join(said.replace(token, "***").split())
    return text if len(text) <= _SAID_LENGTH else f"{text[:_SAID_LENGTH]}..."


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
