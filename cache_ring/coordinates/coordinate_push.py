"""Learns of commits at once: subscribes to the agents that write the partitions read here
(docs/design/read-path.md#pushes-and-polls).

This is only a shortcut: if a push is missed because a peer is unknown, gone or slow, the poll of the
sequencer repairs it.

Promises:
- One connection per writing agent.
- Subscriptions are leased and renewed.
- An agent that cannot be reached is tried again after `peer_skip_s`.

`PartitionsRead` has the partitions that are read here now: the poll asks for them, and pushes are subscribed
to for them.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from cache_ring.peers.page_protocol import (
    LENGTH_BYTES,
    MAX_SMALL_FRAME_BYTES,
    PREFACE,
    ProtocolViolation,
    RunsCommitted,
    decode,
    encode_subscribe,
    frame_length,
)
from cache_ring.peers.peer_connection import Secrets, open_peer_stream
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.ring.membership import Membership
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import LiveAgent
from sequencer.commits.coordinates import PartitionKey, RunCoordinate
from storage.identifiers import NodeId

_STILL_NOTED = 0.9
"""The share of `recent_s` that must remain for a further reader to change nothing: most readers then cost
nothing."""


class PartitionsRead:
    """Promises:
    - A partition is named from its first reader until `recent_s` after its last.
    - At most `limit` partitions are named. Beyond it the one read longest ago is dropped, and only its
      readers' latency suffers.
    """

    def __init__(self, recent_s: float, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.recent_s = recent_s
        self._limit = limit
        self._clock = clock
        self._until_s: OrderedDict[PartitionKey, float] = OrderedDict()
        self._when_new: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._until_s)

    def when_new(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever a partition gets its first reader."""
        self._when_new.append(callback)

    def note(self, key: PartitionKey, now_s: float) -> None:
        """Notes a reader of this partition."""
        until_s = self._until_s.get(key)
        if until_s is not None and until_s - now_s > self.recent_s * _STILL_NOTED:
            return
        self._until_s[key] = now_s + self.recent_s
        self._until_s.move_to_end(key)
        if until_s is None:
            while len(self._until_s) > self._limit:
                self._until_s.popitem(last=False)
            for callback in self._when_new:
                callback()

    def current(self) -> list[PartitionKey]:
        """Returns the partitions with readers, and drops the others."""
        now_s = self._clock()
        while self._until_s:
            key, until_s = next(iter(self._until_s.items()))
            if until_s > now_s:
                break
            del self._until_s[key]
        return list(self._until_s)


log = logging.getLogger("tidelog")


class CoordinatePush:
    """`partitions_read` names the partitions read here now. `on_runs` gets the runs that other agents
    committed."""

    def __init__(
        self,
        membership: Membership,
        settings: CacheRingSettings,
        partitions_read: PartitionsRead,
        on_runs: Callable[[Sequence[RunCoordinate]], None],
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._partitions_read = partitions_read
        self._on_runs = on_runs
        self._changed = asyncio.Event()
        partitions_read.when_new(self._changed.set)
        membership.when_changed(self._changed.set)
        self._links: dict[tuple[NodeId, int], _Link] = {}
        self.runs_received = 0

    async def run(self) -> None:
        """Keeps the subscriptions until cancelled."""
        try:
            while True:
                self._changed.clear()
                await self._update_links()
                try:
                    async with asyncio.timeout(self._settings.subscription_lease_s / 3):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            await self._end(self._links.values())
            self._links.clear()

    async def _update_links(self) -> None:
        wanted = self._wanted()
        gone = [key for key, link in self._links.items() if key not in wanted or link.has_ended]
        await self._end([self._links.pop(key) for key in gone])
        for key, (agent, partitions) in wanted.items():
            link = self._links.get(key)
            if link is None:
                link = self._links[key] = _Link(
                    agent,
                    self._settings,
                    self._membership.peer_secrets,
                    self._membership.peer_tls,
                    self._received,
                )
            link.want(partitions)

    def _wanted(self) -> dict[tuple[NodeId, int], tuple[LiveAgent, set[PartitionKey]]]:
        """Returns the partitions to subscribe to, by the agent that writes them in each zone."""
        ring = self._membership.ring
        self_ = self._membership.self_
        wanted: dict[tuple[NodeId, int], tuple[LiveAgent, set[PartitionKey]]] = {}
        for topic_id, partition in self._partitions_read.current():
            for agent in ring.replicas(topic_id, partition):
                if self_ is None or agent.node_id != self_.node_id:
                    key = (agent.node_id, agent.incarnation)
                    wanted.setdefault(key, (agent, set()))[1].add((topic_id, partition))
        return wanted

    def _received(self, runs: Sequence[RunCoordinate]) -> None:
        self.runs_received += len(runs)
        self._on_runs(runs)

    @staticmethod
    async def _end(links: Iterable["_Link"]) -> None:
        tasks = [link.task for link in links]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


class _Link:
    """The connection to one writing agent."""

    def __init__(
        self,
        agent: LiveAgent,
        settings: CacheRingSettings,
        secrets: Secrets,
        tls: PeerTls | None,
        on_runs: Callable[[Sequence[RunCoordinate]], None],
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._secrets = secrets
        self._tls = tls
        self._on_runs = on_runs
        self._partitions: set[PartitionKey] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._subscribed: set[PartitionKey] = set()
        self._renew_at_s = 0.0
        self.task = asyncio.create_task(self._keep_connected())

    @property
    def has_ended(self) -> bool:
        return self.task.done()

    def want(self, partitions: set[PartitionKey]) -> None:
        """Subscribes to these: at once to new ones, and to all again when a third of the lease has passed."""
        self._partitions = partitions
        now_s = asyncio.get_running_loop().time()
        if self._writer is None:
            return
        if now_s >= self._renew_at_s:
            self._subscribe(self._writer, partitions)
            self._renew_at_s = now_s + self._settings.subscription_lease_s / 3 - 0.1
        elif partitions - self._subscribed:
            self._subscribe(self._writer, partitions - self._subscribed)
        self._subscribed = set(partitions)

    def _subscribe(self, writer: asyncio.StreamWriter, partitions: Iterable[PartitionKey]) -> None:
        lease_ms = int(self._settings.subscription_lease_s * 1000)
        writer.writelines(encode_subscribe(lease_ms, sorted(partitions)))

    async def _keep_connected(self) -> None:
        while True:
            try:
                await self._converse()
            except (OSError, EOFError, TimeoutError, ProtocolViolation) as error:
                log.info(
                    "coordinates: no push from a peer, the poll goes on",
                    extra={"peer": self._agent.node_id, "reason": str(error) or type(error).__name__},
                )
            await asyncio.sleep(self._settings.peer_skip_s)

    async def _converse(self) -> None:
        address = self._agent.address
        async with asyncio.timeout(self._settings.peer_answer_ceiling_s):
            reader, writer = await open_peer_stream(
                address.peer_host, address.peer_port, self._secrets, self._tls
            )
        try:
            writer.write(PREFACE)
            self._writer = writer
            self._renew_at_s = 0.0
            self.want(self._partitions)
            while True:
                prefix = await reader.readexactly(LENGTH_BYTES)
                async with asyncio.timeout(self._settings.peer_load_timeout_s):
                    frame = await reader.readexactly(frame_length(prefix, MAX_SMALL_FRAME_BYTES))
                message = decode(frame)
                if not isinstance(message, RunsCommitted):
                    raise ProtocolViolation(f"a {type(message).__name__} where committed runs belong")
                self._on_runs(message.runs)
        finally:
            self._writer = None
            writer.transport.abort()
