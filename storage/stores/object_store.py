"""The bucket, as the rest of Tidelog sees it: whole objects in, byte ranges out.

Promises of every implementation, checked by one suite (`tests/storage/stores/test_object_stores.py`):
- An object is visible whole or not at all.
- `get` is Python's slicing (`data[start:end]`): a range beyond the end is shorter or empty.
- Every call ends within a bound that is a setting.
- A missing object is `ObjectNotFound`. Any other failure is `StoreUnavailable`.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal, Protocol, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, model_validator

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    key: ObjectKey
    size_bytes: int
    modified_at: datetime


class ObjectNotFound(Exception):
    """No object has this key."""

    def __init__(self, key: ObjectKey) -> None:
        super().__init__(f"no object {key}")
        self.key = key


class ObjectChanged(Exception):
    """A conditional put was refused: the key has another object than the expected one, or has none."""

    def __init__(self, key: ObjectKey) -> None:
        super().__init__(f"the object {key} is not the one that was expected")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedObject:
    """A small object and the store's tag of this version (S3: the ETag), for `put_if`."""

    data: bytes
    tag: str


class StoreUnavailable(Exception):
    """The store could not be reached, or kept failing until the call's time was over. The message names the
    fix."""


class StoreBusy(StoreUnavailable):
    """The store asked to slow down (503 SlowDown) until the call's time was over. This is backpressure, not a
    fault."""


class ObjectStore(Protocol):
    """Keys are relative to the store's URL prefix."""

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        """Writes the chunks as one object, whole or not at all. Replaces an object of the same key. The
        chunks may be read until this returns."""

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        """As `put`, but only over the version with this tag. None: only if the key has no object. Raises
        ObjectChanged.

        Some stores ignore the condition and write anyway. A refusal may also come from an earlier attempt
        whose response was lost. To know what the object is now, read it again.
        """

    async def get_tagged(self, key: ObjectKey) -> TaggedObject:
        """Returns the whole object and its tag. Raises ObjectNotFound."""

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes | memoryview:
        """Returns the bytes `[start, end)`, as slicing would. Raises ObjectNotFound."""

    async def head(self, key: ObjectKey) -> ObjectInfo:
        """Returns size and age. Raises ObjectNotFound."""

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Deletes any number of objects. Missing ones are fine."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yields every object whose key starts with `prefix`, in key order."""

    async def probe(self) -> None:
        """Makes a cheap request that fails as real ones would. Raises StoreUnavailable."""

    async def close(self) -> None: ...


def content_tag(data: bytes) -> str:
    """Returns a tag for an object in a store without tags."""
    return sha256(data).hexdigest()


async def is_there(store: ObjectStore, key: ObjectKey) -> bool:
    """True if the key has an object. Raises StoreUnavailable."""
    try:
        await store.head(key)
    except ObjectNotFound:
        return False
    return True


class StoreSettings(Settings):
    """How to reach the bucket. Each is also an environment variable, e.g. TIDELOG_S3_REGION."""

    file_store_threads: int = Field(default=8, ge=1)
    """Calls at once to a store that is a directory."""
    s3_access_key: str | None = None
    """The access key. Unset: the keys come from the usual AWS chain (environment, static keys of a profile,
    roles).
    """
    s3_secret_key: SecretStr | None = None
    """The secret key that belongs to the access key."""
    s3_region: str = "us-east-1"
    """The bucket's region. Endpoints other than AWS mostly accept any."""
    s3_ca_file: str | None = None
    """The PEM file of the CA that signs the endpoint's certificate. Unset: the system's CAs."""
    s3_sse: Literal["", "AES256", "aws:kms"] = ""
    """The server-side encryption that each upload asks for: AES256 (SSE-S3) or aws:kms (SSE-KMS). Empty: what
    the bucket does by default."""
    s3_sse_kms_key_id: str | None = None
    """The KMS key of SSE-KMS, as id or ARN. Unset: the account's key for S3."""
    s3_sse_bucket_key: bool = True
    """Whether SSE-KMS uses a bucket key, so that not every upload is a request to KMS."""
    s3_connections: int = Field(default=64, ge=1)
    """The most connections to the store at a time. Further requests wait for one."""
    s3_connect_timeout_s: float = Field(default=5.0, gt=0)
    """The longest wait for a connection."""
    s3_read_timeout_s: float = Field(default=20.0, gt=0)
    """The longest silence of the store within one attempt."""
    s3_attempt_timeout_s: float = Field(default=30.0, gt=0)
    """The longest that one attempt takes, including its wait for a free connection."""
    s3_attempts: int = Field(default=5, ge=1)
    """The most attempts of one call."""
    s3_retry_base_s: float = Field(default=0.1, gt=0)
    """The wait before attempt n is random between 0 and this times 2^n (full jitter)."""
    s3_retry_cap_s: float = Field(default=3.0, gt=0)
    """The longest wait between two attempts."""
    s3_call_timeout_s: float = Field(default=60.0, gt=0)
    """The longest that a call takes, with all its attempts and waits."""

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("set both TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY, or neither")
        if self.s3_sse_kms_key_id is not None and self.s3_sse != "aws:kms":
            raise ValueError("TIDELOG_S3_SSE_KMS_KEY_ID needs TIDELOG_S3_SSE=aws:kms")
        return self

    @property
    def sse_headers(self) -> dict[str, str]:
        """The headers by which an upload asks for server-side encryption."""
        if not self.s3_sse:
            return {}
        headers: dict[str, str] = {"x-amz-server-side-encryption": self.s3_sse}
        if self.s3_sse == "aws:kms":
            headers["x-amz-server-side-encryption-bucket-key-enabled"] = str(self.s3_sse_bucket_key).lower()
            if self.s3_sse_kms_key_id is not None:
                headers["x-amz-server-side-encryption-aws-kms-key-id"] = self.s3_sse_kms_key_id
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """Where the objects are: `s3://bucket/prefix?endpoint=http://host:port`, `file:///directory` or
    `memory://name`."""

    scheme: Literal["s3", "file", "memory"]
    bucket: str = ""
    prefix: str = ""
    endpoint: str | None = None
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "StoreUrl":
        """Raises ValueError with a message that names the fix."""
        url = urlsplit(text)
        query = parse_qs(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
        if url.scheme == "s3":
            return _parse_s3(text, url.netloc, url.path, query)
        if query:
            raise ValueError(f"{text!r}: only s3:// URLs take options ({', '.join(query)})")
        if url.scheme == "file":
            if url.netloc or not url.path.startswith("/"):
                raise ValueError(
                    f"{text!r} names no absolute directory; write file:///absolute/directory (three slashes)"
                )
            return cls(scheme="file", path=url.path)
        if url.scheme == "memory":
            if not url.netloc or url.path.strip("/"):
                raise ValueError(f"{text!r} names no memory store; write memory://name")
            return cls(scheme="memory", bucket=url.netloc)
        raise ValueError(
            f"{text!r} is not a store; "
            "use s3://bucket/prefix?endpoint=http://..., file:///directory or memory://name"
        )

    @property
    def is_encrypted(self) -> bool:
        """True if what goes to the store is encrypted, or stays on this machine."""
        if self.scheme != "s3" or self.endpoint is None:
            return True
        endpoint = urlsplit(self.endpoint)
        return endpoint.scheme == "https" or endpoint.hostname in ("localhost", "127.0.0.1", "::1")

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.path}"
        base = f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        return base + (f"?endpoint={self.endpoint}" if self.endpoint else "")


def _parse_s3(text: str, bucket: str, path: str, query: dict[str, list[str]]) -> StoreUrl:
    if not bucket:
        raise ValueError(f"{text!r} names no bucket; write s3://bucket/prefix?endpoint=http://host:port")
    if "@" in bucket or ":" in bucket:
        raise ValueError(
            f"the bucket of {text!r} holds '@' or ':'; keys go into TIDELOG_S3_ACCESS_KEY and "
            "TIDELOG_S3_SECRET_KEY"
        )
    unknown = sorted(query.keys() - {"endpoint"})
    if unknown:
        raise ValueError(f"{text!r}: unknown option {', '.join(unknown)}; the only one is endpoint")
    endpoint = query["endpoint"][-1] if "endpoint" in query else None
    if endpoint is not None and (
        urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc
    ):
        raise ValueError(f"the endpoint of {text!r} must be http://host:port or https://host:port")
    return StoreUrl(scheme="s3", bucket=bucket, prefix=path.strip("/"), endpoint=endpoint)
