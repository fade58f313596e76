"""The log for a compaction or a TTL: its sequencer, once its store is known to exist and to be the right one.

Promise: the ownership of the bucket is confirmed before the work begins, and stays confirmed while it runs,
with or without an agent that keeps house (`sequencer/cluster/ownership.py`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sequencer.client import Sequencer
from sequencer.cluster.ownership import Confirmed, OwnershipUnconfirmed, Watching
from sequencer.cluster.ownership_rules import Lost
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from spark_compaction.settings import CompactionSettings
from storage.stores.object_store import ObjectStore, StoreUnavailable
from storage.stores.open_store import open_store


@asynccontextmanager
async def open_log(settings: CompactionSettings) -> AsyncIterator[Sequencer]:
    """Raises WrongStore, OwnershipUnconfirmed, SequencerUnavailable or StoreUnavailable before Spark starts,
    which takes long. After a start of Postgres it waits until the bucket was watched for long enough.
    """
    sequencer = await Sequencer.open(settings.database_url, settings)
    try:
        store = await open_store(settings.store_url, settings)
        try:
            await sequencer.store_identity.check(store, settings.cluster, settings.store_url)
            ratchet_s = (await sequencer.ownership.state()).ratchet_s
            await _ratchet_first(sequencer, store, settings, ratchet_s)
            keeping = asyncio.create_task(_keep_ratcheting(sequencer, store, settings, ratchet_s))
            try:
                yield sequencer
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
        finally:
            await store.close()
    finally:
        await sequencer.close()


async def _ratchet_first(
    sequencer: Sequencer, store: ObjectStore, settings: CompactionSettings, ratchet_s: float
) -> None:
    while True:
        found = await _ratchet(sequencer, store, settings, ratchet_s)
        if not isinstance(found, Watching):
            return await sequencer.ownership.demand()
        await asyncio.sleep(min(found.left_s, ratchet_s))


async def _ratchet(
    sequencer: Sequencer, store: ObjectStore, settings: CompactionSettings, ratchet_s: float
) -> Confirmed | Watching | Lost:
    try:
        return await sequencer.ownership.ratchet(store, settings.cluster, ratchet_s=ratchet_s)
    except CommitOutcomeUnknown as unknown:
        raise SequencerUnavailable(str(unknown)) from unknown


async def _keep_ratcheting(
    sequencer: Sequencer, store: ObjectStore, settings: CompactionSettings, ratchet_s: float
) -> None:
    """Renews the ownership. A failure is no error yet: the publish checks the ownership itself."""
    while True:
        await asyncio.sleep(ratchet_s)
        with contextlib.suppress(OwnershipUnconfirmed, SequencerUnavailable, StoreUnavailable):
            await _ratchet(sequencer, store, settings, ratchet_s)
