"""The connections of a client: a pool per lane, one for commits, and new ones that show where the address
leads.

Promises:
- No call waits behind those of another lane: neither for a connection nor in a queue.
- In each lane, writes leave connections to reads and leases, because all writes may wait for a standby. Reads
  leave one to writes, because a long read may have to write meanwhile.
- Clients get connections in fair turns (`fair_queue.py`).
- `follow` ends every connection but one: idle ones are closed, and calls under way on others fail at once.
- After one connection was lost, the pools do not hand out the idle ones that were made before.

A gate bounds the number of callers, who take their places in fair turns (`fair_queue.py`).
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, TypeAlias

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from sequencer.database.errors import SequencerUnavailable, TooManyWait, describe_address, moved
from sequencer.database.fair_queue import ASKED_BY, THE_AGENT, Asker, FairQueue
from sequencer.database.options import CheckedConnection, connection_options
from sequencer.settings import SequencerSettings


class FairGate:
    """`places` may be inside at a time, `most_waiting` may wait."""

    def __init__(self, places: int, most_waiting: int) -> None:
        self._free = places
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(most_waiting)

    async def enter(self, asker: Asker) -> None:
        """Call `leave` afterwards. Raises TooManyWait."""
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused = self._queue.add(asker, place)
        if refused is not None and not refused.done():
            refused.set_exception(TooManyWait())
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                self.leave()  # it got a place in the same moment
            self._queue.remove(asker, place)
            raise

    def leave(self) -> None:
        while self._queue:
            place = self._queue.next()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def used_share(self, asker: Asker) -> float:
        """Returns which share of its fair part of the queue this asker uses; 1.0 is all of it."""
        return self._queue.used_share(asker)


_Pool: TypeAlias = AsyncConnectionPool[CheckedConnection]


class Lane(Enum):
    """Statements that share connections."""

    CLIENTS = "clients"
    """Clients' requests, and what is read and written to answer them."""
    LEASES = "leases"
    """What an agent needs to stay alive: its lease, its reservations, its jobs' leases."""
    HOUSEKEEPING = "housekeeping"
    """The work of jobs."""


class _LaneConnections:
    """`size` connections, of which writes leave `reads` to others."""

    def __init__(self, lane: Lane, pool: _Pool, *, size: int, reads: int, most_waiting: int) -> None:
        self.pool = pool
        self.places = FairGate(size, most_waiting)
        """As many places as the pool has connections: the pool's own queue, which is not fair, stays
        empty."""
        self.writers = FairGate(max(1, size - reads), most_waiting)
        self.readers = FairGate(size - 1, most_waiting)
        """A long read may have to write meanwhile: one place is left for that."""
        self._lane = lane

    def asker(self) -> Asker:
        """A task that began with a client's request may also do the agent's own work."""
        return ASKED_BY.get() if self._lane is Lane.CLIENTS else THE_AGENT


class Connections:
    """`check_connection` checks a new connection before it is used."""

    def __init__(
        self,
        database_url: str,
        settings: SequencerSettings,
        check_connection: Callable[[CheckedConnection], Awaitable[None]],
    ) -> None:
        self._url = database_url
        self._settings = settings
        self._check_connection = check_connection
        self._last_failure: psycopg.Error | None = None
        self._renewed_at_s = -math.inf
        self._lanes = {
            Lane.CLIENTS: self._new_lane(
                Lane.CLIENTS, 1, settings.database_pool_size, settings.database_pool_reads
            ),
            Lane.LEASES: self._new_lane(Lane.LEASES, 0, settings.database_lease_connections, 1),
            Lane.HOUSEKEEPING: self._new_lane(
                Lane.HOUSEKEEPING, 0, settings.database_housekeeping_connections, 1
            ),
        }
        self._kept_pool = self._new_pool("tidelog-commits", 0, 1)
        self._in_use: set[CheckedConnection] = set()

    def _new_lane(self, lane: Lane, min_size: int, size: int, reads: int) -> _LaneConnections:
        pool = self._new_pool(f"tidelog-{lane.value}", min_size, size)
        most_waiting = self._settings.database_pool_max_waiting
        return _LaneConnections(lane, pool, size=size, reads=reads, most_waiting=most_waiting)

    def _new_pool(self, name: str, min_size: int, max_size: int) -> _Pool:
        return AsyncConnectionPool(
            self._url,
            connection_class=CheckedConnection,
            kwargs=self._options(),
            min_size=min_size,
            max_size=max_size,
            max_waiting=self._settings.database_pool_max_waiting,
            timeout=self._settings.database_pool_timeout_s,
            # The pool retries ever more rarely. If it gives up early, the next call connects at once.
            reconnect_timeout=self._settings.database_pool_timeout_s / 2,
            open=False,
            name=name,
        )

    def _options(self) -> dict[str, Any]:
        return connection_options(self._url, self._settings) | {"tell": self._note_made}

    async def open(self) -> None:
        for pool in self._pools():
            await pool.open(wait=False)

    async def close(self) -> None:
        for pool in self._pools():
            await pool.close()

    def _pools(self) -> list[_Pool]:
        return [*(lane.pool for lane in self._lanes.values()), self._kept_pool]

    @property
    def is_closed(self) -> bool:
        return self._kept_pool.closed

    def unreachable(self) -> SequencerUnavailable | None:
        """Why the last attempt to connect failed, as Postgres or the network said; None if it did not."""
        failure = self._last_failure
        return None if failure is None else SequencerUnavailable.cannot_connect(self._url, failure)

    async def take(self, lane: Lane) -> CheckedConnection:
        """Takes a connection for a read. Raises SequencerUnavailable."""
        own = self._lanes[lane]
        await self._enter(own.readers, own.asker(), "connections for reads")
        try:
            return await self._placed(own)
        except BaseException:
            own.readers.leave()
            raise

    async def give_back(self, lane: Lane, connection: CheckedConnection) -> None:
        self._lanes[lane].readers.leave()
        await self._put_back(self._lanes[lane], connection)

    async def take_for_writing(self, lane: Lane) -> CheckedConnection:
        """Takes a connection that writes may use. `give_back_writers` returns it. Raises
        SequencerUnavailable."""
        own = self._lanes[lane]
        await self._enter(own.writers, own.asker(), "connections for writes")
        try:
            return await self._placed(own)
        except BaseException:
            own.writers.leave()
            raise

    async def give_back_writers(self, lane: Lane, connection: CheckedConnection) -> None:
        self._lanes[lane].writers.leave()
        await self._put_back(self._lanes[lane], connection)

    def used_share(self, asker: Asker) -> float:
        """Returns which share of its fair part of the clients' queues this asker uses; 1.0 is all of it."""
        clients = self._lanes[Lane.CLIENTS]
        return max(gate.used_share(asker) for gate in (clients.places, clients.readers, clients.writers))

    async def _placed(self, own: _LaneConnections) -> CheckedConnection:
        await self._enter(own.places, own.asker(), "connections")
        try:
            return await self._taken_from(own.pool)
        except BaseException:
            own.places.leave()
            raise

    async def _put_back(self, own: _LaneConnections, connection: CheckedConnection) -> None:
        self._in_use.discard(connection)
        try:
            await own.pool.putconn(connection)
        finally:
            own.places.leave()

    async def _enter(self, gate: FairGate, asker: Asker, what: str) -> None:
        try:
            async with asyncio.timeout(self._settings.database_pool_timeout_s):
                await gate.enter(asker)
        except TimeoutError as error:
            raise (self.unreachable() or self._all_busy(what)) from error

    async def take_kept(self) -> CheckedConnection:
        """Takes the connection for commits. Raises SequencerUnavailable."""
        return await self._taken_from(self._kept_pool)

    async def give_back_kept(self, connection: CheckedConnection) -> None:
        self._in_use.discard(connection)
        await self._kept_pool.putconn(connection)

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[CheckedConnection]:
        """A new, checked connection outside the pool, which shows where the address leads now. Raises
        psycopg.Error."""
        connection = await CheckedConnection.connect(self._url, **self._options())
        self._in_use.add(connection)
        try:
            await self._check_connection(connection)
            yield connection
        finally:
            self._in_use.discard(connection)
            await connection.close()

    def is_up_to_date(self, connection: CheckedConnection) -> bool:
        """True if it was made after connections were last lost."""
        return connection.made_at_s >= self._renewed_at_s

    async def renew(self, lost: CheckedConnection) -> None:
        """After one connection was lost, the idle ones probably are lost, too: the next callers get new ones.
        A restart of Postgres fails many calls, but renews the pools once, unless the lost connection is newer
        than the renewal.
        """
        if self.is_up_to_date(lost):
            await self._drain()

    async def follow(self, connection: CheckedConnection) -> None:
        """Another Postgres answers on this connection: end all others."""
        for other in tuple(self._in_use):
            if other is not connection:
                other.cut(moved())
        await self._drain()

    async def _drain(self) -> None:
        self._renewed_at_s = time.monotonic()
        for pool in self._pools():
            await pool.drain()

    async def _taken_from(self, pool: _Pool) -> CheckedConnection:
        task = asyncio.current_task()
        cancellations = 0 if task is None else task.cancelling()
        try:
            connection = await pool.getconn()
        except (PoolTimeout, TooManyRequests, PoolClosed) as error:
            raise (self.unreachable() or SequencerUnavailable.cannot_connect(self._url, error)) from error
        if task is not None and task.cancelling() > cancellations:
            # The pool uses asyncio.wait_for, which before Python 3.12 drops a cancellation that comes as its
            # wait ends: a task that cancels this one would wait for ever.
            await pool.putconn(connection)
            raise asyncio.CancelledError
        self._in_use.add(connection)
        return connection

    def _all_busy(self, what: str) -> SequencerUnavailable:
        return SequencerUnavailable(
            f"all {what} to Postgres at {describe_address(self._url)} were busy for"
            f" TIDELOG_DATABASE_POOL_TIMEOUT_S ({self._settings.database_pool_timeout_s} s)."
            " Does a synchronous standby keep them waiting?"
        )

    def _note_made(self, made: CheckedConnection | psycopg.Error) -> None:
        self._last_failure = made if isinstance(made, psycopg.Error) else None
