"""Decides whether the agent should get traffic, for `/ready`, and whether its database owns the bucket
(docs/design/failure-rules.md#start-and-stop).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

from agent.http.readiness import Check, NotReady
from agent.settings import AgentSettings
from agent.write_path.write_path import WritePath
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.cluster.ownership import DEFAULT_RATCHET_S, Ownership, OwnershipLost
from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import SequencerUnavailable
from storage.stores.object_store import ObjectStore, StoreUnavailable


class Health:
    """The checks. Each raises with a message that a person can act on."""

    def __init__(
        self,
        sequencer: Callable[[], Sequencer | None],
        store: Callable[[], ObjectStore | None],
        membership: Callable[[], Membership | None],
        write_path: Callable[[], WritePath | None],
        settings: AgentSettings,
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._membership = membership
        self._write_path = write_path
        self._settings = settings

    def checks(self, is_started: Callable[[], bool], takes_requests: Callable[[], bool]) -> tuple[Check, ...]:
        async def serving() -> None:
            membership = self._membership()
            if membership is None or not is_started():
                raise NotReady("the agent is starting")
            if membership.lost_because is not None:
                raise NotReady("the agent does not serve while its database does not own the bucket")
            if not membership.is_serving():
                raise NotReady("the agent's lease in the ring could not be renewed; is the database there?")
            if not takes_requests():
                raise NotReady("the agent is about to take requests again")

        return (
            Check(name="store", run=self.check_store),
            Check(name="database", run=self.check_database, why_late=self._why_unreachable),
            Check(name="store identity", run=self.check_store_identity, why_late=self._why_unreachable),
            Check(name="ownership", run=self.check_ownership, why_late=self._why_unreachable),
            Check(name="writes", run=self.check_writes),
            Check(name="agent", run=serving),
        )

    def _why_unreachable(self) -> SequencerUnavailable | None:
        sequencer = self._sequencer()
        return None if sequencer is None else sequencer.database.unreachable()

    async def check_store(self) -> None:
        """Raises StoreUnavailable, NotReady."""
        store = self._store()
        if store is None:
            raise NotReady("the object store was not opened yet")
        await store.probe()

    async def check_writes(self) -> None:
        """Raises NotReady, with the store's or the database's own message, if the last uploads or commits
        failed.
        """
        write_path = self._write_path()
        complaint = None if write_path is None else write_path.complaint()
        if complaint is not None:
            raise NotReady(complaint)

    async def check_store_identity(self) -> None:
        """Raises NotReady if store and database do not belong together, StoreUnavailable,
        SequencerUnavailable. Once they were found to belong together, no other database is queried
        (`Database.keep_to`).
        """
        sequencer, store = self._sequencer(), self._store()
        if sequencer is None or store is None:
            raise NotReady("the object store and the database were not reached yet")
        if sequencer.database.is_kept_to_one:
            return
        try:
            await sequencer.store_identity.check(store, self._settings.cluster, self._settings.store_url)
        except WrongStore as wrong:
            raise NotReady(str(wrong)) from wrong

    async def check_ownership(self) -> None:
        """Raises NotReady if another database owns the bucket, SequencerUnavailable."""
        sequencer = self._sequencer()
        if sequencer is None:
            raise NotReady("the database was not reached yet")
        because = (await sequencer.ownership.state()).lost_because
        if because is not None:
            raise NotReady(because)

    async def check_database(self) -> None:
        """Raises SequencerUnavailable, or NotReady if Postgres could lose what it acknowledges."""
        sequencer = self._sequencer()
        if sequencer is None:
            raise SequencerUnavailable("the database was not opened yet")
        complaints = (await sequencer.cluster.health()).complaints()
        if complaints:
            raise NotReady("; ".join(complaints))


_DOUBTED_PAUSE_S = 1.0
"""The pause between two looks while no client is served."""


class OwnershipWatch:
    """Checks which database owns the bucket, if no agent has the role jobs, and after another Postgres became
    the primary.

    Promises:
    - If no agent of a cluster has the role jobs, the cluster notices within about a ratchet that its database
      is a copy.
    - After another Postgres became the primary (a failover, or a restored backup in its place), this agent
      serves no client before it has compared the bucket's owner with it.
    - The store is queried only for these reasons.
    """

    def __init__(self, ownership: Ownership, store: ObjectStore, cluster: str) -> None:
        self._ownership = ownership
        self._store = store
        self._cluster = cluster
        self._doubts = 0
        self._settled = 0
        self._doubted = asyncio.Event()

    @property
    def is_doubted(self) -> bool:
        """True until it is known that this Postgres owns the bucket: no client may be served."""
        return self._settled < self._doubts

    def doubt(self) -> None:
        """Another Postgres became the primary."""
        self._doubts += 1
        self._doubted.set()

    async def run(self) -> None:
        """Checks until cancelled. The result is in the database, where every agent's membership sees it."""
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
