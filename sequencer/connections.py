"""The connections of a client: a pool, one for commits, and new ones that show where the address leads.

Promises:
- Writes leave `TIDELOG_DATABASE_POOL_READS` connections of the pool to reads and leases.
- `follow` ends every connection but one: idle ones are closed, and calls under way on others fail at once.
- After one connection was lost, the pools do not hand out the idle ones that were made before.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from sequencer.connection_options import CheckedConnection, connection_options
from sequencer.database_errors import SequencerUnavailable, describe_address, moved
from sequencer.settings import SequencerSettings

_Pool: TypeAlias = AsyncConnectionPool[CheckedConnection]


class Connections:
    """`find_out` checks a new connection before it is used."""

    def __init__(
        self, database_url: str, settings: SequencerSettings, find_out: Callable[[CheckedConnection], Awaitable[None]]
    ) -> None:
        self._url = database_url
        self._settings = settings
        self._find_out = find_out
        self._last_failure: psycopg.Error | None = None
        self._renewed_at_s = -math.inf
        self._pool = self._new_pool("tidelog", 1, settings.database_pool_size)
        self._kept_pool = self._new_pool("tidelog-commits", 0, 1)
        self._writers = asyncio.Semaphore(max(1, settings.database_pool_size - settings.database_pool_reads))
        self._writers_waiting = 0
        self._in_use: set[CheckedConnection] = set()

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
        await self._pool.open(wait=False)
        await self._kept_pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()
        await self._kept_pool.close()

    @property
    def is_closed(self) -> bool:
        return self._kept_pool.closed

    def unreachable(self) -> SequencerUnavailable | None:
        """Why the last attempt to connect failed, as Postgres or the network said; None if it did not."""
        failure = self._last_failure
        return None if failure is None else SequencerUnavailable.cannot_connect(self._url, failure)

    async def take(self) -> CheckedConnection:
        """One for a read. Raises SequencerUnavailable."""
        return await self._taken_from(self._pool)

    async def give_back(self, connection: CheckedConnection) -> None:
        self._in_use.discard(connection)
        await self._pool.putconn(connection)

    async def take_for_writing(self) -> CheckedConnection:
        """One of those that writes may take. `give_back_writers` returns it. Raises SequencerUnavailable."""
        if self._writers_waiting >= self._settings.database_pool_max_waiting:
            raise SequencerUnavailable("too many writes wait for a connection (TIDELOG_DATABASE_POOL_MAX_WAITING)")
        self._writers_waiting += 1
        try:
            async with asyncio.timeout(self._settings.database_pool_timeout_s):
                await self._writers.acquire()
        except TimeoutError as error:
            raise (self.unreachable() or self._all_busy()) from error
        finally:
            self._writers_waiting -= 1
        try:
            return await self.take()
        except BaseException:
            self._writers.release()
            raise

    async def give_back_writers(self, connection: CheckedConnection) -> None:
        self._writers.release()
        await self.give_back(connection)

    async def take_kept(self) -> CheckedConnection:
        """The one for commits. Raises SequencerUnavailable."""
        return await self._taken_from(self._kept_pool)

    async def give_back_kept(self, connection: CheckedConnection) -> None:
        self._in_use.discard(connection)
        await self._kept_pool.putconn(connection)

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[CheckedConnection]:
        """A new, checked connection outside the pool, which shows where the address leads now. Raises psycopg.Error."""
        connection = await CheckedConnection.connect(self._url, **self._options())
        self._in_use.add(connection)
        try:
            await self._find_out(connection)
            yield connection
        finally:
            self._in_use.discard(connection)
            await connection.close()

    def is_up_to_date(self, connection: CheckedConnection) -> bool:
        """True if it was made after connections were last lost."""
        return connection.made_at_s >= self._renewed_at_s

    async def renew(self, lost: CheckedConnection) -> None:
        """After one connection was lost, the idle ones probably are too: the next callers get new ones. One restart of
        Postgres fails many calls, but renews the pools once, unless the lost connection is newer than the renewal.
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
        await self._pool.drain()
        await self._kept_pool.drain()

    async def _taken_from(self, pool: _Pool) -> CheckedConnection:
        task = asyncio.current_task()
        cancellations = 0 if task is None else task.cancelling()
        try:
            connection = await pool.getconn()
        except (PoolTimeout, TooManyRequests, PoolClosed) as error:
            raise (self.unreachable() or SequencerUnavailable.cannot_connect(self._url, error)) from error
        if task is not None and task.cancelling() > cancellations:
            # The pool waits with asyncio.wait_for, which before Python 3.12 drops a cancellation that comes as its wait
            # ends: whoever cancelled this task would wait for it for ever.
            await pool.putconn(connection)
            raise asyncio.CancelledError
        self._in_use.add(connection)
        return connection

    def _all_busy(self) -> SequencerUnavailable:
        return SequencerUnavailable(
            f"all connections for writes to Postgres at {describe_address(self._url)} were busy for"
            f" TIDELOG_DATABASE_POOL_TIMEOUT_S ({self._settings.database_pool_timeout_s} s)."
            " Does a synchronous standby keep them waiting?"
        )

    def _note_made(self, made: CheckedConnection | psycopg.Error) -> None:
        self._last_failure = made if isinstance(made, psycopg.Error) else None
