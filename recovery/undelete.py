"""Brings back objects that a bucket with versions still has.

Promises: an object that comes back has the size that the log knows. Nothing else in the bucket changes.
"""

from typing import Final, Protocol

import urllib3
from minio.commonconfig import CopySource
from minio.error import InvalidResponseError, MinioException, S3Error

from storage.identifiers import ObjectKey
from storage.stores.minio_client import minio_client
from storage.stores.object_store import StoreSettings, StoreUnavailable, StoreUrl
from storage.threads import Threads

_KEPT: Final = ("Enabled", "Suspended")
"""What S3 answers for a bucket with versions."""


class Undelete(Protocol):
    """Brings deleted objects back, if the store can."""

    async def is_possible(self) -> bool:
        """True if the bucket keeps versions."""

    async def undelete(self, key: ObjectKey, size_bytes: int) -> bool:
        """True if the object is back, or would be: it had this size when it was deleted."""


class NoVersions:
    """A store without versions: a directory, or memory."""

    async def is_possible(self) -> bool:
        return False

    async def undelete(self, key: ObjectKey, size_bytes: int) -> bool:  # noqa: ARG002
        return False


class BucketVersions:
    """`changes_bucket` False: only tells what would come back."""

    def __init__(self, url: StoreUrl, settings: StoreSettings, *, changes_bucket: bool) -> None:
        secret_key = settings.s3_secret_key
        self._client = minio_client(
            url,
            access_key=settings.s3_access_key,
            secret_key=secret_key.get_secret_value() if secret_key else None,
            region=settings.s3_region,
            connections=settings.s3_connections,
            connect_timeout_s=settings.s3_connect_timeout_s,
            read_timeout_s=settings.s3_read_timeout_s,
            attempts=settings.s3_attempts,
            retry_base_s=settings.s3_retry_base_s,
            ca_file=settings.s3_ca_file,
        )
        self._bucket = url.bucket
        self._prefix = f"{url.prefix}/" if url.prefix else ""
        self._changes_bucket = changes_bucket
        self._threads = Threads("versions", settings.s3_connections)

    async def is_possible(self) -> bool:
        return await self._threads.run(self._keeps_versions)

    async def undelete(self, key: ObjectKey, size_bytes: int) -> bool:
        return await self._threads.run(self._undelete, key, size_bytes)

    def _keeps_versions(self) -> bool:
        try:
            return self._client.get_bucket_versioning(bucket_name=self._bucket).status in _KEPT
        except (InvalidResponseError, S3Error) as error:
            if isinstance(error, S3Error) and error.code == "AccessDenied":
                raise StoreUnavailable(
                    f"cannot ask whether s3://{self._bucket} keeps versions: the keys lack "
                    "s3:GetBucketVersioning. Grant it, or set TIDELOG_RECOVERY_UNDELETE=false"
                ) from error
            return False  # the store does not know this request
        except (MinioException, urllib3.exceptions.HTTPError) as error:
            raise StoreUnavailable(f"s3://{self._bucket}: {error}") from error

    def _undelete(self, key: ObjectKey, size_bytes: int) -> bool:
        name = self._prefix + key
        try:
            found = self._client.list_objects(bucket_name=self._bucket, prefix=name, include_version=True)
            right = [
                one
                for one in found
                if one.object_name == name and not one.is_delete_marker and one.size == size_bytes
            ]
            if not right:
                return False
            newest = max(right, key=lambda one: one.last_modified.timestamp() if one.last_modified else 0.0)
            if self._changes_bucket:
                source = CopySource(bucket_name=self._bucket, object_name=name, version_id=newest.version_id)
                self._client.copy_object(bucket_name=self._bucket, object_name=name, source=source)
        except (MinioException, urllib3.exceptions.HTTPError) as error:
            if "NotImplemented" in str(error):
                return False  # the store claims to keep versions, and has no list of them
            # Never report this as "missing": recovery gives up missing objects.
            raise StoreUnavailable(f"s3://{self._bucket}: the versions of {name}: {error}") from error
        return True


def undelete_for(store_url: str, settings: StoreSettings, *, changes_bucket: bool) -> Undelete:
    """Returns the way for this store. Raises ValueError for a URL that names no store."""
    url = StoreUrl.parse(store_url)
    return (
        BucketVersions(url, settings, changes_bucket=changes_bucket) if url.scheme == "s3" else NoVersions()
    )
