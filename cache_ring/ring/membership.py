"""This agent's place among the live agents, held by a lease in Postgres (docs/design/membership.md#leases).

There are three views. `leased` has every agent with a valid lease. `ring` is the same without suspects
(`suspects.py`). `named` leaves out only the silent suspects: it has the brokers in Metadata.

- If a wrong view only costs time, use `ring`: routing, coordinators (fenced by epochs), the owner of a page,
  subscriptions.
- If the effect lasts, use `leased`: the ids that a writer reserves, whether this agent has joined.
- If safety depends on it, ask Postgres: node ids, housekeeping, jobs.

Promises:
- The lease counts from the moment when its renewal was sent, on the monotonic clock. It ends early by a
  margin, so `is_serving` is False before any agent may take this one for dead.
- While Postgres is away the last view is kept.
- An agent that lost its lease joins again.
- Once it has learned of an erasure, its pages are dropped before it says so.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Set

from cache_ring.peers.peer_tls import PeerTls
from cache_ring.ring.ring import Ring
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import AgentAddress, Agents, LiveAgent, PeerSecret, Shown
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from storage.identifiers import NodeId

log = logging.getLogger("tidelog")

_AWAY = (SequencerUnavailable, CommitOutcomeUnknown, TimeoutError)


class Membership:
    """One per agent. `run` owns the lease; everything else only reads."""

    def __init__(
        self,
        agents: Agents,
        address: AgentAddress,
        settings: CacheRingSettings,
        clock: Callable[[], float] = time.monotonic,
        peer_tls: PeerTls | None = None,
    ) -> None:
        """`peer_tls`: how this agent connects to others."""
        self.peer_tls = peer_tls
        self._agents = agents
        self._address = address
        self._settings = settings
        self._clock = clock
        self._self: LiveAgent | None = None
        self._serves_until_s = float("-inf")
        self._shown: Shown | None = None
        self._leased = self._ring = self._named = Ring.of(())
        self._left_out: Set[NodeId] = frozenset()
        self._unnamed: Set[NodeId] = frozenset()
        self._on_change: list[Callable[[], None]] = []
        self._on_erasure: list[Callable[[int], None]] = []
        self._erased_to = 0
        self._joined = asyncio.Event()
        self._renew_now = asyncio.Event()
        self._has_left = False
        self._database_away = False
        self.silences = 0
        """How often an agent fell silent: its clients hear nothing either, not even a lost connection."""
        self.last_renewal_s: float | None = None
        """The monotonic time at which the last successful renewal was sent."""
        self.looked_s = float("-inf")
        """The monotonic time of the last view of live agents, or a little earlier."""

    @property
    def self_(self) -> LiveAgent | None:
        """This agent as others see it; None before it has joined."""
        return self._self

    @property
    def ring(self) -> Ring:
        """The last view of the cluster without suspects: clients are sent to these agents."""
        return self._ring

    @property
    def named(self) -> Ring:
        """The agents that Metadata lists as brokers. A refused suspect is among them: if the old leader is
        still listed, librdkafka moves its partitions to the new leader at once; otherwise up to a second
        later. A silent suspect is not among them: librdkafka then sends its unanswered requests to the new
        leader."""
        return self._named

    @property
    def leased(self) -> Ring:
        """All agents with a valid lease in the last view."""
        return self._leased

    @property
    def zone(self) -> str:
        return self._address.zone

    def peer_secrets(self) -> tuple[PeerSecret, ...]:
        """The secrets that prove this agent to its peers, as of the last renewal."""
        return self._agents.peer_secrets()

    @property
    def lost_because(self) -> str | None:
        """Why this database does not own the bucket, as of the last renewal; None if it does."""
        return self._agents.lost_because

    def is_serving(self, now_s: float | None = None) -> bool:
        """True if this agent's lease holds at a monotonic time (default: now), and its database owns the
        bucket."""
        return (
            self._clock() if now_s is None else now_s
        ) < self._serves_until_s and self.lost_because is None

    def when_changed(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever `ring` has changed."""
        self._on_change.append(callback)

    def when_erased(self, callback: Callable[[int], None]) -> None:
        """Calls `callback` with a time in milliseconds when pages of all objects made before it must go."""
        self._on_erasure.append(callback)

    def leave_out(self, suspects: Set[NodeId], silent: Set[NodeId]) -> None:
        """Leaves these suspects out of `ring`, and the silent ones among them out of `named`."""
        if silent - self._unnamed:
            self.silences += 1
        self._left_out, self._unnamed = suspects, silent
        self._route_by(self._leased)

    async def wait_joined(self, timeout_s: float) -> LiveAgent:
        """Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while (joined := self._self) is None:
                await self._joined.wait()
        return joined

    async def run(self) -> None:
        """Keeps the lease and the view until cancelled. Never raises because Postgres is away."""
        while True:
            try:
                await self._step()
                if self._database_away:
                    log.info(
                        "membership: the database is back",
                        extra={"node_id": self._self and self._self.node_id},
                    )
                self._database_away = False
            except _AWAY as error:
                if not self._database_away:
                    log.warning(
                        "membership: cannot renew, keeping the last view", extra={"error": str(error)}
                    )
                self._database_away = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.membership_renew_s):
                    await self._renew_now.wait()
            self._renew_now.clear()

    def end_lease(self) -> None:
        """Another Postgres is the primary: ends the lease here and renews it there at once. The new primary
        numbers its changes differently."""
        self._shown = None
        self._serves_until_s = float("-inf")
        self._renew_now.set()

    async def refresh(self) -> None:
        """Reads the live agents at once, e.g. after a peer stopped answering."""
        await self._look(0.0)

    async def _look(self, not_older_than_s: float) -> None:
        before, sent_s = self._shown, self._clock()
        async with asyncio.timeout(self._settings.membership_lease_s):
            shown = await self._agents.shown(before, not_older_than_s=not_older_than_s)
        if self._shown is not before:
            return  # another read was faster, or another Postgres is the primary
        self._shown = shown
        self.looked_s = sent_s - shown.age_s
        if shown.agents != self._leased.agents:
            self._route_by(Ring.of(shown.agents, before=self._leased))

    async def leave(self) -> None:
        """Stops serving and tells the others, for good. If the database is away, the lease runs out; that is
        no error."""
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
            log.warning("membership: could not leave, the lease will run out", extra={"error": str(error)})

    def _route_by(self, leased: Ring) -> None:
        before, self._leased = self._ring, leased
        self._ring = leased.without(self._left_out)
        self._named = leased.without(self._unnamed)
        if self._ring.agents != before.agents:
            for callback in self._on_change:
                callback()

    async def _step(self) -> None:
        if self._has_left:
            return
        async with asyncio.timeout(self._settings.membership_lease_s / 2):  # leaves time for another attempt
            if self._self is None or not await self._renew(self._self):
                await self._join()
        self._drop_erased()
        await self._look(self._settings.membership_renew_s / 2)

    def _drop_erased(self) -> None:
        """Drops pages that an erasure concerns, then renews at once to say so. After a recovery the numbers
        begin again, so any other number counts."""
        asked = self._agents.pages_to_drop
        if asked.number == self._erased_to:
            return
        for callback in self._on_erasure:
            callback(asked.made_before_ms)
        self._erased_to = asked.number
        self._renew_now.set()

    async def _renew(self, current: LiveAgent) -> bool:
        sent_s = self._clock()
        if await self._agents.renew(
            current.node_id,
            current.incarnation,
            self._settings.membership_lease_s,
            erased_to=self._erased_to,
        ):
            self._hold(sent_s)
            return True
        log.warning("membership: the lease was lost, joining again", extra={"node_id": current.node_id})
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
            self._serves_until_s = (
                sent_s + self._settings.membership_lease_s - self._settings.membership_margin_s
            )
            self.last_renewal_s = sent_s
