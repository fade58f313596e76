"""Settings of the keys that encrypt topics' keys."""

from typing import Literal, Self

from pydantic import Field, model_validator

from storage.settings import Settings


class EncryptionSettings(Settings):
    """Where the keys of topics are encrypted and decrypted."""

    encryption_provider: Literal["", "file", "aws-kms"] = ""
    """Who encrypts the keys of topics with tidelog.encryption=on: file (TIDELOG_ENCRYPTION_KEY is its path)
    or aws-kms (it is the KMS key). Empty: such topics can be neither written nor read here."""
    encryption_key: str = ""
    """The path of the file of keys, or id, ARN or alias of the KMS key."""
    encryption_kms_endpoint: str | None = None
    """The URL of a service that speaks KMS' protocol. Unset: AWS."""
    encryption_kms_region: str = "us-east-1"
    """The region of the KMS key."""
    encryption_timeout_s: float = Field(default=5.0, gt=0)
    """The longest that getting one key takes, at KMS and in Postgres."""
    encryption_retry_s: float = Field(default=5.0, ge=0)
    """How long a topic whose key could not be had is refused before it is asked for again."""
    encryption_key_life_s: float = Field(default=300.0, gt=0)
    """How long an agent keeps a topic's key in memory: so long it reads a topic whose key is destroyed or
    rotated, and works without KMS."""
    encryption_keys_kept: int = Field(default=10_000, ge=1)
    """The most keys of topics in an agent's memory."""
    encryption_calls: int = Field(default=16, ge=1)
    """The most requests for keys of topics at a time."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if bool(self.encryption_provider) != bool(self.encryption_key):
            raise ValueError("set both TIDELOG_ENCRYPTION_PROVIDER and TIDELOG_ENCRYPTION_KEY, or neither")
        return self
