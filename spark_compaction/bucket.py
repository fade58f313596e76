"""The bucket for Spark's executors and driver: synchronous, few calls, by the `minio` client or in a local
directory. Executors have no event loop, so they cannot use `storage.stores.open_store`.

Promises:
- Every call ends within timeouts and a bounded number of attempts.
- An object is visible whole or not at all.
- A missing object is `ObjectNotFound`. Any other failure is `StoreUnavailable`.
- Objects whose keys hold their bytes (markers of transactions) are read without the store.
- `BucketAddress` is plain data, so that it can travel to executors with the task.
"""

import asyncio
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error

from storage.identifiers import ObjectKey
from storage.segments.keys import inline_bytes
from storage.stores.local_store import LocalStore
from storage.stores.minio_client import ServerSideEncryption, endpoint_of, minio_client
from storage.stores.object_store import ObjectNotFound, StoreSettings, StoreUnavailable, StoreUrl

_SINGLE_PUT_BYTES = 512 << 20
_MISSING = ("NoSuchKey", "NoSuchObject")
_BEYOND_END = ("InvalidRange",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """Everything needed to open the bucket. Without keys the task asks the usual AWS chain where it runs."""

    url: StoreUrl
    access_key: str | None
    secret_key: str | None
    region: str
    connections: int
    connect_timeout_s: float
    read_timeout_s: float
    attempts: int
    retry_base_s: float
    ca_file: str | None = None
    """On the executors' disks."""
    sse_headers: tuple[tuple[str, str], ...] = ()
    """By which each upload asks for server-side encryption."""

    @classmethod
    def of(cls, store_url: str, settings: StoreSettings) -> "BucketAddress":
        """Raises ValueError for a store that executors cannot reach."""
        url = StoreUrl.parse(store_url)
        if url.scheme == "memory":
            raise ValueError(
                f"Spark cannot reach {store_url}: a memory store lives in one process; use s3:// or file://"
            )
        return cls(
            url=url,
            access_key=settings.s3_access_key,
            secret_key=settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else None,
            region=settings.s3_region,
            connections=settings.s3_connections,
            connect_timeout_s=settings.s3_connect_timeout_s,
            read_timeout_s=settings.s3_read_timeout_s,
            attempts=settings.s3_attempts,
            retry_base_s=settings.s3_retry_base_s,
            ca_file=settings.s3_ca_file,
            sse_headers=tuple(settings.sse_headers.items()),
        )

    def location(self, key: str) -> str:
        """Returns the absolute URI of an object, as Iceberg's metadata names it."""
        if self.url.scheme == "file":
            return f"file://{self.url.path.rstrip('/')}/{key}"
        prefix = f"{self.url.prefix}/" if self.url.prefix else ""
        return f"s3://{self.url.bucket}/{prefix}{key}"

    def key_of(self, location: str) -> ObjectKey:
        """The inverse of `location`. Raises ValueError for a URI outside this bucket."""
        root = self.location("")
        if not location.startswith(root):
            raise ValueError(f"{location} lies outside {root}")
        return ObjectKey(location.removeprefix(root))

    def open(self) -> "Bucket":
        is_local = self.url.scheme == "file"
        return InlineBucket(LocalBucket(Path(self.url.path)) if is_local else S3Bucket(self))


class Bucket(Protocol):
    """Keys are relative to the store's URL prefix."""

    def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes `[start, end)`, as slicing would. Raises ObjectNotFound."""

    def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Writes one object, whole or not at all."""

    def size(self, key: ObjectKey) -> int:
        """Returns the object's bytes as a number. Raises ObjectNotFound."""


class InlineBucket:
    """A bucket that also has the objects whose keys hold their bytes (`storage.segments.keys`)."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.put = bucket.put
        self.size = bucket.size

    def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        data = inline_bytes(key)
        return self._bucket.get(key, start, end) if data is None else data[start:end]


class S3Bucket:
    def __init__(self, address: BucketAddress) -> None:
        self._client = minio_client(
            address.url,
            access_key=address.access_key,
            secret_key=address.secret_key,
            region=address.region,
            connections=address.connections,
            connect_timeout_s=address.connect_timeout_s,
            read_timeout_s=address.read_timeout_s,
            attempts=address.attempts,
            retry_base_s=address.retry_base_s,
            ca_file=address.ca_file,
        )
        self._bucket = address.url.bucket
        self._prefix = f"{address.url.prefix}/" if address.url.prefix else ""
        self._sse = ServerSideEncryption(dict(address.sse_headers)) if address.sse_headers else None
        self._where = f"s3://{self._bucket} at {endpoint_of(address.url)}"

    def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        length = 0 if end is None else end - start
        with _NamedErrors(self._where, key):
            try:
                response = self._client.get_object(
                    bucket_name=self._bucket, object_name=self._prefix + key, offset=start, length=length
                )
            except MinioException as error:
                if _says(error, _BEYOND_END):
                    return b""
                raise
            try:
                return bytes(response.read())
            finally:
                response.close()
                response.release_conn()

    def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        body = io.BytesIO(bytes(data))  # over bytes neither this nor its `read` copies them
        with _NamedErrors(self._where, key):
            self._client.put_object(
                bucket_name=self._bucket,
                object_name=self._prefix + key,
                data=body,
                length=len(data),
                part_size=_SINGLE_PUT_BYTES,
                sse=self._sse,
            )

    def size(self, key: ObjectKey) -> int:
        with _NamedErrors(self._where, key):
            found = self._client.stat_object(bucket_name=self._bucket, object_name=self._prefix + key)
            return int(found.size or 0)


class LocalBucket:
    """The directory of `storage.stores.local_store`, for callers without an event loop. Not from a
    coroutine."""

    def __init__(self, root: Path) -> None:
        self._store = LocalStore(root)

    def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        return asyncio.run(self._store.get(key, start, end))

    def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        asyncio.run(self._store.put(key, [data]))

    def size(self, key: ObjectKey) -> int:
        return asyncio.run(self._store.head(key)).size_bytes


class _NamedErrors:
    """Turns the client's many errors into the store's two."""

    def __init__(self, where: str, key: ObjectKey) -> None:
        self._where = where
        self._key = key

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MinioException) and _says(error, _MISSING):
            raise ObjectNotFound(self._key) from error
        if isinstance(error, (MinioException, urllib3.exceptions.HTTPError, OSError)):
            raise StoreUnavailable(
                f"{self._where}: {self._key}: {error}. Checked TIDELOG_STORE_URL."
            ) from error


def _says(error: MinioException, codes: tuple[str, ...]) -> bool:
    """True if S3 answered with one of these codes, also without the content type that the client expects."""
    if isinstance(error, InvalidResponseError):
        return any(f"<Code>{code}</Code>" in str(error) for code in codes)
    return isinstance(error, S3Error) and error.code in codes
