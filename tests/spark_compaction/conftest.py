"""Per test a log, and an agent's HTTP side with the catalog."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from agent.http import iceberg
from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from spark_compaction.settings import CompactionSettings
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.spark_compaction.log import Log

_START_TIMEOUT_S = 60.0


@pytest.fixture
def log(sequencer: Sequencer, store: ObjectStore) -> Log:
    return Log(sequencer=sequencer, store=store)


@pytest.fixture
def settings(
    database_url: str, store_url: str, store_settings: StoreSettings, catalog_url: str
) -> CompactionSettings:
    """Small bounds, so that a test's few records make several tasks."""
    return CompactionSettings(
        **store_settings.model_dump(),
        database_url=database_url,
        store_url=store_url,
        http_url=catalog_url,
        compact_task_bytes=4096,
    )


@pytest.fixture
def catalog_url(database_url: str, store_url: str, store_settings: StoreSettings) -> Iterator[str]:
    """An HTTP server with the catalog's routes, on a loop of its own, as an agent has."""
    server = CatalogServer(database_url, store_url, store_settings)
    yield server.start()
    server.stop()


@pytest.fixture
async def local_log(sequencer: Sequencer, local_url: str) -> Log:
    return Log(sequencer=sequencer, store=await open_store(local_url, StoreSettings()))


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def local_settings(database_url: str, local_url: str) -> Iterator[CompactionSettings]:
    server = CatalogServer(database_url, local_url, StoreSettings())
    yield CompactionSettings(database_url=database_url, store_url=local_url, http_url=server.start())
    server.stop()


class CatalogServer:
    def __init__(self, database_url: str, store_url: str, store_settings: StoreSettings) -> None:
        self._database_url = database_url
        self._store_url = store_url
        self._store_settings = store_settings
        self._sequencer: Sequencer | None = None
        self._store: ObjectStore | None = None
        app = FastAPI(lifespan=self._lifespan)
        file_io = iceberg.file_io_config(store_url, store_settings)
        app.include_router(iceberg.router(lambda: self._sequencer, lambda: self._store, file_io))
        self._server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
        self._thread = threading.Thread(target=asyncio.run, args=(self._server.serve(),), daemon=True)

    def start(self) -> str:
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(_START_TIMEOUT_S / 0.02)):
            if self._server.started:
                port = self._server.servers[0].sockets[0].getsockname()[1]
                return f"http://127.0.0.1:{port}"
            waited.wait(0.02)
        raise TimeoutError("the catalog's server did not start")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_START_TIMEOUT_S)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._sequencer = await Sequencer.open(self._database_url, SequencerSettings())
        self._store = await open_store(self._store_url, self._store_settings)
        yield
        await self._store.close()
        await self._sequencer.close()
