"""Checks who owns the bucket when no agent has the role jobs, and when another Postgres answers.

Promises:
- A cluster whose agents all run without the role jobs notices within about a ratchet that its database is a copy.
- When another Postgres answers than before (a failover, a backup restored in its place), this agent serves no client
  before it has compared the bucket's owner with it.
- The store is asked only for these reasons.
"""

import asyncio
import contextlib
import random

from sequencer.cluster.ownership import DEFAULT_RATCHET_S, Ownership, OwnershipLost
from sequencer.database.database import SequencerUnavailable
from storage.stores.object_store import ObjectStore, StoreUnavailable

_DOUBTED_PAUSE_S = 1.0
"""Between two looks while no client is served."""


class OwnershipWatch:
    def __init__(self, ownership: Ownership, store: ObjectStore, cluster: str) -> None:
        self._ownership = ownership
        self._store = store
        self._cluster = cluster
        self._doubts = 0
        self._settled = 0
        self._doubted = asyncio.Event()

    @property
    def is_doubted(self) -> bool:
        """True while it is not known whether the bucket is this Postgres's: no client may be served."""
        return self._settled < self._doubts

    def doubt(self) -> None:
        """Another Postgres answers than before."""
        self._doubts += 1
        self._doubted.set()

    async def run(self) -> None:
        """Checks until cancelled. What it finds is in the database, where every agent's membership sees it."""
        ratchet_s = DEFAULT_RATCHET_S
        while True:
            doubts = self._doubts
            self._doubted.clear()
            with contextlib.suppress(SequencerUnavailable, StoreUnavailable, OwnershipLost):
                state = await self._ownership.state()
                ratchet_s = state.ratchet_s
                if self.is_doubted or (not state.is_confirmed and state.lost_because is None):
                    await self._ownership.check_object(self._store, self._cluster)
                self._settled = doubts
            pause_s = _DOUBTED_PAUSE_S if self.is_doubted else ratchet_s * random.uniform(0.8, 1.2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._doubted.wait()
