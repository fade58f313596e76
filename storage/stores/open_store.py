"""Opens an object store from a URL: the one place that knows the schemes."""

from pathlib import Path

from storage.stores.inline_objects import InlineObjects
from storage.stores.local_store import LocalStore
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore, StoreSettings, StoreUrl
from storage.stores.s3_store import S3Store
from storage.threads import Threads


async def open_store(url: str, settings: StoreSettings) -> ObjectStore:
    """Opens the store that `url` names. The caller closes it.

    Raises ValueError for a URL that names no store, and StoreUnavailable for a directory that cannot be used.
    An S3 endpoint is not queried yet: the first call finds a store that is away, so that agents can start
    degraded (docs/design/failure-rules.md#start-and-stop).
    """
    return InlineObjects(await _open(StoreUrl.parse(url), settings))


async def _open(where: StoreUrl, settings: StoreSettings) -> ObjectStore:
    if where.scheme == "memory":
        return MemoryStore.named(where.bucket)
    if where.scheme == "file":
        return await Threads("open store", 1).run(LocalStore, Path(where.path), settings.file_store_threads)
    return await S3Store.open(where, settings)
