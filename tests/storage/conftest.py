"""The four object stores of the contract suite, and a link to a real endpoint that can fail."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from storage.segments.keys import checked_key
from storage.stores.object_store import ObjectChanged, ObjectStore, StoreSettings, StoreUrl
from storage.stores.open_store import open_store
from storage.stores.s3_store import S3Store
from tests.storage.stores.unreliable_link import UnreliableLink
from tests.support.s3 import BUCKET
from tidelog.embedded.s3_endpoint import S3Endpoint

_numbers = itertools.count(1)


async def ignores_conditions(store: ObjectStore) -> bool:
    """True if the store writes whatever the condition is, as rclone does."""
    key = checked_key(f"conditions/{next(_numbers)}")
    await store.put_if(key, [b"first"], None)
    try:
        await store.put_if(key, [b"second"], None)
    except ObjectChanged:
        return False
    return True


@pytest.fixture(params=["memory", "local", "rclone", "minio"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    prefix = f"contract/{next(_numbers)}"
    settings = StoreSettings()
    if request.param == "memory":
        url = f"memory://{prefix.replace('/', '-')}"
    elif request.param == "local":
        url = f"file://{tmp_path}/store"
    else:
        endpoint = request.getfixturevalue("s3_endpoint" if request.param == "rclone" else "minio_endpoint")
        settings = StoreSettings(
            s3_access_key=endpoint.access_key, s3_secret_key=SecretStr(endpoint.secret_key)
        )
        url = endpoint.store_url(BUCKET, prefix)
    store = await open_store(url, settings)
    if isinstance(store, S3Store):
        await store.ensure_bucket()
    yield store
    await store.close()


@pytest.fixture
async def link(s3_endpoint: S3Endpoint) -> AsyncIterator[UnreliableLink]:
    """A TCP link to the real endpoint that can be made to fail."""
    async with UnreliableLink.to(s3_endpoint.url) as opened:
        yield opened


@pytest.fixture
async def linked_store(link: UnreliableLink, store_settings: StoreSettings) -> AsyncIterator[S3Store]:
    """A store that reaches the endpoint over the link, and gives up soon."""
    settings = store_settings.model_copy(
        update={
            "s3_attempts": 3,
            "s3_retry_base_s": 0.01,
            "s3_attempt_timeout_s": 1.0,
            "s3_read_timeout_s": 1.0,
            "s3_call_timeout_s": 6.0,
        }
    )
    url = f"s3://{BUCKET}/link-{next(_numbers)}?endpoint={link.url}"
    store = await S3Store.open(StoreUrl.parse(url), settings)
    yield store
    await store.close()
