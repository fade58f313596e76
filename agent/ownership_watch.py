"""Checks who owns the bucket, also where no agent has the role jobs (`sequencer/ownership.py`).

Promises:
- A cluster whose agents all run without the role jobs notices within about a ratchet that its database is a copy.
- The store is asked only while no ratchet was confirmed lately.
"""

import asyncio
import contextlib
import random

from sequencer.database import SequencerUnavailable
from sequencer.ownership import DEFAULT_RATCHET_S, Ownership, OwnershipLost
from storage.object_store import ObjectStore, StoreUnavailable


class OwnershipWatch:
    def __init__(self, ownership: Ownership, store: ObjectStore, cluster: str) -> None:
        self._ownership = ownership
        self._store = store
        self._cluster = cluster

    async def run(self) -> None:
        """Checks until cancelled. What it finds is in the database, where every agent's membership sees it."""
        ratchet_s = DEFAULT_RATCHET_S
        while True:
            with contextlib.suppress(SequencerUnavailable, StoreUnavailable, OwnershipLost):
                state = await self._ownership.state()
                ratchet_s = state.ratchet_s
                if not state.is_confirmed and state.lost_because is None:
                    await self._ownership.look(self._store, self._cluster)
            await asyncio.sleep(ratchet_s * random.uniform(0.8, 1.2))
