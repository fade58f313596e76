"""The one way to Postgres: a pool of autocommit connections, prepared statements, binary results, bounded waits.

Promises that an error says whether something may have been written. `SequencerUnavailable`: this call wrote nothing, or
it was a `fetch`, whose caller may repeat it. `CommitOutcomeUnknown`: the statement was sent and its end was not seen
(or Postgres chose it as a deadlock's or serialization's victim, which is treated alike): repeat it until it is known.
Anything else psycopg raises is an error of this program.

Promises also that nothing is asked of a database that `keep_to` did not name, once it named one: whatever the address
leads to meanwhile (a wrong DNS entry, another cluster's server), calls raise SequencerUnavailable until it leads back.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, Self, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from sequencer.connection_options import TellingConnection, connection_options
from sequencer.kept_connection import KeptConnection, KeptStatement, Values, values_of
from sequencer.settings import SequencerSettings

Row = Any
"""A named tuple of a statement's columns."""

_Pool: TypeAlias = AsyncConnectionPool[AsyncConnection[Row]]


class SequencerUnavailable(Exception):
    """Postgres cannot be asked now; nothing was written by this call."""

    @classmethod
    def cannot_connect(cls, database_url: str, error: BaseException) -> Self:
        reason = " ".join(str(error).split()) or type(error).__name__
        return cls(
            f"cannot reach Postgres at {describe_address(database_url)}: {reason.rstrip('.?')}."
            " Is it running, and is TIDELOG_DATABASE_URL right?"
        )


class CommitOutcomeUnknown(Exception):
    """The statement was sent and may have been committed. Repeat the same call until its outcome is known."""

    def __init__(self, message: str, *, connection_lost: bool) -> None:
        super().__init__(message)
        self.connection_lost = connection_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """Which Postgres this is; a failover to a standby raises the timeline, a restored backup may change both (DESIGN
    §10).
    """

    system_identifier: int
    timeline: int


@dataclass(slots=True, kw_only=True)
class DatabaseCounters:
    """What an operator watches; deadlocks and serialization failures are bugs of the lock order."""

    deadlocks: int = 0
    serialization_failures: int = 0
    lost_connections: int = 0
    statement_timeouts: int = 0


class Database:
    """The pool. It opens even when Postgres is away; calls then raise SequencerUnavailable until it is back."""

    def __init__(self, database_url: str, settings: SequencerSettings | None = None) -> None:
        self._url = database_url
        self._settings = settings or SequencerSettings()
        self.counters = DatabaseCounters()
        self.identity: DatabaseIdentity | None = None
        self.identity_changes = 0
        """How often a new connection found another Postgres than the one before (see `DatabaseIdentity`)."""
        self._store_id: str | None = None
        self._leads_to: WeakKeyDictionary[AsyncConnection[Row], str | None] = WeakKeyDictionary()
        """What `_store_id` was when the connection was found to lead there."""
        self._last_failure: psycopg.Error | None = None
        self._renewed_at_s = -math.inf
        self._made_at_s: WeakKeyDictionary[AsyncConnection[Row], float] = WeakKeyDictionary()
        self._pool = self._new_pool("tidelog", 1, self._settings.database_pool_size)
        self._kept_pool = self._new_pool("tidelog-commits", 0, 1)
        self._kept: KeptConnection | None = None
        self._kept_in_use = False
        self._kept_since_change = 0
        """`identity_changes` when it was made."""

    def _new_pool(self, name: str, min_size: int, max_size: int) -> _Pool:
        return AsyncConnectionPool(
            self._url,
            connection_class=TellingConnection,
            kwargs=connection_options(self._url, self._settings) | {"tell": self._note_made},
            min_size=min_size,
            max_size=max_size,
            max_waiting=self._settings.database_pool_max_waiting,
            timeout=self._settings.database_pool_timeout_s,
            # The pool's attempts to connect come ever more rarely; given up early, the next call starts afresh at once.
            reconnect_timeout=self._settings.database_pool_timeout_s / 2,
            open=False,
            name=name,
        )

    async def open(self) -> None:
        await self._pool.open(wait=False)
        await self._kept_pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()
        await self._kept_pool.close()
        await self._let_kept_go()

    def unreachable(self) -> SequencerUnavailable | None:
        """Why the last attempt to connect failed, as Postgres or the network said; None if it did not."""
        failure = self._last_failure
        return None if failure is None else SequencerUnavailable.cannot_connect(self._url, failure)

    @property
    def is_kept_to_one(self) -> bool:
        """Whether `keep_to` was told of a database."""
        return self._store_id is not None

    def keep_to(self, store_id: str) -> None:
        """From now on only the database with this `cluster.store_id` is asked: itself, its standby or its restored
        backup."""
        self._store_id = store_id

    async def fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement that may be repeated (it reads, or writing it twice is harmless); returns its rows, if
        any.

        A lost connection is tried again once; then, as for any other failure, it raises SequencerUnavailable.
        """
        try:
            return await self.write(statement, **parameters)
        except CommitOutcomeUnknown as unknown:
            if not unknown.connection_lost:
                raise SequencerUnavailable(str(unknown)) from unknown
        # Postgres may have ended the connection while it lay in the pool (a restart): one more try, on another.
        try:
            return await self.write(statement, **parameters)
        except CommitOutcomeUnknown as unknown:
            raise SequencerUnavailable(str(unknown)) from unknown

    async def write(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement in its own transaction. Raises CommitOutcomeUnknown once it was sent, SequencerUnavailable
        before.
        """
        async with self.connection() as connection:
            cursor = await connection.execute(statement, parameters)
            return await cursor.fetchall() if cursor.description is not None else []

    async def write_kept(self, statement: KeptStatement, values: Sequence[Buffer]) -> list[Values]:
        """As `write`, on a connection kept for it: what comes again and again finds its backend warm, and never waits
        behind others. One at a time; a second one at the same time goes with the others.
        """
        if self._kept_in_use:
            async with self.connection() as connection:
                cursor = await connection.execute(statement.text, statement.named(values))
                assert cursor.pgresult is not None
                return values_of(cursor.pgresult)
        self._kept_in_use = True
        try:
            return await self._execute(await self._kept_for(statement), values)
        finally:
            self._kept_in_use = False

    async def _kept_for(self, statement: KeptStatement) -> KeptConnection:
        if (
            self._kept is not None
            and self._kept.is_usable
            and self._made_at_s[self._kept.connection] >= self._renewed_at_s
            and self._kept_since_change == self.identity_changes  # an old primary may live on behind it
            and self._leads_to.get(self._kept.connection, _NOWHERE) == self._store_id
        ):
            return self._kept
        await self._let_kept_go()
        connection = await self._connection_of(self._kept_pool)
        try:
            async with self._asking(connection):
                self._kept = KeptConnection(connection, statement)
                self._kept_since_change = self.identity_changes
                return self._kept
        finally:
            if self._kept is None:
                await self._kept_pool.putconn(connection)

    async def _let_kept_go(self) -> None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            try:
                await kept.let_go()
            finally:
                await self._kept_pool.putconn(kept.connection)

    async def _execute(self, kept: KeptConnection, values: Sequence[Buffer]) -> list[Values]:
        try:
            return await kept.execute(values, self._settings.database_answer_timeout_s)
        except TimeoutError as error:
            raise self._no_answer() from error
        except psycopg.Error as error:
            await self._raise_ours(error, kept.connection)
            raise
        finally:
            if not kept.is_usable or self._kept_pool.closed:
                await self._let_kept_go()

    async def read_identity(self) -> DatabaseIdentity:
        """Asks which Postgres this is, and notes it as a new connection does."""
        rows = await self.fetch(_IDENTITY)
        return self._note_identity(_identity_of(rows[0]))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A READ COMMITTED transaction, committed at the end of the block, rolled back by an exception.

        Raises as `write`; a block that only reads, or may be repeated, treats CommitOutcomeUnknown as "again".
        """
        async with self.connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def connection(self, *, answer_timeout_s: float | None = None) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in autocommit mode, whose operational errors become this module's. It is kept for at most
        `answer_timeout_s`, else for `database_answer_timeout_s`."""
        connection = await self._connection_of(self._pool)
        try:
            async with self._asking(connection, answer_timeout_s):
                yield connection
        finally:
            await self._pool.putconn(connection)

    @asynccontextmanager
    async def _asking(
        self, connection: AsyncConnection[Row], answer_timeout_s: float | None = None
    ) -> AsyncIterator[None]:
        answer_due = asyncio.timeout(answer_timeout_s or self._settings.database_answer_timeout_s)
        try:
            async with answer_due:
                while self._leads_to.get(connection, _NOWHERE) != self._store_id:
                    await self._find_out(connection)
                yield
        except TimeoutError as error:
            if not answer_due.expired():
                raise
            raise self._no_answer() from error
        except psycopg.Error as error:
            await self._raise_ours(error, connection)
            raise

    def _no_answer(self) -> CommitOutcomeUnknown:
        self.counters.statement_timeouts += 1
        waited = f"TIDELOG_DATABASE_ANSWER_TIMEOUT_S ({self._settings.database_answer_timeout_s} s)"
        return CommitOutcomeUnknown(
            f"the outcome is not known (Postgres at {describe_address(self._url)} gave no answer within {waited})",
            connection_lost=False,
        )

    async def _raise_ours(self, error: psycopg.Error, connection: AsyncConnection[Row]) -> None:
        """What the error means to whoever asked, unless it is one of this program."""
        if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction | errors.UndefinedColumn):
            raise SequencerUnavailable(
                f"the database at {describe_address(self._url)} is not migrated ({_first_line(error)}):"
                " run `tidelog migrate`"
            ) from error
        if isinstance(error, errors.ReadOnlySqlTransaction):
            # A full disk, a switch-over: whoever runs Postgres lifts it again.
            raise SequencerUnavailable(
                f"Postgres at {describe_address(self._url)} takes no writes now ({_first_line(error)})"
            ) from error
        if isinstance(error, psycopg.OperationalError | errors.IdleInTransactionSessionTimeout):
            lost = connection.closed
            if lost:
                await self._renew_pools(connection)
            raise self._unknown(error, lost=lost) from error

    async def _connection_of(self, pool: _Pool) -> AsyncConnection[Row]:
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
        return connection

    async def _renew_pools(self, lost: AsyncConnection[Row]) -> None:
        """Where one connection was lost, those idle in the pools probably are: whoever comes next gets new ones. One
        restart of Postgres fails many calls, and the pools are renewed once, unless what was lost is newer than that.
        """
        if self._made_at_s.get(lost, -math.inf) >= self._renewed_at_s:
            self._renewed_at_s = time.monotonic()
            await self._pool.drain()
            await self._kept_pool.drain()

    def _unknown(self, error: psycopg.Error, lost: bool) -> CommitOutcomeUnknown:
        if isinstance(error, errors.DeadlockDetected):
            self.counters.deadlocks += 1
        elif isinstance(error, errors.SerializationFailure):
            self.counters.serialization_failures += 1
        elif isinstance(error, errors.QueryCanceled | errors.LockNotAvailable):
            self.counters.statement_timeouts += 1
        elif lost:
            self.counters.lost_connections += 1
        message = f"the outcome is not known ({type(error).__name__}: {_first_line(error)})"
        return CommitOutcomeUnknown(message, connection_lost=lost)

    def _note_made(self, made: AsyncConnection[Row] | psycopg.Error) -> None:
        if isinstance(made, psycopg.Error):
            self._last_failure = made
        else:
            self._last_failure = None
            self._made_at_s[made] = time.monotonic()

    async def _find_out(self, connection: AsyncConnection[Row]) -> None:
        """Where a connection leads: before its first statement, and again once one database is kept to. Raises
        SequencerUnavailable where nothing may be asked, and what psycopg raises for a connection that was lost."""
        store_id, found = self._store_id, None
        try:
            [row] = await (await connection.execute(_IDENTITY if store_id is None else _IDENTITY_AND_STORE)).fetchall()
            found = None if store_id is None else row.store_id
        except (errors.UndefinedTable, errors.UndefinedColumn):
            pass  # never migrated, and so not the one
        except psycopg.Error as error:
            if connection.closed:
                raise
            await connection.close()
            raise SequencerUnavailable.cannot_connect(self._url, error) from error
        if found != store_id:
            await connection.close()
            raise SequencerUnavailable(
                f"the database at {describe_address(self._url)} is not the one that this process began with, and is"
                f" asked nothing: the id of its store is {found}, and was {store_id}. Let the address in"
                " TIDELOG_DATABASE_URL lead back; or restart this process, if this database is meant"
            )
        self._note_identity(_identity_of(row))
        self._leads_to[connection] = store_id

    def _note_identity(self, identity: DatabaseIdentity) -> DatabaseIdentity:
        if self.identity is not None and identity != self.identity:
            self.identity_changes += 1
        self.identity = identity
        return identity


# A WAL file's name begins with the timeline; the control file's own copy lags behind a promotion.
_IDENTITY: LiteralString = (
    "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_identifier,"
    " pg_walfile_name(pg_current_wal_insert_lsn()) AS wal_file"
)
_NOWHERE = ""
_IDENTITY_AND_STORE: LiteralString = f"{_IDENTITY}, (SELECT store_id FROM cluster) AS store_id"


def _identity_of(row: Row) -> DatabaseIdentity:
    return DatabaseIdentity(system_identifier=row.system_identifier, timeline=int(row.wal_file[:8], 16))


def describe_address(database_url: str) -> str:
    """Host, port and database of a URL, without its password."""
    try:
        parts = conninfo_to_dict(database_url)
    except psycopg.ProgrammingError:
        return re.sub(r"//[^@/]*@", "//", database_url)
    return f"{parts.get('host', 'the default socket')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().split("\n", 1)[0]
