"""Watches other agents, so that their death is known within seconds: probes, reports, and the ring without
suspects.

Does what `suspects.py` decides.

Promises:
- One connection for each probed peer, and one probe on it per `probe_every_s`. With 1,000 agents each probes
  10 and is probed by 10: 25 probes and responses a second each way, whatever the cluster's size.
- A lost connection is opened again at once. Refused means dead. Accepted and then closed means nothing, and
  is tried a few more times.
- This agent reports its suspicions over all these connections. An agent that receives a report passes it on
  once.
- However much a watcher sends, this agent reads `_READ_BYTES` of it per `_PAUSE_BETWEEN_READS_S`, and answers
  once.
- Its memory is bounded: `probe_accepted_connections` from others, and one link per peer in the lease's view.
  Reports alone make it probe `probe_reported` peers at a time.
- Both sides of a connection prove that they belong to the cluster. If the listener at a peer's address is no
  peer, the peer counts as silent.
- The ring for routing drops suspects in the same step of the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from cache_ring.peers.page_protocol import ProtocolViolation
from cache_ring.peers.peer_connection import PeerHungUp, connect_to_peer
from cache_ring.peers.peer_proof import NotAPeer
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.ring.membership import Membership
from cache_ring.ring.probe_protocol import (
    NOT_JOINED,
    PREFACE,
    Alive,
    FrameReader,
    Message,
    Probe,
    Suspected,
    encode,
)
from cache_ring.ring.ring import Ring
from cache_ring.ring.suspects import Evidence, PeerName, Suspects
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import AgentAddress, LiveAgent, PeerSecret
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable

log = logging.getLogger("tidelog")

_STEPS_PER_PROBE = 4
_READ_BYTES = 4_096
_PAUSE_BETWEEN_READS_S = 0.005
_REOPENS = 20
_REOPEN_PAUSE_S = 0.01
"""A dying process accepts connections for some milliseconds after its other connections were reset."""


@dataclass(slots=True)
class PeerWatchCounts:
    """Counters for metrics: probes and suspects."""

    probes: int = 0
    suspicions: int = 0
    taken_back: int = 0
    reports: int = 0


class PeerWatch:
    """`run` owns every link. `take` serves the agents that watch this one."""

    def __init__(
        self, membership: Membership, settings: CacheRingSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._suspects = Suspects(settings)
        self._ring_seen: Ring | None = None
        self._self_seen: LiveAgent | None = None
        self._agents: dict[PeerName, LiveAgent] = {}
        self._links: dict[PeerName, _Link] = {}
        self._watchers: set[asyncio.StreamWriter] = set()
        self._is_leaving = False
        self._is_refreshing = False
        self._tasks: asyncio.TaskGroup | None = None
        self.counts = PeerWatchCounts()

    @property
    def suspected(self) -> frozenset[PeerName]:
        return frozenset(self._suspects.suspected)

    async def run(self) -> None:
        """Probes until cancelled. From then on the ring leaves no agent out."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while True:
                    self._look()
                    self._probe()
                    self._judge()
                    await asyncio.sleep(self._settings.probe_every_s / _STEPS_PER_PROBE)
            finally:
                self._tasks = None
                for link in self._links.values():
                    link.close()
                self._links.clear()
                self._membership.leave_out(frozenset(), frozenset())

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers an agent that watches this one until it hangs up. Raises ProtocolViolation and what streams
        raise."""
        if len(self._watchers) >= self._settings.probe_accepted_connections:
            writer.close()
            return
        self._watchers.add(writer)
        frames = FrameReader()
        try:
            while True:
                async with asyncio.timeout(self._settings.peer_idle_s):
                    data = await reader.read(_READ_BYTES)
                if not data:
                    raise EOFError
                is_asked = False
                for message in frames.messages(data):
                    if isinstance(message, Probe):
                        is_asked = True
                    elif isinstance(message, Suspected):
                        self._heard(message)
                    else:
                        raise ProtocolViolation("an answer where a probe belongs")
                if is_asked:
                    writer.write(encode(self._alive()))
                if writer.transport.get_write_buffer_size() > self._settings.push_buffer_bytes:
                    raise EOFError
                # Reads without a pause only what has come already: a watcher that floods this agent has to
                # wait.
                await asyncio.sleep(_PAUSE_BETWEEN_READS_S)
        finally:
            self._watchers.discard(writer)

    def leave(self) -> None:
        """Tells the others that this agent stops, so that they send it no more clients."""
        self._is_leaving = True
        self._write_to_watchers(encode(self._alive()))

    # --- for links

    def secrets(self) -> tuple[PeerSecret, ...]:
        return self._membership.peer_secrets()

    @property
    def tls(self) -> PeerTls | None:
        return self._membership.peer_tls

    def answered(self, name: PeerName, alive: Alive) -> None:
        if alive.name == name and not alive.is_leaving:
            self._suspects.answered(name, self._clock())
        else:
            self._suspects.refused(name, self._clock())
            if alive.name[0] != NOT_JOINED and alive.name != name:
                self._refresh()  # a new incarnation is there, so the lease's view is old
        self._judge()

    def refused(self, name: PeerName) -> None:
        self._suspects.refused(name, self._clock())
        self._judge()

    def hung_up(self, name: PeerName) -> None:
        self._suspects.hung_up(name)

    def heard(self, report: Suspected) -> None:
        self._heard(report)

    # --- steps

    def _look(self) -> None:
        membership = self._membership
        ring, self_ = membership.leased, membership.self_
        if ring is self._ring_seen and self_ is self._self_seen:
            self._suspects.looked_again(membership.looked_s)
        elif self_ is not None:
            self._ring_seen, self._self_seen = ring, self_
            self._agents = {_name(agent): agent for agent in ring.agents}
            self._suspects.looked(_name(self_), self._agents, membership.looked_s)

    def _probe(self) -> None:
        assert self._tasks is not None, "the watch runs"
        now_s = self._clock()
        wanted = self._suspects.to_probe(now_s) & self._agents.keys()
        for name in self._links.keys() - wanted:
            self._links.pop(name).close()
        for name in wanted:
            link = self._links.get(name)
            if link is None:
                link = self._links[name] = _Link(
                    name, self._agents[name].address, self, self._settings, self._tasks
                )
            if link.is_due(now_s):
                self.counts.probes += 1
                self._suspects.asked(name, now_s)
                link.probe(now_s)

    def _judge(self) -> None:
        before = self._suspects.suspected
        self._suspects.tick(self._clock())
        suspected = self._suspects.suspected
        for name in self._suspects.take_news():
            self._report(name)
        if suspected == before:
            return
        for name in suspected.keys() - before.keys():
            self.counts.suspicions += 1
            log.warning("peer is suspect", extra={"peer": name[0], "evidence": suspected[name].value})
        for name in before.keys() - suspected.keys():
            self.counts.taken_back += 1
            log.info("peer is no longer suspect", extra={"peer": name[0]})
        silent = frozenset(
            name[0] for name, evidence in suspected.items() if evidence is not Evidence.REFUSED
        )
        self._membership.leave_out(frozenset(name[0] for name in suspected), silent)

    def _alive(self) -> Alive:
        self_ = self._membership.self_
        return Alive(name=(NOT_JOINED, 0) if self_ is None else _name(self_), is_leaving=self._is_leaving)

    # --- reports

    def _report(self, name: PeerName) -> None:
        self_ = self._membership.self_
        if self_ is not None:
            self._tell_all(Suspected(by=self_.node_id, name=name))

    def _heard(self, report: Suspected) -> None:
        self._look()
        if self._suspects.reported(report.name, report.by, self._clock()):
            self._tell_all(report)
            if self._tasks is not None:
                self._probe()
            self._judge()

    def _tell_all(self, report: Suspected) -> None:
        self.counts.reports += 1
        frame = encode(report)
        for name, link in self._links.items():
            if name != report.name:
                link.write(frame)
        self._write_to_watchers(frame)

    def _write_to_watchers(self, frame: bytes) -> None:
        for writer in self._watchers:
            if not writer.transport.is_closing():
                writer.write(frame)

    def _refresh(self) -> None:
        if not self._is_refreshing and self._tasks is not None:
            self._is_refreshing = True
            self._tasks.create_task(self._look_again())

    async def _look_again(self) -> None:
        try:
            await self._membership.refresh()
        except (SequencerUnavailable, CommitOutcomeUnknown, TimeoutError):
            pass  # the membership's own task reads again, and logs it
        finally:
            self._is_refreshing = False
        self._look()


class _Link(asyncio.Protocol):
    """The connection to one probed peer."""

    def __init__(
        self,
        name: PeerName,
        address: AgentAddress,
        watch: PeerWatch,
        settings: CacheRingSettings,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._name = name
        self._address = address
        self._watch = watch
        self._settings = settings
        self._tasks = tasks
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._frames = FrameReader()
        self._probed_s = float("-inf")
        self._reopens_left = 0
        self._is_closed = False

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._probed_s + self._settings.probe_every_s

    def probe(self, now_s: float) -> None:
        """Asks for a sign of life, on a new connection if there is none."""
        self._probed_s = now_s
        if self._transport is not None:
            self.write(encode(Probe()))
        else:
            self._open()

    def write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _open(self) -> None:
        if self._opening is None and not self._is_closed:
            self._opening = self._tasks.create_task(self._connect())

    async def _connect(self) -> None:
        address, hung_up = self._address, False
        try:
            async with asyncio.timeout(self._settings.probe_most_patience_s):
                await connect_to_peer(
                    address.peer_host, address.peer_port, self._watch.secrets, self, self._watch.tls
                )
        except ConnectionRefusedError:
            if not self._is_closed:
                self._watch.refused(self._name)
        except PeerHungUp:
            hung_up = True
        except (OSError, TimeoutError, NotAPeer):
            pass  # silence, counted from the probe that opened the connection
        finally:
            self._opening = None
        if hung_up:
            self._hung_up()

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed:
            self._transport.abort()
            return
        self._frames = FrameReader()
        self._transport.write(PREFACE + encode(Probe()))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.messages(data):
                self._received(message)
        except ProtocolViolation as violation:
            log.warning("peer does not speak the probe protocol", extra={"reason": str(violation)})
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._hung_up()

    def _hung_up(self) -> None:
        if self._is_closed:
            return
        self._watch.hung_up(self._name)
        if self._reopens_left == _REOPENS:
            self._open()  # at once: a dead peer refuses this
        elif self._reopens_left > 0:
            asyncio.get_running_loop().call_later(_REOPEN_PAUSE_S, self._open)
        self._reopens_left = max(0, self._reopens_left - 1)

    def _received(self, message: Message) -> None:
        if isinstance(message, Alive):
            self._reopens_left = _REOPENS
            self._watch.answered(self._name, message)
        elif isinstance(message, Suspected):
            self._watch.heard(message)
        else:
            raise ProtocolViolation("a probe where an answer belongs")


def _name(agent: LiveAgent) -> PeerName:
    return agent.node_id, agent.incarnation
