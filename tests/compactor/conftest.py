"""A store of each kind that a cluster may have."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store


@pytest.fixture(params=["local", "s3"])
async def any_store(
    request: pytest.FixtureRequest, tmp_path: Path, store_url: str, store_settings: StoreSettings
) -> AsyncIterator[ObjectStore]:
    """The local directory and the S3 endpoint in turn, empty."""
    opened = await open_store(store_url if request.param == "s3" else f"file://{tmp_path}", store_settings)
    yield opened
    await opened.close()


@pytest.fixture
async def local_store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """A local directory, for what does not depend on the kind of store."""
    opened = await open_store(f"file://{tmp_path}", StoreSettings())
    yield opened
    await opened.close()
