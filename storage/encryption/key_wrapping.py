"""Encrypts the keys of topics with a key encryption key: of a file, of AWS KMS, or of
HashiCorp Vault.

The file has a key per line, `name base64`, of 32 bytes each. The first encrypts, all decrypt: a new key is
added above the old ones, and the old ones go once `tidelog keys rewrap` has run.

Promises:
- An encrypted key belongs to one topic and one key id. In another row it cannot be decrypted.
- Every call ends within a bound, as KeyUnavailable if it fails.
"""

import asyncio
import base64
import binascii
import os
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from storage.aws_session import AwsSession
from storage.encryption.sealed_batches import KEY_BYTES
from storage.encryption.settings import EncryptionSettings
from storage.encryption.vault_transit import TransitFailed, TransitKey, VaultTransit
from storage.identifiers import NO_KEY_ID, KeyId, TopicId
from storage.threads import Threads

_NONCE_BYTES = 12
_KMS = "aws-kms:"
_VAULT = re.compile(r"vault:(?P<mount>.+)/(?P<name>[^/]+):v[0-9]+")
_NO_TOPIC = TopicId(UUID(int=0))


class KeyUnavailable(Exception):
    """A topic's key cannot be had now, or here."""


class KeyWrapping(Protocol):
    async def name(self) -> str:
        """Returns the name of the key that encrypts."""

    async def wrap(self, secret: bytes, topic_id: TopicId, key_id: KeyId) -> tuple[str, bytes]:
        """Returns the name of the key that encrypted, and the encrypted secret."""

    async def unwrap(self, name: str, wrapped: bytes, topic_id: TopicId, key_id: KeyId) -> bytes: ...


def key_wrapping(settings: EncryptionSettings) -> KeyWrapping | None:
    """None: the settings name no key encryption key."""
    if settings.encryption_provider == "file":
        return FileKeys(Path(settings.encryption_key))
    if settings.encryption_provider == "aws-kms":
        return AwsKms(settings)
    return Vault(settings) if settings.encryption_provider == "vault" else None


class FileKeys:
    """Reads the file for each key, so a changed file counts at once. It reads in its own thread, because a
    file of a secret's mount may hang."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = Threads("key file", 1)

    async def name(self) -> str:
        return next(iter(await self._keys()))

    async def wrap(self, secret: bytes, topic_id: TopicId, key_id: KeyId) -> tuple[str, bytes]:
        name, key = next(iter((await self._keys()).items()))
        nonce = os.urandom(_NONCE_BYTES)
        return name, nonce + AESGCM(key).encrypt(nonce, secret, _bound_to(topic_id, key_id))

    async def unwrap(self, name: str, wrapped: bytes, topic_id: TopicId, key_id: KeyId) -> bytes:
        key = (await self._keys()).get(name)
        if key is None:
            raise KeyUnavailable(f"TIDELOG_ENCRYPTION_KEY: {self._path} has no key named {name}")
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, sealed, _bound_to(topic_id, key_id))
        except (InvalidTag, ValueError):
            raise KeyUnavailable(
                f"the key {name} in {self._path} is another than the one of that name"
            ) from None

    async def _keys(self) -> dict[str, bytes]:
        return await self._threads.run(self._read)

    def _read(self) -> dict[str, bytes]:
        keys: dict[str, bytes] = {}
        try:
            for line in self._path.read_text(encoding="utf-8").splitlines():
                if line.strip() and not line.startswith("#"):
                    name, text = line.split()
                    if "file:" + name in keys:
                        raise KeyUnavailable(f"TIDELOG_ENCRYPTION_KEY: {self._path} has {name} twice")
                    keys["file:" + name] = base64.b64decode(text, validate=True)
        except (OSError, ValueError, binascii.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else "a line has a name and a base64 key"
            raise KeyUnavailable(f"TIDELOG_ENCRYPTION_KEY: {self._path}: {reason}") from None
        if not keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise KeyUnavailable(f"TIDELOG_ENCRYPTION_KEY: {self._path} needs keys of {KEY_BYTES} bytes")
        return keys


class AwsKms:
    """KMS' Encrypt and Decrypt, with the topic and the key's id as encryption context. A call takes 2 ms of
    the event loop. It would take 44 ms with a client for each: an agent with 10,000 topics makes 33 calls a
    second.
    """

    def __init__(self, settings: EncryptionSettings) -> None:
        self._settings = settings
        self._session = AwsSession("kms")
        self._opening = asyncio.Lock()
        self._kept: tuple[Any, AsyncIterator[Any]] | None = None
        """The client, and the generator that closes it when the event loop ends."""

    async def name(self) -> str:
        """Encrypts something to see which key does: an alias names another key once it is moved."""
        name, _ = await self.wrap(bytes(KEY_BYTES), _NO_TOPIC, NO_KEY_ID)
        return name

    async def wrap(self, secret: bytes, topic_id: TopicId, key_id: KeyId) -> tuple[str, bytes]:
        answer = await self._call(
            "encrypt", self._settings.encryption_key, topic_id, key_id, Plaintext=secret
        )
        return _KMS + answer["KeyId"], bytes(answer["CiphertextBlob"])

    async def unwrap(self, name: str, wrapped: bytes, topic_id: TopicId, key_id: KeyId) -> bytes:
        if not name.startswith(_KMS):
            raise KeyUnavailable(f"the topic's key is encrypted by {name}, and this process asks KMS")
        answer = await self._call(
            "decrypt", name.removeprefix(_KMS), topic_id, key_id, CiphertextBlob=wrapped
        )
        return bytes(answer["Plaintext"])

    async def _call(
        self, name: str, kms_key: str, topic_id: TopicId, key_id: KeyId, **given: bytes
    ) -> Mapping[str, Any]:
        session = await self._session.get()
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        timeout_s = self._settings.encryption_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                client = await self._client(session)
                context = {"tidelog-topic": str(topic_id), "tidelog-key": f"{key_id:016x}"}
                answer: Mapping[str, Any] = await getattr(client, name)(
                    KeyId=kms_key, EncryptionContext=context, **given
                )
                return answer
        except (BotoCoreError, ClientError, OSError) as error:
            if isinstance(error, NoCredentialsError):
                self._kept = None  # it would not find those that come later
            reason = str(error) or f"no answer within {timeout_s:g} s"
            raise KeyUnavailable(f"KMS does not {name} with {kms_key}: {reason}") from error

    async def _client(self, session: Any) -> Any:
        async with self._opening:
            if self._kept is None:
                opened = self._opened(session)
                self._kept = await anext(opened), opened
            return self._kept[0]

    async def _opened(self, session: Any) -> AsyncIterator[Any]:
        from botocore.config import Config

        settings = self._settings
        config = Config(
            connect_timeout=settings.encryption_timeout_s,
            read_timeout=settings.encryption_timeout_s,
            retries={"total_max_attempts": 2},
            max_pool_connections=settings.encryption_calls,
        )
        async with session.create_client(
            "kms",
            region_name=settings.encryption_kms_region,
            endpoint_url=settings.encryption_kms_endpoint,
            config=config,
        ) as client:
            yield client


class Vault:
    """Vault's transit engine, with the topic and the key's id as associated data. Names are
    `vault:mount/key:v3`: an older version of Vault's key is another key for a rewrap."""

    def __init__(self, settings: EncryptionSettings) -> None:
        self._key = TransitKey(mount=settings.encryption_vault_mount, name=settings.encryption_key)
        self._transit = VaultTransit(settings)

    async def name(self) -> str:
        """Encrypts something to see which version does. That needs no right to read the key."""
        name, _ = await self.wrap(bytes(KEY_BYTES), _NO_TOPIC, NO_KEY_ID)
        return name

    async def wrap(self, secret: bytes, topic_id: TopicId, key_id: KeyId) -> tuple[str, bytes]:
        try:
            version, wrapped = await self._transit.encrypt(self._key, secret, _bound_to(topic_id, key_id))
        except TransitFailed as failed:
            raise KeyUnavailable(str(failed)) from None
        return f"vault:{self._key}:v{version}", wrapped

    async def unwrap(self, name: str, wrapped: bytes, topic_id: TopicId, key_id: KeyId) -> bytes:
        """Asks for the key that encrypted, so TIDELOG_ENCRYPTION_KEY may name another one now."""
        parts = _VAULT.fullmatch(name)
        if parts is None:
            raise KeyUnavailable(f"the topic's key is encrypted by {name}, and this process asks Vault")
        key = TransitKey(mount=parts["mount"], name=parts["name"])
        try:
            secret = await self._transit.decrypt(key, wrapped, _bound_to(topic_id, key_id))
        except TransitFailed as failed:
            raise KeyUnavailable(str(failed)) from None
        if len(secret) != KEY_BYTES:
            raise KeyUnavailable(f"{name} decrypts the topic's key to {len(secret)} bytes, not {KEY_BYTES}")
        return secret


def _bound_to(topic_id: TopicId, key_id: KeyId) -> bytes:
    return topic_id.bytes + key_id.to_bytes(8, "big")
