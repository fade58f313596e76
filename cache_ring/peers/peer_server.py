"""The peer port: serves byte ranges of pages and pushes coordinates to other agents
(docs/design/read-path.md#peer-reads).

One hop: a range comes from memory or the store, never from a third agent. Other protocols may share the port:
the first bytes of a proven connection say which protocol it speaks (`share`).

Promises:
- Only agents that prove to belong to the cluster are served (`peer_connection.py`). A stranger takes no
  peer's place.
- Served bytes stay within their own budget. Connections and idle time are bounded.
- A peer that does not speak the page protocol is cut off without harm to others.
- At most `limit` subscriptions (a partition and a subscriber) are kept, and none longer than its lease.
  `Subscriptions` is pure.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cache_ring.pages.byte_budget import ByteBudget
from cache_ring.pages.page_layout import PageRange
from cache_ring.pages.store_pages import DamagedPage, StorePages
from cache_ring.peers.page_protocol import (
    LENGTH_BYTES,
    MAX_SMALL_FRAME_BYTES,
    PREFACE,
    ProtocolViolation,
    ReadRange,
    Refusal,
    Subscribe,
    decode,
    encode_committed,
    encode_found,
    encode_loading,
    encode_refused,
    frame_length,
)
from cache_ring.peers.peer_connection import Arrivals, Conversation, Secrets
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.settings import CacheRingSettings
from sequencer.commits.coordinates import PartitionKey, RunCoordinate
from storage.stores.object_store import ObjectNotFound, StoreUnavailable

Subscriber = TypeVar("Subscriber", bound=Hashable)


class Subscriptions(Generic[Subscriber]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._of_partition: dict[PartitionKey, dict[Subscriber, float]] = {}
        self._of_subscriber: dict[Subscriber, set[PartitionKey]] = {}

    def __len__(self) -> int:
        return self._size

    def subscribe(self, subscriber: Subscriber, partitions: Iterable[PartitionKey], until_s: float) -> None:
        """Subscribes or renews. What exceeds the limit is left out."""
        own = self._of_subscriber.setdefault(subscriber, set())
        for key in partitions:
            if key not in own:
                if self._size >= self._limit:
                    continue
                own.add(key)
                self._size += 1
            self._of_partition.setdefault(key, {})[subscriber] = until_s

    def subscribers(self, key: PartitionKey, now_s: float) -> list[Subscriber]:
        """Returns the subscribers with a valid lease, and drops the others."""
        leases = self._of_partition.get(key)
        if leases is None:
            return []
        for subscriber in [subscriber for subscriber, until_s in leases.items() if until_s <= now_s]:
            self._remove(subscriber, key)
        return list(leases)

    def drop(self, subscriber: Subscriber) -> None:
        """Drops a subscriber, e.g. because its connection is gone."""
        for key in tuple(self._of_subscriber.get(subscriber, ())):
            self._remove(subscriber, key)
        self._of_subscriber.pop(subscriber, None)

    def _remove(self, subscriber: Subscriber, key: PartitionKey) -> None:
        leases = self._of_partition[key]
        del leases[subscriber]
        if not leases:
            del self._of_partition[key]
        self._of_subscriber[subscriber].discard(key)
        self._size -= 1


log = logging.getLogger("tidelog")

_LOG_STRANGERS_EVERY_S: Final = 60.0


@dataclass(slots=True)
class PeerServerCounts:
    """Counters for metrics: what peers were served."""

    ranges: int = 0
    bytes_served: int = 0
    refused: int = 0
    strangers: int = 0
    """Connections that did not prove to belong to the cluster."""
    violations: int = 0
    pushes: int = 0
    pushes_dropped: int = 0


class PeerServer:
    """`key_prefixes` are the beginnings of object keys that a peer may ask for. `secrets` prove peers."""

    def __init__(
        self,
        pages: StorePages,
        settings: CacheRingSettings,
        secrets: Secrets,
        key_prefixes: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
        tls: PeerTls | None = None,
    ) -> None:
        self._pages = pages
        self._settings = settings
        self._key_prefixes = key_prefixes
        self._clock = clock
        self._serving = ByteBudget(settings.peer_response_bytes)
        self._subscriptions: Subscriptions[asyncio.StreamWriter] = Subscriptions(settings.max_subscriptions)
        self._slow: set[asyncio.StreamWriter] = set()
        """Subscribers with waiting pushes, as last counted."""
        self._is_closing = False
        self._arrivals = Arrivals(secrets, settings, self._accept, self._turned_away, tls)
        self._strangers_logged_s = float("-inf")
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._guests: dict[bytes, Conversation] = {}
        self._of_guests: set[asyncio.Task[None]] = set()
        self.counts = PeerServerCounts()

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def unproven(self) -> int:
        return len(self._arrivals)

    @property
    def subscriptions(self) -> int:
        return len(self._subscriptions)

    @property
    def push_bytes_waiting(self) -> int:
        """Bytes that wait for slow peers."""
        return sum(slow.transport.get_write_buffer_size() for slow in self._slow)

    def share(self, preface: bytes, guest: Conversation) -> None:
        """Gives connections that open with `preface` to `guest`. The guest bounds them itself, and owns them
        unless it raises."""
        assert len(preface) == len(PREFACE), "a preface is read before it is known whose it is"
        self._guests[preface] = guest

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port (port 0 takes a free one)."""
        self._server = await self._arrivals.listen(host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        self._arrivals.close()
        connections = self._connections | self._of_guests
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def push(self, runs: Sequence[RunCoordinate]) -> None:
        """Sends committed runs to the subscribers of their partitions. A subscriber that is too slow is left
        out."""
        now_s = self._clock()
        wanted: dict[asyncio.StreamWriter, list[RunCoordinate]] = {}
        for run in runs:
            for subscriber in self._subscriptions.subscribers((run.topic_id, run.partition), now_s):
                wanted.setdefault(subscriber, []).append(run)
        for subscriber, its_runs in wanted.items():
            if not self._has_room(subscriber):
                self.counts.pushes_dropped += 1
                continue
            subscriber.writelines(encode_committed(its_runs))
            self.counts.pushes += 1

    def _has_room(self, subscriber: asyncio.StreamWriter) -> bool:
        """True if the bytes that wait for this peer, and for all slow peers together, are within bounds."""
        waiting_bytes = subscriber.transport.get_write_buffer_size()
        if subscriber.transport.is_closing() or waiting_bytes > self._settings.push_buffer_bytes:
            return False
        if not waiting_bytes:
            self._slow.discard(subscriber)
            return True
        self._slow.add(subscriber)
        return self.push_bytes_waiting <= self._settings.push_buffers_bytes

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= self._settings.peer_accepted_connections:
            writer.close()
            return
        self._connections.add(task)
        is_handed_over = False
        try:
            guest = await self._guest(reader)
            if guest is None:
                await self._converse(reader, writer)
            else:
                self._connections.discard(task)
                self._of_guests.add(task)
                await guest(reader, writer)
                is_handed_over = True
        except ProtocolViolation as violation:
            self.counts.violations += 1
            log.warning("peer port: closed a connection", extra={"reason": str(violation)})
        except (OSError, EOFError, TimeoutError):
            pass  # the other side is gone or silent: only its connection ends
        except asyncio.CancelledError:
            if not self._is_closing:
                raise  # asyncio.streams of Python 3.11 reports the cancellation of a connection as an error
        finally:
            self._connections.discard(task)
            self._of_guests.discard(task)
            self._subscriptions.drop(writer)
            self._slow.discard(writer)
            if not is_handed_over:
                writer.transport.abort()

    def _turned_away(self, reason: str) -> None:
        self.counts.strangers += 1
        now_s = self._clock()
        if now_s >= self._strangers_logged_s + _LOG_STRANGERS_EVERY_S and not self._is_closing:
            self._strangers_logged_s = now_s
            log.warning(
                "peer port: turned strangers away",
                extra={"since_start": self.counts.strangers, "last_reason": reason},
            )

    async def _guest(self, reader: asyncio.StreamReader) -> Conversation | None:
        """Returns the protocol that the connection speaks; None: the page protocol."""
        async with asyncio.timeout(self._settings.peer_idle_s):
            preface = await reader.readexactly(len(PREFACE))
        if preface != PREFACE and preface not in self._guests:
            raise ProtocolViolation("no preface of the page protocol")
        return self._guests.get(preface)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle_s = self._settings.peer_idle_s
        writer.transport.set_write_buffer_limits(high=0)  # after a drain the kernel has everything
        while True:
            async with asyncio.timeout(idle_s):
                prefix = await reader.readexactly(LENGTH_BYTES)
                frame = await reader.readexactly(frame_length(prefix, MAX_SMALL_FRAME_BYTES))
            message = decode(frame)
            if isinstance(message, ReadRange):
                await self._answer(message, writer)
            elif isinstance(message, Subscribe):
                self._subscribe(message, writer)
            else:
                raise ProtocolViolation(f"a {type(message).__name__} where a request belongs")

    def _subscribe(self, message: Subscribe, writer: asyncio.StreamWriter) -> None:
        lease_s = min(message.lease_ms / 1000, self._settings.subscription_lease_s)
        self._subscriptions.subscribe(writer, message.partitions, until_s=self._clock() + lease_s)

    async def _answer(self, request: ReadRange, writer: asyncio.StreamWriter) -> None:
        wanted = self._wanted(request)
        taken = None if wanted is None else self._serving.try_take(request.end - request.start)
        if wanted is None or taken is None:
            self.counts.refused += 1
            writer.write(encode_refused(Refusal.INVALID if wanted is None else Refusal.BUSY))
            return
        try:
            await self._send_range(request, wanted, writer)
        finally:
            self._serving.give_back(taken)

    async def _send_range(self, request: ReadRange, wanted: PageRange, writer: asyncio.StreamWriter) -> None:
        data = self._pages.kept(wanted)
        try:
            if data is None:
                writer.write(encode_loading())
                data = await self._pages.read(wanted)
        except ObjectNotFound:
            writer.write(encode_refused(Refusal.NOT_FOUND))
            return
        except (StoreUnavailable, DamagedPage):
            writer.write(encode_refused(Refusal.STORE_UNAVAILABLE))
            return
        writer.writelines(encode_found(request, data))
        self.counts.ranges += 1
        self.counts.bytes_served += len(data)
        async with asyncio.timeout(self._settings.peer_idle_s):
            await writer.drain()

    def _wanted(self, request: ReadRange) -> PageRange | None:
        """Returns the range if it is allowed: in an object of this cluster, and in one page."""
        fits = 0 <= request.start < request.end <= request.object_size_bytes
        if not fits or not request.object_key.startswith(self._key_prefixes):
            return None
        ranges = self._pages.layout.ranges_of(
            request.object_key, request.object_size_bytes, request.start, request.start + 1
        )
        last = ranges[0]._replace(end=request.end)
        return last if request.end <= last.page_end else None
