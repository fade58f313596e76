"""Settings of the keys that encrypt topics' keys."""

import re
from ipaddress import ip_address
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from storage.settings import Settings

_VAULT_PATH: Final = re.compile(r"(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)*")


def is_vault_path(text: str) -> bool:
    """True for names with a slash between two, such as the mount of an engine of Vault."""
    return _VAULT_PATH.fullmatch(text) is not None


class EncryptionSettings(Settings):
    """Where the keys of topics are encrypted and decrypted."""

    encryption_provider: Literal["", "file", "aws-kms", "vault"] = ""
    """Who encrypts the keys of topics with tidelog.encryption=on: file (TIDELOG_ENCRYPTION_KEY is its path),
    aws-kms (it is the KMS key) or vault (it is a key of the transit engine). Empty: such topics can be
    neither written nor read here."""
    encryption_key: str = ""
    """The path of the file of keys; or id, ARN or alias of the KMS key; or the name of the key in Vault."""
    encryption_kms_endpoint: str | None = None
    """The URL of a service that speaks KMS' protocol. Unset: AWS."""
    encryption_kms_region: str = "us-east-1"
    """The region of the KMS key."""
    encryption_vault_address: str | None = None
    """The URL of Vault, such as https://vault:8200. Plain http is taken on this machine only."""
    encryption_vault_mount: str = "transit"
    """Where Vault's transit engine is mounted."""
    encryption_vault_namespace: str | None = None
    """The namespace of Vault Enterprise. Unset: the root namespace."""
    encryption_vault_token_file: str | None = None
    """The file of Vault's token. It is read for each call, so Vault Agent may renew it."""
    encryption_vault_ca_file: str | None = None
    """The PEM file of the CA that signs Vault's certificate. Unset: the system's CAs."""
    encryption_timeout_s: float = Field(default=5.0, gt=0)
    """The longest that getting one key takes, at KMS or Vault and in Postgres."""
    encryption_retry_s: float = Field(default=5.0, ge=0)
    """How long a topic whose key could not be had is refused before it is asked for again."""
    encryption_key_life_s: float = Field(default=300.0, gt=0)
    """How long an agent keeps a topic's key in memory: so long it reads a topic whose key is destroyed or
    rotated, and works without KMS or Vault."""
    encryption_keys_kept: int = Field(default=10_000, ge=1)
    """The most keys of topics in an agent's memory."""
    encryption_calls: int = Field(default=16, ge=1)
    """The most requests for keys of topics at a time."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if bool(self.encryption_provider) != bool(self.encryption_key):
            raise ValueError("set both TIDELOG_ENCRYPTION_PROVIDER and TIDELOG_ENCRYPTION_KEY, or neither")
        if self.encryption_provider == "vault":
            self._check_vault()
        return self

    def _check_vault(self) -> None:
        address = urlsplit(self.encryption_vault_address or "")
        if not (address.hostname and address.scheme in ("http", "https")) or address.query:
            raise ValueError("TIDELOG_ENCRYPTION_VAULT_ADDRESS is a URL such as https://vault:8200")
        if address.scheme == "http" and not _is_loopback(address.hostname):
            raise ValueError(
                "TIDELOG_ENCRYPTION_VAULT_ADDRESS: plain http would show the token to the network: use https"
            )
        if not self.encryption_vault_token_file:
            raise ValueError("TIDELOG_ENCRYPTION_PROVIDER=vault needs TIDELOG_ENCRYPTION_VAULT_TOKEN_FILE")
        if not is_vault_path(self.encryption_vault_mount):
            raise ValueError("TIDELOG_ENCRYPTION_VAULT_MOUNT is a path like transit, without a / at its ends")
        if not is_vault_path(self.encryption_key) or "/" in self.encryption_key:
            raise ValueError("TIDELOG_ENCRYPTION_KEY is the name of a key in Vault, without its mount")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
