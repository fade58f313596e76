"""This agent's place among the live agents, held by a lease in Postgres (DESIGN §7, §10).

Promises: the lease counts from the moment its renewal was sent, on the monotonic clock, and ends early by a margin,
so that `is_serving` is False before anyone may take this agent for dead. While Postgres is away the last view is
kept. An agent whose lease was lost joins again."""

import asyncio
import logging
import time
from collections.abc import Callable

from cache_ring.ring import Ring
from cache_ring.settings import CacheRingSettings
from sequencer.agents import AgentAddress, Agents, LiveAgent
from sequencer.database import CommitOutcomeUnknown, SequencerUnavailable

_log = logging.getLogger(__name__)

_AWAY = (SequencerUnavailable, CommitOutcomeUnknown, TimeoutError)


class Membership:
    """One per agent; `run` owns the lease, everything else only looks."""

    def __init__(
        self,
        agents: Agents,
        address: AgentAddress,
        settings: CacheRingSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents = agents
        self._address = address
        self._settings = settings
        self._clock = clock
        self._self: LiveAgent | None = None
        self._serves_until_s = float("-inf")
        self._ring = Ring.of(())
        self._joined = asyncio.Event()
        self._has_left = False
        self._database_away = False
        self.last_renewal_s: float | None = None
        """The monotonic time at which the last successful renewal was sent."""

    @property
    def self_(self) -> LiveAgent | None:
        """This agent as others see it; None before it has joined."""
        return self._self

    @property
    def ring(self) -> Ring:
        """The last view of the cluster."""
        return self._ring

    @property
    def zone(self) -> str:
        return self._address.zone

    @property
    def lost_because(self) -> str | None:
        """Why the bucket is not this database's, as the last renewal found; None if it is."""
        return self._agents.lost_because

    def is_serving(self, now_s: float | None = None) -> bool:
        """Whether this agent's lease holds at a monotonic time (by default now), and the bucket is its database's."""
        return (self._clock() if now_s is None else now_s) < self._serves_until_s and self.lost_because is None

    async def wait_joined(self, timeout_s: float) -> LiveAgent:
        """Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while (joined := self._self) is None:
                await self._joined.wait()
        return joined

    async def run(self) -> None:
        """Keep the lease and the view until cancelled; never raises because Postgres is away."""
        while True:
            try:
                await self._step()
                if self._database_away:
                    _log.info("membership: the database is back", extra={"node_id": self._self and self._self.node_id})
                self._database_away = False
            except _AWAY as error:
                if not self._database_away:
                    _log.warning("membership: cannot renew, keeping the last view", extra={"error": str(error)})
                self._database_away = True
            await asyncio.sleep(self._settings.membership_renew_s)

    async def refresh(self) -> None:
        """Look at once who is alive, e.g. after a peer stopped answering."""
        async with asyncio.timeout(self._settings.membership_lease_s):
            live = await self._agents.live()
        if live != self._ring.agents:
            self._ring = Ring.of(live)

    async def leave(self) -> None:
        """Stop serving and tell the others, for good; a database that is away is no error: the lease then runs out."""
        self._has_left = True
        leaving, self._self = self._self, None
        self._serves_until_s = float("-inf")
        self._joined.clear()
        if leaving is None:
            return
        try:
            async with asyncio.timeout(self._settings.membership_renew_s):
                await self._agents.leave(leaving.node_id, leaving.incarnation)
        except _AWAY as error:
            _log.warning("membership: could not leave, the lease will run out", extra={"error": str(error)})

    async def _step(self) -> None:
        if self._has_left:
            return
        async with asyncio.timeout(self._settings.membership_lease_s / 2):  # leaves time for another attempt
            if self._self is None or not await self._renew(self._self):
                await self._join()
        await self.refresh()

    async def _renew(self, current: LiveAgent) -> bool:
        sent_s = self._clock()
        if await self._agents.renew(current.node_id, current.incarnation, self._settings.membership_lease_s):
            self._hold(sent_s)
            return True
        _log.warning("membership: the lease was lost, joining again", extra={"node_id": current.node_id})
        self._self = None
        self._serves_until_s = float("-inf")
        self._joined.clear()
        return False

    async def _join(self) -> None:
        sent_s = self._clock()
        joined = await self._agents.join(self._address, self._settings.membership_lease_s)
        if self._has_left:
            await self._agents.leave(joined.node_id, joined.incarnation)
            return
        self._self = joined
        self._hold(sent_s)
        self._joined.set()

    def _hold(self, sent_s: float) -> None:
        if not self._has_left:
            self._serves_until_s = sent_s + self._settings.membership_lease_s - self._settings.membership_margin_s
            self.last_renewal_s = sent_s
