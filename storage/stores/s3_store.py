"""Objects in an S3 bucket, by obstore (Rust's object_store): `s3://bucket/prefix?endpoint=http://...`.

- Retries happen here, so that one bound covers a whole call: each attempt has a bound, and all attempts with
  their jittered waits fit `s3_call_timeout_s`.
- SlowDown is `StoreBusy`, which callers treat as backpressure.
- Payloads are not hashed for the signature: the CRC32Cs of segments and batches give integrity.
- An upload reads the given buffers in place, so they must never change. A cancelled call ends its request,
  which may go on for a moment.
- An error of obstore has one text: a sentence with the HTTP status and the body of the response, then the
  Rust errors behind it. `S3Failure` reads from it the status, S3's own code and a reason for people.
- Some endpoints serve a range with status 200, which object_store refuses (rclone, which the development
  stack uses). `SignedRanges` reads ranges from them: signed URLs, read by httpx. It returns the bytes
  `[start, end)`, or raises the error that obstore would have raised for the same response. Such a range costs
  about ten times the CPU of a whole object by obstore, so whole objects are read without a range.
"""

import asyncio
import atexit
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cache, partial
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
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
from storage.threads import Threads

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ClientConfig


REQUEST_ERRORS: Final = (BaseError, OSError)
"""What a failed request raises: FileNotFoundError for a missing object, TimeoutError for an attempt's
timeout."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_LONGEST_MESSAGE = 300
_CAUSE = re.compile(r'message: "([^"]+)"|kind: (Timeout|TimedOut)\b|(dns error)')
_KEYS_ASKED_OF = re.compile(
    r"latest/api/token|security-credentials|169\.254\.170\.|AssumeRole|credential_process|NoKeys"
)
_NO_RANGE = "Received non-partial response when range requested"

_BUSY = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "ServiceUnavailable", "RequestLimitExceeded", "Throttling"}
)
_MISSING = frozenset({"NoSuchKey", "NotFound", ""})
_RETRIABLE = frozenset({408, 429})
_FINAL_HINTS: Final = {
    "AccessDenied": "may these keys use this bucket?",
    "403": "may these keys use this bucket?",
    "401": "may these keys use this bucket?",
    "InvalidAccessKeyId": "check TIDELOG_S3_ACCESS_KEY.",
    "SignatureDoesNotMatch": "check TIDELOG_S3_SECRET_KEY.",
    "RequestTimeTooSkewed": "set this machine's clock.",
    "XMinioStorageFull": "free some of its disk, or add drives.",
    "XMinioAdminBucketQuotaExceeded": "raise the bucket's quota.",
    "QuotaExceeded": "raise the bucket's quota.",
    "NoSuchBucket": "create the bucket, or correct TIDELOG_STORE_URL.",
    "InvalidBucketName": "correct TIDELOG_STORE_URL.",
    "AuthorizationHeaderMalformed": "check TIDELOG_S3_REGION.",
    "PermanentRedirect": "check TIDELOG_S3_REGION and the endpoint.",
    "301": "check TIDELOG_S3_REGION and the endpoint.",
}


_PASSING: Final = frozenset({"XMinioStorageFull"})
"""Refusals that a further attempt may still change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Failure:
    status: int
    """The status of the HTTP response; 0 if none came."""
    code: str
    """S3's own code, if the response named one."""
    message: str = ""
    """The store's own message, if the response had one."""
    reason: str
    asked_for_keys: bool = False
    """True if the request for credentials failed."""
    range_ignored: bool = False
    """True if a range was served without status 206."""

    @property
    def name(self) -> str:
        return self.code or str(self.status)

    @property
    def said(self) -> str:
        """What the store said: status, code and message."""
        words = [str(self.status) if self.status else "", self.code]
        name = " ".join(word for word in words if word)
        return f"{name}: {self.message}" if self.message else name

    @property
    def hint(self) -> str:
        """What to do about it; empty if nothing is known."""
        return _FINAL_HINTS.get("NoSuchBucket" if self.is_missing else self.name, "")

    @property
    def is_busy(self) -> bool:
        return self.code in _BUSY or self.status in (429, 503)

    @property
    def is_missing(self) -> bool:
        """True if there is no such object or, for a request without a key, no such bucket."""
        return self.status == 404 and self.code in _MISSING

    @property
    def is_final(self) -> bool:
        """True if no further attempt can change it."""
        if self.is_busy or self.range_ignored or not self.status:
            return False
        retriable = self.status in _RETRIABLE or self.status >= 500
        return not retriable or (self.name in _FINAL_HINTS and self.name not in _PASSING)


def read_failure(error: Exception) -> S3Failure:
    said = str(error)
    sentence, _, behind = said.partition("\n\nDebug source:")
    status, code, message = _STATUS.search(sentence), _CODE.search(sentence), _MESSAGE.search(sentence)
    found = int(status[1]) if status else 404 if isinstance(error, FileNotFoundError) else 0
    if not found and "redirect" in sentence:
        found = 301  # for a bucket in another region, object_store gives no status
    return S3Failure(
        status=found,
        code=code[1] if code else "",
        message=unescape(" ".join(message[1].split()))[:_LONGEST_MESSAGE] if message else "",
        reason=_reason(sentence, behind) or type(error).__name__,
        asked_for_keys=_KEYS_ASKED_OF.search(said) is not None,
        range_ignored=_NO_RANGE in sentence,
    )


def refusal(url: StoreUrl, failure: S3Failure) -> str:
    """The message for people if the store refused."""
    return (
        f"the object store {url} refused ({failure.said}). "
        f"{_sentence(failure.hint or 'check TIDELOG_STORE_URL.')}"
    )


def lasting(url: StoreUrl, failure: S3Failure, bounds: str) -> str:
    """The message for people if every attempt failed at the store."""
    end = f" {_sentence(failure.hint)}" if failure.hint else ""
    return f"the object store {url} answers with an error ({failure.said}), after {bounds}.{end}"


def _sentence(hint: str) -> str:
    return hint[:1].upper() + hint[1:]


def _reason(sentence: str, behind: str) -> str:
    """A short reason: the sentence without the XML, and the operating system's word if there is one."""
    first = sentence.split("<", 1)[0].strip().rstrip(":")
    cause = _CAUSE.search(behind)
    return f"{first}: {(cause[1] or cause[2] or cause[3]).lower()}" if cause else first


_URL_LASTS = timedelta(minutes=5)


class SignedRanges:
    def __init__(self, client: Client, settings: StoreSettings) -> None:
        from ssl import create_default_context

        import httpx  # 0.05 s, which only such an endpoint costs

        self._client = client
        self._errors = httpx.HTTPError
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(settings.s3_read_timeout_s, connect=settings.s3_connect_timeout_s),
            limits=httpx.Limits(max_connections=settings.s3_connections),
            verify=True
            if settings.s3_ca_file is None
            else create_default_context(cafile=settings.s3_ca_file),
            trust_env=False,
        )

    async def get(self, path: str, start: int, end: int | None) -> bytes | memoryview:
        signed = await obstore.sign_async(self._client, "GET", path, _URL_LASTS)
        asked = f"bytes={start}-" + ("" if end is None else str(end - 1))
        try:
            answer = await self._http.get(signed, headers={"Range": asked})
        except self._errors as error:
            raise GenericError(f"HTTP error: {error or type(error).__name__}") from error
        if not answer.is_success:
            raise GenericError(f"Server returned non-2xx status code: {answer.status_code}: {answer.text}")
        if "Content-Range" in answer.headers:
            return answer.content
        return memoryview(answer.content)[start:end]  # the endpoint ignores ranges

    async def close(self) -> None:
        await self._http.aclose()


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
        # obstore reads it from nowhere else, when it first needs its threads. With more threads the pieces of
        # an answer move between them, and each wakes the other. A GET then takes a sixth to a quarter more
        # CPU and no less time.
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
            }
            | _trusted(settings),
            retry_config={"max_retries": 0},
            config={"endpoint": url.endpoint} if url.endpoint else {},
            **_sse(settings),
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
            raise ValueError(f"[{start}, {end}) is not a range of bytes")
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
                raise StoreUnavailable(
                    f"the object store {self._url} lists the same page for ever (start-after)"
                )
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

    async def _attempts(
        self, attempt: Callable[[], Awaitable[Result]], key: ObjectKey | None = None
    ) -> Result:
        """Repeats `attempt` until it succeeds, fails for good, or reaches the call's bounds."""
        settings = self._settings
        failure: S3Failure | None = None
        cause: Exception | None = None
        try:
            async with asyncio.timeout(settings.s3_call_timeout_s):
                for number in range(settings.s3_attempts):
                    if number:
                        await asyncio.sleep(
                            random.uniform(
                                0, min(settings.s3_retry_cap_s, settings.s3_retry_base_s * 2**number)
                            )
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
            raise StoreUnavailable(
                f"no keys for the object store {self._url} ({failure.reason}); {hint}."
            ) from error
        if key is not None and failure.is_missing:
            raise ObjectNotFound(key) from error
        if failure.is_final:
            raise StoreUnavailable(refusal(self._url, failure)) from error

    def _given_up(self, failure: S3Failure | None) -> StoreUnavailable:
        if failure is not None and failure.is_busy:
            return StoreBusy(
                f"the object store {self._url} asks to slow down ({failure.said}), after {self._bounds()}"
            )
        if failure is not None and failure.status:
            return StoreUnavailable(lasting(self._url, failure, self._bounds()))
        where = self._url.endpoint or "AWS"
        reason = "no attempt was made" if failure is None else failure.reason
        return StoreUnavailable(
            f"cannot reach the object store {self._url} at {where} ({reason}), after {self._bounds()}. Is "
            "it running? Checked TIDELOG_STORE_URL."
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
        key=ObjectKey(found["path"]),
        size_bytes=found["size"],
        modified_at=found["last_modified"].astimezone(UTC),
    )


def _trusted(settings: StoreSettings) -> "ClientConfig":
    """Raises StoreUnavailable if the file of the CA cannot be read: another look may find it."""
    if settings.s3_ca_file is None:
        return {}
    try:
        return {"root_certificate": Path(settings.s3_ca_file).read_bytes()}
    except OSError as error:
        raise StoreUnavailable(f"TIDELOG_S3_CA_FILE: {error}") from error


def _sse(settings: StoreSettings) -> dict[str, Any]:
    """obstore sends these with each upload."""
    if not settings.s3_sse:
        return {}
    options: dict[str, Any] = {"server_side_encryption": settings.s3_sse}
    if settings.s3_sse == "aws:kms":
        options["sse_bucket_key_enabled"] = settings.s3_sse_bucket_key
        if settings.s3_sse_kms_key_id is not None:
            options["sse_kms_key_id"] = settings.s3_sse_kms_key_id
    return options


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
    from urllib3 import PoolManager

    endpoint = urlsplit(url.endpoint or "https://s3.amazonaws.com")
    client = Minio(
        endpoint=endpoint.netloc,
        secure=endpoint.scheme == "https",
        access_key=settings.s3_access_key,
        secret_key=settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else None,
        region=settings.s3_region,
        http_client=None if settings.s3_ca_file is None else PoolManager(ca_certs=settings.s3_ca_file),
    )
    try:
        client.make_bucket(bucket_name=url.bucket, location=settings.s3_region)
    except MinioException as error:
        if not client.bucket_exists(bucket_name=url.bucket):
            raise StoreUnavailable(f"the bucket of {url} cannot be created: {error}") from error
