"""The log that a compaction or a TTL works on: its sequencer, once its store is known to be there and to be its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sequencer.client import Sequencer
from spark_compaction.settings import CompactionSettings
from storage.open_store import open_store


@asynccontextmanager
async def open_log(settings: CompactionSettings) -> AsyncIterator[Sequencer]:
    """Raises WrongStore, SequencerUnavailable or StoreUnavailable before Spark is started, which takes long."""
    sequencer = await Sequencer.open(settings.database_url)
    try:
        store = await open_store(settings.store_url, settings)
        try:
            await sequencer.store_identity.check(store, settings.cluster, settings.store_url)
        finally:
            await store.close()
        yield sequencer
    finally:
        await sequencer.close()
