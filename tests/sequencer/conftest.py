"""A store that holds conditions and one that ignores them."""

from collections.abc import AsyncIterator

import pytest

from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store


@pytest.fixture(params=["memory", "rclone"])
async def any_store(
    request: pytest.FixtureRequest, store_url: str, store_settings: StoreSettings
) -> AsyncIterator[ObjectStore]:
    """Empty; rclone ignores the conditions of puts."""
    opened = MemoryStore() if request.param == "memory" else await open_store(store_url, store_settings)
    yield opened
    await opened.close()
