"""Objects in an S3 bucket, by obstore (Rust's object_store): `s3://bucket/prefix?endpoint=http://...`.

- Retries are done here, so that one bound covers a whole call: each attempt has a bound, and all attempts
  with their jittered waits fit `s3_call_timeout_s`.
- SlowDown is `StoreBusy`, which callers treat as backpressure.
- Payloads are not hashed for the signature: the CRC32Cs of segments and batches give integrity.
- An upload reads the given buffers in place, so they must never change. A cancelled call ends its request,
  which may go on for a moment.
"""

import asyncio
import atexit
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store as Client

from storage.batches.byte_arrays import Buffer
from storage.credentials import ChainedKeys
from storage.identifiers import ObjectKey
from storage.segments.keys import checked_key
from storage.stores.object_store import (
    ObjectChanged,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    StoreBusy,
    StoreSettings,
    StoreUnavailable,
    StoreUrl,
    TaggedObject,
)
from storage.stores.s3_errors import REQUEST_ERRORS, S3Failure, lasting, read_failure, refusal
from storage.stores.signed_ranges import SignedRanges
from storage.threads import Threads

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode

Result = TypeVar("Result")

_MOST_KEYS_PER_DELETE = 1000
_KEYS_PER_PAGE = 1000
_NO_SUCH_OBJECT = ".tidelog-probe"
_LAST_BUFFERS_S = 0.05


class S3Store(ObjectStore):
    def __init__(self, url: StoreUrl, settings: StoreSettings, client: Client) -> None:
        """Takes over the client. Use `open`."""
        self._url = url
        self._settings = settings
        self._client = client
        self._connections = asyncio.Semaphore(settings.s3_connections)
        self._signed_ranges: SignedRanges | None = None
        """Set once the endpoint served a range without saying that it is one."""

    @classmethod
    async def open(cls, url: StoreUrl, settings: StoreSettings) -> "S3Store":
        """Makes no request, so that a store that is away at start-up is found by the first call."""
        _let_threads_finish_at_exit()
        # obstore reads it from nowhere else, when it first needs its threads. With more than one an answer's pieces go
        # to and fro between them, each waking the other, for which a GET takes a sixth to a quarter more CPU and no
        # less time.
        os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
        client = Client(
            url.bucket,
            prefix=url.prefix or None,
            region=settings.s3_region,
            unsigned_payload=True,
            virtual_hosted_style_request=False,
            client_options={
                "allow_http": (url.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=settings.s3_connect_timeout_s),
                "read_timeout": timedelta(seconds=settings.s3_read_timeout_s),
                "timeout": timedelta(seconds=settings.s3_attempt_timeout_s),
            },
            retry_config={"max_retries": 0},
            config={"endpoint": url.endpoint} if url.endpoint else {},
            **_keys(settings),
        )
        return cls(url, settings, client)

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        path = checked_key(key)

        async def attempt() -> None:
            body = chunks[0] if len(chunks) == 1 else iter(chunks)
            await obstore.put_async(self._client, path, body, use_multipart=False)

        # Without the key: if a PUT finds something missing, it is the bucket or the address, never the
        # object.
        await self._attempts(attempt)

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        path = checked_key(key)
        body = b"".join(chunks)
        mode: PutMode = "create" if expected_tag is None else {"e_tag": expected_tag}

        async def attempt() -> None:
            try:
                await obstore.put_async(self._client, path, body, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                raise ObjectChanged(key) from None
            except REQUEST_ERRORS as error:
                failure = read_failure(error)
                if failure.code == "NoSuchKey":  # If-Match on a key without an object
                    raise ObjectChanged(key) from None
                if failure.status != 501:
                    raise
                await obstore.put_async(self._client, path, body, use_multipart=False)

        await self._attempts(attempt)

    async def get_tagged(self, key: ObjectKey) -> TaggedObject:
        path = checked_key(key)

        async def attempt() -> TaggedObject:
            found = await obstore.get_async(self._client, path)
            return TaggedObject(data=bytes(await found.bytes_async()), tag=found.meta["e_tag"] or "")

        return await self._attempts(attempt, key)

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes | memoryview:
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"[{start}, {end}) is no range of bytes")
        path = checked_key(key)
        if start == end:
            await self.head(key)
            return b""
        return await self._attempts(lambda: self._get(path, start, end), key)

    async def head(self, key: ObjectKey) -> ObjectInfo:
        path = checked_key(key)
        return _info(await self._attempts(lambda: obstore.head_async(self._client, path), key))

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        paths = list(dict.fromkeys(checked_key(key) for key in keys))  # MinIO mishandles a key named twice
        for first in range(0, len(paths), _MOST_KEYS_PER_DELETE):
            some = paths[first : first + _MOST_KEYS_PER_DELETE]
            await self._attempts(partial(obstore.delete_async, self._client, some))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        # obstore lists whole path segments: use the deepest that the prefix names as a whole.
        folder = prefix.rpartition("/")[0] or None
        after = None
        while True:
            page = await self._attempts(partial(self._page, folder, after))
            for found in page:
                if found["path"].startswith(prefix) and (after is None or found["path"] > after):
                    yield _info(found)
            if len(page) < _KEYS_PER_PAGE:
                return
            if after is not None and page[-1]["path"] <= after:
                raise StoreUnavailable(f"the object store {self._url} lists the same page for ever (start-after)")
            after = page[-1]["path"]

    async def probe(self) -> None:
        """Asks for an object that does not exist: unlike HEAD, the response says if the bucket is missing."""
        try:
            await self._attempts(lambda: self._get(_NO_SUCH_OBJECT, 0, None), ObjectKey(_NO_SUCH_OBJECT))
        except ObjectNotFound:
            return

    async def ensure_bucket(self) -> None:
        """Creates the bucket unless it exists, for development stacks. In production a missing bucket is a
        mistake to report.
        """
        await Threads("make bucket", 1).run(_make_bucket, self._url, self._settings)

    async def close(self) -> None:
        if self._signed_ranges is not None:
            await self._signed_ranges.close()

    async def _page(self, folder: str | None, after: str | None) -> "Sequence[ObjectMeta]":
        # Each attempt has its own stream: a failed one is over, which looks like the end of the listing.
        pages = obstore.list(self._client, folder, offset=after, chunk_size=_KEYS_PER_PAGE)
        return await anext(pages, [])

    async def _get(self, path: str, start: int, end: int | None) -> bytes | memoryview:
        if not start and end is None:
            whole = await obstore.get_async(self._client, path)
            return memoryview(await whole.bytes_async())
        try:
            return await self._get_range(path, start, end)
        except REQUEST_ERRORS as error:
            failure = read_failure(error)
            if failure.status == 416:  # the range begins at or after the end
                return b""
            if not failure.range_ignored or self._signed_ranges is not None:
                raise
        self._signed_ranges = SignedRanges(self._client, self._settings)
        return await self._get(path, start, end)

    async def _get_range(self, path: str, start: int, end: int | None) -> bytes | memoryview:
        if self._signed_ranges is not None:
            whole = None if start or end is None else await obstore.get_async(self._client, path)
            if whole is not None and whole.meta["size"] == end:
                return memoryview(await whole.bytes_async())
            return await self._signed_ranges.get(path, start, end)
        if end is None:
            rest = await obstore.get_async(self._client, path, options={"range": {"offset": start}})
            return memoryview(await rest.bytes_async())
        return memoryview(await obstore.get_range_async(self._client, path, start=start, end=end))

    async def _attempts(self, attempt: Callable[[], Awaitable[Result]], key: ObjectKey | None = None) -> Result:
        """Repeats `attempt` until it succeeds, fails for good, or reaches the call's bounds."""
        settings = self._settings
        failure: S3Failure | None = None
        cause: Exception | None = None
        try:
            async with asyncio.timeout(settings.s3_call_timeout_s):
                for number in range(settings.s3_attempts):
                    if number:
                        await asyncio.sleep(
                            random.uniform(0, min(settings.s3_retry_cap_s, settings.s3_retry_base_s * 2**number))
                        )
                    try:
                        async with asyncio.timeout(settings.s3_attempt_timeout_s), self._connections:
                            return await attempt()
                    except REQUEST_ERRORS as error:
                        failure, cause = read_failure(error), error
                        self._raise_if_final(failure, error, key)
            raise self._given_up(failure) from cause
        except TimeoutError as error:  # the call's bound; an attempt's timeout is an OSError, caught above
            raise self._given_up(failure or read_failure(error)) from cause or error
        finally:
            cause = None  # its traceback has this frame: the cycle would keep the uploaded bytes alive

    def _raise_if_final(self, failure: S3Failure, error: Exception, key: ObjectKey | None) -> None:
        """Raises a failure that no further attempt can change."""
        if failure.asked_for_keys:
            hint = "set TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY, or give this machine a role"
            raise StoreUnavailable(f"no keys for the object store {self._url} ({failure.reason}); {hint}.") from error
        if key is not None and failure.is_missing:
            raise ObjectNotFound(key) from error
        if failure.is_final:
            raise StoreUnavailable(refusal(self._url, failure)) from error

    def _given_up(self, failure: S3Failure | None) -> StoreUnavailable:
        if failure is not None and failure.is_busy:
            return StoreBusy(f"the object store {self._url} asks to slow down ({failure.said}), after {self._bounds()}")
        if failure is not None and failure.status:
            return StoreUnavailable(lasting(self._url, failure, self._bounds()))
        where = self._url.endpoint or "AWS"
        reason = "no attempt was made" if failure is None else failure.reason
        return StoreUnavailable(
            f"cannot reach the object store {self._url} at {where} ({reason}), after {self._bounds()}. Is it running? "
            "Checked TIDELOG_STORE_URL."
        )

    def _bounds(self) -> str:
        return f"{self._settings.s3_attempts} attempts or {self._settings.s3_call_timeout_s:g} s"


@cache
def _let_threads_finish_at_exit() -> None:
    """obstore's threads give buffers back under the interpreter's lock, a moment after a response. A thread
    that asks for the lock while the interpreter ends aborts the process.
    """
    atexit.register(time.sleep, _LAST_BUFFERS_S)


def _info(found: Any) -> ObjectInfo:
    return ObjectInfo(
        key=ObjectKey(found["path"]), size_bytes=found["size"], modified_at=found["last_modified"].astimezone(UTC)
    )


def _keys(settings: StoreSettings) -> dict[str, Any]:
    if settings.s3_access_key is None or settings.s3_secret_key is None:
        return {"credential_provider": ChainedKeys()}
    return {
        "access_key_id": settings.s3_access_key,
        "secret_access_key": settings.s3_secret_key.get_secret_value(),
    }


def _make_bucket(url: StoreUrl, settings: StoreSettings) -> None:
    """Uses the minio client, because obstore makes no buckets."""
    from minio import Minio
    from minio.error import MinioException

    endpoint = urlsplit(url.endpoint or "https://s3.amazonaws.com")
    client = Minio(
        endpoint=endpoint.netloc,
        secure=endpoint.scheme == "https",
        access_key=settings.s3_access_key,
        secret_key=settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else None,
        region=settings.s3_region,
    )
    try:
        client.make_bucket(bucket_name=url.bucket, location=settings.s3_region)
    except MinioException as error:
        if not client.bucket_exists(bucket_name=url.bucket):
            raise StoreUnavailable(f"the bucket of {url} cannot be created: {error}") from error
