"""Objects in an S3 bucket, by aiobotocore: `s3://bucket/prefix?endpoint=http://...`.

Retries are our own, so that one bound holds for a whole call: attempts with full jitter, each bounded, all of them
within `s3_call_timeout_s`. SlowDown is `StoreBusy`, which callers take as backpressure. Payloads are not hashed for
the signature and checksums are sent and checked only where S3 insists: integrity comes from the CRC32C of segments
and batches, and some endpoints answer a range with the whole object's checksum.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC
from functools import cache, partial
from typing import Any, TypeVar

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from botocore.loaders import create_loader

from storage.identifiers import ObjectKey
from storage.keys import checked_key
from storage.object_store import (
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    StoreBusy,
    StoreSettings,
    StoreUnavailable,
    StoreUrl,
)

Result = TypeVar("Result")

_MOST_KEYS_PER_DELETE = 1000
_BUSY = frozenset(
    {
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "ServiceUnavailable",
        "RequestLimitExceeded",
        "Throttling",
        "503",
        "429",
    }
)
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_FINAL_HINTS = {
    "AccessDenied": "may these keys use this bucket?",
    "403": "may these keys use this bucket?",
    "InvalidAccessKeyId": "check TIDELOG_S3_ACCESS_KEY.",
    "SignatureDoesNotMatch": "check TIDELOG_S3_SECRET_KEY.",
    "RequestTimeTooSkewed": "set this machine's clock.",
    "NoSuchBucket": "create the bucket, or correct TIDELOG_STORE_URL.",
    "AuthorizationHeaderMalformed": "check TIDELOG_S3_REGION.",
    "PermanentRedirect": "check TIDELOG_S3_REGION and the endpoint.",
}


class S3Store(ObjectStore):
    def __init__(self, url: StoreUrl, settings: StoreSettings, client: Any, resources: AsyncExitStack) -> None:
        """Takes over the client and what keeps it alive; use `open`."""
        self._url = url
        self._settings = settings
        self._client = client
        self._resources = resources
        self._prefix = f"{url.prefix}/" if url.prefix else ""

    @classmethod
    async def open(cls, url: StoreUrl, settings: StoreSettings) -> "S3Store":
        """Makes no request, so that a store that is away at start-up is found by the first call."""
        secret = settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else None
        if (settings.s3_access_key is None) != (secret is None):
            raise ValueError("set both TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY, or neither")
        config = AioConfig(
            signature_version="s3v4",
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1},
            connect_timeout=settings.s3_connect_timeout_s,
            read_timeout=settings.s3_read_timeout_s,
            max_pool_connections=settings.s3_connections,
            tcp_keepalive=True,
        )
        session = get_session()
        session.register_component("data_loader", _service_models())
        resources = AsyncExitStack()
        client = await resources.enter_async_context(
            session.create_client(
                "s3",
                region_name=settings.s3_region,
                endpoint_url=url.endpoint,
                aws_access_key_id=settings.s3_access_key,
                aws_secret_access_key=secret,
                config=config,
            )
        )
        return cls(url, settings, client, resources)

    async def put(self, key: ObjectKey, chunks: Sequence[bytes | memoryview]) -> None:
        where = self._where(key)
        body = chunks[0] if len(chunks) == 1 and isinstance(chunks[0], bytes) else b"".join(chunks)
        # Without the key: what a PUT does not find is the bucket or the way to it, never the object.
        await self._attempts(lambda: self._client.put_object(**where, Body=body))

    async def get(self, key: ObjectKey, start: int = 0, end: int | None = None) -> bytes:
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"[{start}, {end}) is no range of bytes")
        if start == end:
            await self.head(key)
            return b""
        return await self._attempts(lambda: self._get(key, start, end), key)

    async def head(self, key: ObjectKey) -> ObjectInfo:
        where = self._where(key)
        found = await self._attempts(lambda: self._client.head_object(**where), key)
        return ObjectInfo(key=key, size_bytes=found["ContentLength"], modified_at=found["LastModified"].astimezone(UTC))

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        names = [self._where(key)["Key"] for key in keys]
        for first in range(0, len(names), _MOST_KEYS_PER_DELETE):
            some = names[first : first + _MOST_KEYS_PER_DELETE]
            await self._attempts(partial(self._delete, some))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        request = {"Bucket": self._url.bucket, "Prefix": self._prefix + prefix}
        while True:
            page = await self._attempts(lambda: self._client.list_objects_v2(**request))
            for found in page.get("Contents", ()):
                yield ObjectInfo(
                    key=ObjectKey(found["Key"].removeprefix(self._prefix)),
                    size_bytes=found["Size"],
                    modified_at=found["LastModified"].astimezone(UTC),
                )
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    async def probe(self) -> None:
        await self._attempts(lambda: self._client.head_bucket(Bucket=self._url.bucket))

    async def ensure_bucket(self) -> None:
        """Create the bucket unless it is there: for development stacks; elsewhere a missing bucket is a mistake to
        report.
        """
        region = self._settings.s3_region
        request: dict[str, Any] = {"Bucket": self._url.bucket}
        if region != "us-east-1":
            request["CreateBucketConfiguration"] = {"LocationConstraint": region}

        async def create() -> None:
            try:
                await self._client.create_bucket(**request)
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

        await self._attempts(create)

    async def close(self) -> None:
        await self._resources.aclose()

    def _where(self, key: ObjectKey) -> dict[str, str]:
        return {"Bucket": self._url.bucket, "Key": self._prefix + checked_key(key)}

    async def _get(self, key: ObjectKey, start: int, end: int | None) -> bytes:
        request = self._where(key)
        if start or end is not None:
            request["Range"] = f"bytes={start}-" + ("" if end is None else str(end - 1))
        try:
            found = await self._client.get_object(**request)
        except ClientError as error:
            if _status(error) == 416:  # the range begins at or beyond the end
                return b""
            raise
        async with found["Body"] as body:
            data: bytes = await body.read()
        if "ContentRange" in found or "Range" not in request:  # not the status: rclone answers a range with 200
            return data
        return data[start:end]  # an endpoint that does not know ranges

    async def _delete(self, names: Sequence[str]) -> None:
        request = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        answer = await self._client.delete_objects(Bucket=self._url.bucket, Delete=request)
        failed = [error for error in answer.get("Errors", ()) if error.get("Code") not in _MISSING]
        if failed:
            raise ClientError({"Error": failed[0], "ResponseMetadata": {"HTTPStatusCode": 500}}, "DeleteObjects")

    async def _attempts(self, attempt: Callable[[], Awaitable[Result]], key: ObjectKey | None = None) -> Result:
        """Run `attempt` until it succeeds, fails for good, or the call's bounds are reached."""
        settings = self._settings
        failure: Exception | None = None
        try:
            async with asyncio.timeout(settings.s3_call_timeout_s):
                for number in range(settings.s3_attempts):
                    if failure is not None:
                        await asyncio.sleep(
                            random.uniform(0, min(settings.s3_retry_cap_s, settings.s3_retry_base_s * 2**number))
                        )
                    try:
                        async with asyncio.timeout(settings.s3_attempt_timeout_s):
                            return await attempt()
                    except (ClientError, BotoCoreError, aiohttp.ClientError, OSError) as error:
                        failure = error
                        self._raise_if_final(error, key)
        except TimeoutError as error:  # the call's own bound; an attempt's is an OSError and was caught above
            failure = failure or error
        raise self._given_up(failure) from failure

    def _raise_if_final(self, error: Exception, key: ObjectKey | None) -> None:
        """Raise what no further attempt can change."""
        if isinstance(error, ParamValidationError):
            raise ValueError(f"{self._url}: {error}") from error
        if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
            hint = "set TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY, or give this machine a role"
            raise StoreUnavailable(f"no keys for the object store {self._url} ({error}); {hint}.") from error
        if not isinstance(error, ClientError):
            return
        code = _code(error)
        if key is not None and code in _MISSING:
            raise ObjectNotFound(key) from error
        if key is None and code in _MISSING:
            code = "NoSuchBucket"
        retriable = code in _BUSY or _status(error) in (408, 429) or _status(error) >= 500
        if code in _FINAL_HINTS or not retriable:
            hint = _FINAL_HINTS.get(code, "check TIDELOG_STORE_URL.")
            raise StoreUnavailable(f"the object store {self._url} refused ({code}): {hint}") from error

    def _given_up(self, failure: Exception | None) -> StoreUnavailable:
        if isinstance(failure, ClientError) and (_code(failure) in _BUSY or _status(failure) in (429, 503)):
            return StoreBusy(
                f"the object store {self._url} asks to slow down ({_code(failure)}), after {self._bounds()}"
            )
        where = self._url.endpoint or "AWS"
        reason = str(failure) or type(failure).__name__
        return StoreUnavailable(
            f"cannot reach the object store {self._url} at {where} ({reason}), after {self._bounds()}. Is it running? "
            "Checked TIDELOG_STORE_URL."
        )

    def _bounds(self) -> str:
        return f"{self._settings.s3_attempts} attempts or {self._settings.s3_call_timeout_s:g} s"


@cache
def _service_models() -> Any:
    """botocore's descriptions of S3, parsed once per process instead of once per store."""
    return create_loader()


def _code(error: ClientError) -> str:
    details: Mapping[str, str] = error.response.get("Error", {})
    return details.get("Code") or str(_status(error))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
