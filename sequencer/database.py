"""The one way to Postgres: a pool of autocommit connections, prepared statements, binary results, bounded waits.

Promises:
- An error says whether something may have been written. `SequencerUnavailable`: this call wrote nothing, or it was a
  `fetch` or `read`, whose caller may repeat it. `CommitOutcomeUnknown`: the statement was sent and its end was not seen
  (or Postgres chose it as a deadlock's or serialization's victim): repeat it until it is known. Anything else that
  psycopg raises is an error of this program.
- Once `keep_to` named a database, no other is asked anything: where the address leads elsewhere (a wrong DNS entry,
  another cluster's server), calls raise SequencerUnavailable until it leads back.
- One primary. When a connection shows another Postgres than before (a failover), every older connection ends: idle
  ones are closed, what is under way on others fails. No result of an older connection is handed out from then on. A
  server that a standby was promoted past is refused. Who keeps what Postgres said hears of it by `on_change`.
- A commit that waits for a synchronous standby is never cancelled: a call that was cancelled ends in the background, on
  its connection. Where Postgres gave up the wait nevertheless, the outcome is unknown, and nothing that was read since
  is handed out before a write was confirmed by the standby (a barrier). So, too, after a restart of Postgres.
- Reads and leases have connections that no write can take: writes may all wait for a standby.
"""

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, Self, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from sequencer.connection_options import CheckedConnection, connection_options
from sequencer.durability import REFUSED_AS_WEAK, Durability
from sequencer.kept_connection import KeptConnection, KeptStatement, Values, values_of
from sequencer.primaries import DatabaseIdentity, Primaries, Verdict
from sequencer.settings import SequencerSettings

log = logging.getLogger(__name__)

Row = Any
"""A named tuple of a statement's columns."""

_Pool: TypeAlias = AsyncConnectionPool[CheckedConnection]
_Result = TypeVar("_Result")


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
        self.weakness: str | None = None
        """Why nothing may be acknowledged now; None if it may."""
        self._primaries = Primaries()
        self._generation = 0
        """Raised when another Postgres answers: connections of an earlier one are not to be believed."""
        self._when_changed: list[Callable[[], None]] = []
        self._store_id: str | None = None
        self._started_at: datetime | None = None
        """The server's start, as last seen."""
        self._doubts = 0
        """How often what was read could be of a commit that no standby has."""
        self._doubts_settled = 0
        """The doubts that a confirmed barrier has ended."""
        self._doubt_known = 0
        """The highest number in the table `doubts` that was heeded."""
        self._barrier: asyncio.Task[None] | None = None
        self._last_failure: psycopg.Error | None = None
        self._renewed_at_s = -math.inf
        self._pool = self._new_pool("tidelog", 1, self._settings.database_pool_size)
        self._kept_pool = self._new_pool("tidelog-commits", 0, 1)
        self._writers = asyncio.Semaphore(
            max(1, self._settings.database_pool_size - self._settings.database_pool_reads)
        )
        self._writers_waiting = 0
        self._kept: KeptConnection[CheckedConnection] | None = None
        self._kept_in_use = False
        self._in_use: set[CheckedConnection] = set()
        self._background: set[asyncio.Task[Any]] = set()
        """Calls on their way to their end, whatever became of their callers."""
        self._abandoned: set[CheckedConnection] = set()
        """Connections of calls whose callers were cancelled."""
        self._watching: asyncio.Task[None] | None = None

    def _new_pool(self, name: str, min_size: int, max_size: int) -> _Pool:
        return AsyncConnectionPool(
            self._url,
            connection_class=CheckedConnection,
            kwargs=self._options(),
            min_size=min_size,
            max_size=max_size,
            max_waiting=self._settings.database_pool_max_waiting,
            timeout=self._settings.database_pool_timeout_s,
            # The pool's attempts to connect come ever more rarely; given up early, the next call starts afresh at once.
            reconnect_timeout=self._settings.database_pool_timeout_s / 2,
            open=False,
            name=name,
        )

    def _options(self) -> dict[str, Any]:
        return connection_options(self._url, self._settings) | {"tell": self._note_made}

    async def open(self) -> None:
        await self._pool.open(wait=False)
        await self._kept_pool.open(wait=False)
        self._watching = asyncio.create_task(self._watch_settings_and_primary(), name="watch Postgres")

    async def close(self) -> None:
        """A commit that waits for a standby goes on waiting in Postgres."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._barrier is not None:
            self._barrier.cancel()
        await self._pool.close()
        await self._kept_pool.close()
        closed = SequencerUnavailable("the client of Postgres was closed")
        for connection in tuple(self._abandoned):
            connection.cut(closed)
        if not self._kept_in_use:
            await self._let_kept_go()

    def unreachable(self) -> SequencerUnavailable | None:
        """Why the last attempt to connect failed, as Postgres or the network said; None if it did not."""
        failure = self._last_failure
        return None if failure is None else SequencerUnavailable.cannot_connect(self._url, failure)

    # --- which Postgres

    @property
    def identity(self) -> DatabaseIdentity | None:
        """The Postgres that answers, as last found out."""
        return self._primaries.current

    @property
    def generation(self) -> int:
        """How often another Postgres answered than before."""
        return self._generation

    @property
    def is_in_doubt(self) -> bool:
        """Whether nothing that is read is handed out until a standby confirmed a write."""
        return self._doubts != self._doubts_settled

    def on_change(self, changed: Callable[[], None]) -> None:
        """Calls `changed` at once whenever another Postgres answers than before: forget what the one before said."""
        self._when_changed.append(changed)

    @property
    def is_kept_to_one(self) -> bool:
        """Whether `keep_to` named a database."""
        return self._store_id is not None

    def keep_to(self, store_id: str) -> None:
        """From now on only the database with this `cluster.store_id` is asked: itself, its standby or its restored
        backup."""
        self._store_id = store_id

    async def read_identity(self) -> DatabaseIdentity:
        """Asks which Postgres this is and how durable its settings are, and notes both as a new connection does."""
        async with self._borrowed(certain=False) as connection:
            await self._find_out(connection)
        assert self.identity is not None, "it was found out just now"
        return self.identity

    async def look_afresh(self) -> None:
        """Makes a new connection, to see where the address leads by now. Raises what a new connection meets:
        psycopg.Error, SequencerUnavailable, TimeoutError, OSError."""
        async with asyncio.timeout(2 * self._settings.database_connect_timeout_s), self._fresh():
            pass

    # --- statements

    async def read(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement that only reads. A lost connection is tried again once; then, as for any other failure, it
        raises SequencerUnavailable.
        """
        return await self._repeated(lambda: self._on_borrowed(statement, parameters, certain=True))

    async def fetch_local(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """As `read`, for what a failover may lose: the statement reads hints, or writes with `synchronous_commit` set
        to local. It waits for no standby and for no barrier, as leases must not.
        """
        return await self._repeated(lambda: self._on_borrowed(statement, parameters, certain=False))

    async def fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement that may be repeated (it reads, or writing it twice is harmless); returns its rows, if
        any. A lost connection is tried again once; then, as for any other failure, it raises SequencerUnavailable.
        """
        return await self._repeated(lambda: self._run_to_its_end(statement, parameters))

    async def write(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement in its own transaction. Raises CommitOutcomeUnknown once it was sent, SequencerUnavailable
        before.
        """
        self._refuse_while_weak()
        return await self._run_to_its_end(statement, parameters)

    async def write_kept(self, statement: KeptStatement, values: Sequence[Buffer]) -> list[Values]:
        """As `write`, on a connection kept for it: what comes again and again finds its backend warm, and never waits
        behind others. One at a time; a second one at the same time goes with the others. The statement itself refuses
        weak settings.
        """
        if self._kept_in_use:

            async def work(connection: CheckedConnection) -> list[Values]:
                cursor = await connection.execute(statement.text, statement.named(values))
                assert cursor.pgresult is not None
                return values_of(cursor.pgresult)

            return await self._with_writer(work)
        self._kept_in_use = True
        try:
            kept = await self._kept_for(statement)
        except BaseException:
            self._kept_in_use = False
            raise
        return await self._shielded(self._execute(kept, values), kept.connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A READ COMMITTED transaction, committed at the end of the block, rolled back by an exception.

        Raises as `write`; a block that only reads, or may be repeated, treats CommitOutcomeUnknown as "again".
        """
        self._refuse_while_weak()
        connection = await self._writers_connection()
        is_committing = False
        try:
            transaction = connection.transaction()
            async with self._asking(connection, certain=True):
                await transaction.__aenter__()
                try:
                    yield connection
                except BaseException as error:
                    await transaction.__aexit__(type(error), error, error.__traceback__)
                    raise
            is_committing = True
        finally:
            if not is_committing:
                await self._give_back(connection)

        async def commit(_: CheckedConnection) -> None:
            await transaction.__aexit__(None, None, None)

        await self._shielded(self._ending(connection, commit), connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in autocommit mode, whose operational errors become this module's. For what waits for no
        standby: a cancellation reaches Postgres.
        """
        async with self._borrowed(certain=True) as connection:
            yield connection

    async def _repeated(self, attempt: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        try:
            return await attempt()
        except CommitOutcomeUnknown as unknown:
            if not unknown.connection_lost:
                raise SequencerUnavailable(str(unknown)) from unknown
        # Postgres may have ended the connection while it lay in the pool (a restart): one more try, on another.
        try:
            return await attempt()
        except CommitOutcomeUnknown as unknown:
            raise SequencerUnavailable(str(unknown)) from unknown

    async def _on_borrowed(self, statement: LiteralString, parameters: dict[str, Any], *, certain: bool) -> list[Row]:
        async with self._borrowed(certain=certain) as connection:
            rows = await _rows(connection, statement, parameters)
        self._heed_primary(connection)
        return rows

    async def _run_to_its_end(self, statement: LiteralString, parameters: dict[str, Any]) -> list[Row]:
        return await self._with_writer(lambda connection: _rows(connection, statement, parameters))

    def _refuse_while_weak(self) -> None:
        if self.weakness is not None:
            raise SequencerUnavailable(f"nothing is written: {self.weakness}")

    # --- connections

    @asynccontextmanager
    async def _borrowed(self, *, certain: bool) -> AsyncIterator[CheckedConnection]:
        if certain and self.is_in_doubt:
            await self._settle_doubts()  # ahead of taking a connection, which leases may need
        connection = await self._connection_of(self._pool)
        self._in_use.add(connection)
        try:
            async with self._asking(connection, certain=certain):
                yield connection
        finally:
            self._in_use.discard(connection)
            await self._pool.putconn(connection)

    async def _with_writer(self, work: Callable[[CheckedConnection], Awaitable[_Result]]) -> _Result:
        connection = await self._writers_connection()

        async def checked(connection: CheckedConnection) -> _Result:
            await self._check(connection, certain=True)
            return await work(connection)

        return await self._shielded(self._ending(connection, checked), connection)

    async def _writers_connection(self) -> CheckedConnection:
        """One of those that writes may take. `_give_back` returns it."""
        if self.is_in_doubt:
            await self._settle_doubts()
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
            connection = await self._connection_of(self._pool)
        except BaseException:
            self._writers.release()
            raise
        self._in_use.add(connection)
        return connection

    def _all_busy(self) -> SequencerUnavailable:
        return SequencerUnavailable(
            f"all connections for writes to Postgres at {describe_address(self._url)} were busy for"
            f" TIDELOG_DATABASE_POOL_TIMEOUT_S ({self._settings.database_pool_timeout_s} s)."
            " Does a synchronous standby keep them waiting?"
        )

    async def _give_back(self, connection: CheckedConnection) -> None:
        self._in_use.discard(connection)
        self._writers.release()
        await self._pool.putconn(connection)

    async def _connection_of(self, pool: _Pool) -> CheckedConnection:
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

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[CheckedConnection]:
        """A new connection outside the pool, which tells where the address leads now. Raises psycopg.Error."""
        connection = await CheckedConnection.connect(self._url, **self._options())
        self._in_use.add(connection)
        try:
            await self._find_out(connection)
            yield connection
        finally:
            self._in_use.discard(connection)
            await connection.close()

    # --- the kept connection

    async def _kept_for(self, statement: KeptStatement) -> KeptConnection[CheckedConnection]:
        kept = self._kept
        if (
            kept is not None
            and kept.is_usable
            and kept.connection.made_at_s >= self._renewed_at_s
            and self._is_checked(kept.connection)
        ):
            return kept
        await self._let_kept_go()
        connection = await self._connection_of(self._kept_pool)
        try:
            async with self._asking(connection, certain=False):
                self._kept = KeptConnection(connection, statement)
                self._in_use.add(connection)
                return self._kept
        finally:
            if self._kept is None:
                await self._kept_pool.putconn(connection)

    async def _let_kept_go(self) -> None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._in_use.discard(kept.connection)
            try:
                await kept.let_go()
            finally:
                await self._kept_pool.putconn(kept.connection)

    async def _execute(self, kept: KeptConnection[CheckedConnection], values: Sequence[Buffer]) -> list[Values]:
        timer = self._cut_unless_it_waits_for_a_standby(kept.connection)
        try:
            answer = await kept.execute(values)
            self._heed(kept.connection)
            return answer
        except psycopg.Error as error:
            await self._raise_ours(error, kept.connection)
            raise
        finally:
            timer.stop()
            try:
                if not kept.is_usable or self._kept_pool.closed:
                    await self._let_kept_go()
            finally:
                self._kept_in_use = False

    # --- to the end, without a cancellation

    async def _shielded(self, ending: Coroutine[Any, Any, _Result], connection: CheckedConnection) -> _Result:
        """What `ending` returns. If the caller is cancelled, it goes on, and gives its connection back by itself:
        psycopg would send a request to cancel, which ends a commit's wait for its standby, too."""
        task = asyncio.create_task(ending)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandoned.add(connection)
                task.add_done_callback(lambda _: self._abandoned.discard(connection))
            raise
        self._heed_primary(connection)
        return result

    async def _ending(
        self, connection: CheckedConnection, work: Callable[[CheckedConnection], Awaitable[_Result]]
    ) -> _Result:
        timer = self._cut_unless_it_waits_for_a_standby(connection)
        try:
            result = await work(connection)
            self._heed(connection)
            return result
        except psycopg.Error as error:
            await self._raise_ours(error, connection)
            raise
        finally:
            timer.stop()
            await self._give_back(connection)

    def _cut_unless_it_waits_for_a_standby(self, connection: CheckedConnection) -> "_Timer":
        async def cut() -> None:
            if not await self._waits_for_a_standby(connection.info.backend_pid) and not timer.is_stopped:
                self.counters.statement_timeouts += 1
                connection.cut(self._no_answer())

        timer = _Timer(self._settings.database_answer_timeout_s, cut)
        return timer

    async def _waits_for_a_standby(self, backend_pid: int) -> bool:
        """Whether Postgres says so; False if it says nothing."""
        with suppress(psycopg.Error, SequencerUnavailable, TimeoutError, OSError):
            async with asyncio.timeout(self._settings.database_connect_timeout_s), self._fresh() as connection:
                return bool(await _rows(connection, _WAITS_FOR_A_STANDBY, {"pid": backend_pid}))
        return False

    # --- asking

    @asynccontextmanager
    async def _asking(self, connection: CheckedConnection, *, certain: bool) -> AsyncIterator[None]:
        answer_due = asyncio.timeout(self._settings.database_answer_timeout_s)
        try:
            await self._check(connection, certain=certain)
            async with answer_due:
                yield
                self._heed(connection)
        except TimeoutError as error:
            if not answer_due.expired():
                raise
            self.counters.statement_timeouts += 1
            raise self._no_answer() from error
        except psycopg.Error as error:
            await self._raise_ours(error, connection)
            raise

    def _is_checked(self, connection: CheckedConnection) -> bool:
        return connection.generation == self._generation and connection.leads_to == self._store_id

    async def _check(self, connection: CheckedConnection, *, certain: bool) -> None:
        """Ahead of the first statement on a connection, since the last change."""
        while not self._is_checked(connection):
            try:
                async with asyncio.timeout(self._settings.database_answer_timeout_s):
                    await self._find_out(connection)
            except TimeoutError as error:
                self.counters.statement_timeouts += 1
                raise self._no_answer() from error
        if certain and self.is_in_doubt:
            await self._settle_doubts()

    def _heed(self, connection: CheckedConnection) -> None:
        """What came with an answer, before anyone may believe it. Raises CommitOutcomeUnknown."""
        if connection.wait_was_cut:
            connection.wait_was_cut = False
            self._doubt()
            raise CommitOutcomeUnknown(
                "the outcome is not known (Postgres was made to give up its wait for a synchronous standby,"
                " which may not have this commit)",
                connection_lost=False,
            )
        self._heed_primary(connection)

    def _heed_primary(self, connection: CheckedConnection) -> None:
        """Again after each wait between an answer and whoever asked. Raises CommitOutcomeUnknown."""
        if connection.generation != self._generation:
            raise _moved()

    def _no_answer(self) -> CommitOutcomeUnknown:
        waited = f"TIDELOG_DATABASE_ANSWER_TIMEOUT_S ({self._settings.database_answer_timeout_s} s)"
        return CommitOutcomeUnknown(
            f"the outcome is not known (Postgres at {describe_address(self._url)} gave no answer within {waited})",
            connection_lost=False,
        )

    async def _raise_ours(self, error: psycopg.Error, connection: CheckedConnection) -> None:
        """What the error means to whoever asked, unless it is one of this program."""
        if connection.wait_was_cut:
            self._doubt()
        if connection.cut_because is not None:
            raise connection.cut_because from error
        if error.diag.sqlstate == REFUSED_AS_WEAK:
            self._note_weakness(_first_line(error))
            self._refuse_while_weak()
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

    async def _renew_pools(self, lost: CheckedConnection) -> None:
        """Where one connection was lost, those idle in the pools probably are: whoever comes next gets new ones. One
        restart of Postgres fails many calls, and the pools are renewed once, unless what was lost is newer than that.
        """
        if lost.made_at_s >= self._renewed_at_s:
            await self._drain_pools()

    async def _drain_pools(self) -> None:
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

    def _note_made(self, made: CheckedConnection | psycopg.Error) -> None:
        self._last_failure = made if isinstance(made, psycopg.Error) else None

    # --- where connections lead

    async def _find_out(self, connection: CheckedConnection) -> None:
        """Where a connection leads and how durable its settings are. Raises SequencerUnavailable where nothing may be
        asked, and what psycopg raises for a connection that was lost."""
        store_id, found, generation = self._store_id, None, self._generation
        try:
            [row] = await _rows(connection, _FACTS if store_id is None else _FACTS_AND_STORE, {})
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
        identity = DatabaseIdentity(system_identifier=row.system_identifier, timeline=int(row.wal_file[:8], 16))
        verdict = self._primaries.judge(identity)
        if verdict is Verdict.OLD:
            await connection.close()
            raise self._old_primary(identity)
        if verdict is Verdict.CHANGED:
            await self._follow(connection)
        elif generation != self._generation:
            return  # it changed meanwhile: this answer may be older than that
        durability = Durability(
            synchronous_commit=row.synchronous_commit, synchronous_standby_names=row.synchronous_standby_names
        )
        self._note_durability(durability)
        if row.started_at != self._started_at:
            # A restart makes visible what no standby may have: commits that still waited for it.
            self._started_at = row.started_at
            if durability.has_standbys:
                self._doubts += 1
        connection.generation, connection.leads_to = self._generation, store_id

    def _old_primary(self, identity: DatabaseIdentity) -> SequencerUnavailable:
        highest = self._primaries.highest_timeline(identity.system_identifier)
        return SequencerUnavailable(
            f"the Postgres at {describe_address(self._url)} is an old primary, and is asked nothing: its timeline is"
            f" {identity.timeline}, and a standby was promoted to timeline {highest}. Stop it, and let the address in"
            " TIDELOG_DATABASE_URL lead to the new primary; or restart this process, if this database is meant"
        )

    async def _follow(self, connection: CheckedConnection) -> None:
        """Another Postgres answers, on this connection: end all others, and say so to whoever keeps what the one before
        said."""
        self._generation += 1
        log.warning("another Postgres answers than before: every older connection ends", extra=_fields(self.identity))
        for other in tuple(self._in_use):
            if other is not connection:
                other.cut(_moved())
        for changed in self._when_changed:
            changed()
        await self._drain_pools()

    async def _watch_settings_and_primary(self) -> None:
        """Until cancelled. Pooled connections may all lead to an old primary that is well: only a new one shows where
        the address leads by now."""
        look_afresh_s, is_troubled = self._next_look_s(), False
        while True:
            await asyncio.sleep(self._settings.database_durability_check_s * random.uniform(0.8, 1.2))
            try:
                if time.monotonic() >= look_afresh_s:
                    look_afresh_s = self._next_look_s()
                    await self.look_afresh()
                else:
                    [row] = await self.fetch_local(_DURABILITY)
                    self._note_durability(Durability(**row._asdict()))
                if self.is_in_doubt:
                    await self._settle_doubts()
                is_troubled = False
            except (psycopg.Error, SequencerUnavailable, CommitOutcomeUnknown, TimeoutError, OSError) as error:
                if not is_troubled:
                    log.warning("Postgres cannot be looked at", extra={"error": str(error)})
                is_troubled = True

    def _next_look_s(self) -> float:
        return time.monotonic() + self._settings.database_recheck_s * random.uniform(0.8, 1.2)

    # --- durability

    def _note_durability(self, durability: Durability) -> None:
        complaints = durability.complaints(standbys_expected=self._settings.standbys_expected)
        self._note_weakness("; ".join(complaints) or None)

    def _note_weakness(self, weakness: str | None) -> None:
        if weakness != self.weakness:
            self.weakness = weakness
            if weakness is None:
                log.info("Postgres keeps what it acknowledges again")
            else:
                log.warning("nothing is acknowledged", extra={"reason": weakness})

    # --- doubt

    def _doubt(self) -> None:
        """A commit of this client may be visible to all, and on no standby."""
        self._doubts += 1
        log.warning("a commit may be on no standby: what is read waits until one confirms a write")
        task = asyncio.create_task(self._tell_others_of_doubt())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _tell_others_of_doubt(self) -> None:
        try:
            [row] = await self.fetch_local(_RAISE_DOUBT)
        except SequencerUnavailable as error:
            log.warning("other agents could not be told of a doubtful commit", extra={"error": str(error)})
        else:
            self._doubt_known = max(self._doubt_known, row.number)

    async def heed_doubt(self, number: int) -> None:
        """`number` is the table's, read in the same statement as something that is to be believed. Returns once it may
        be: a doubt that is new to this client is settled first. Raises SequencerUnavailable."""
        if number > self._doubt_known:
            self._doubt_known = number
            self._doubts += 1
        if self.is_in_doubt:
            await self._settle_doubts()

    async def is_certain(self, within_s: float) -> bool:
        """Whether what is read may be believed, once there was so much time to settle it."""
        try:
            await self._settle_doubts(within_s)
        except SequencerUnavailable:
            return False
        return True

    async def _settle_doubts(self, within_s: float | None = None) -> None:
        """Waits for a barrier, one for all. Raises SequencerUnavailable."""
        try:
            async with asyncio.timeout(self._settings.database_pool_timeout_s if within_s is None else within_s):
                while self.is_in_doubt:
                    if self._barrier is None or self._barrier.done():
                        self._barrier = asyncio.create_task(self._write_barrier())
                    await asyncio.shield(self._barrier)
        except TimeoutError as error:
            raise SequencerUnavailable(
                f"the standby of Postgres at {describe_address(self._url)} has not confirmed that it has every commit,"
                " since the wait of one was cut short; nothing new is read until it does"
            ) from error
        except psycopg.Error as error:
            raise SequencerUnavailable.cannot_connect(self._url, error) from error

    async def _write_barrier(self) -> None:
        """A transaction that leaves nothing and is confirmed by the standby: so is whatever was committed before it."""
        doubts = self._doubts
        async with self._fresh() as connection:
            await connection.execute(_BARRIER)
            if not connection.wait_was_cut and connection.generation == self._generation:
                self._doubts_settled = doubts


def _moved() -> CommitOutcomeUnknown:
    return CommitOutcomeUnknown(
        "the outcome is not known (another Postgres is the primary by now)", connection_lost=True
    )


class _Timer:
    """Calls back after a time, and again after as much, until it is stopped."""

    def __init__(self, after_s: float, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._after_s = after_s
        self._call = call
        self.is_stopped = False
        self._calling: asyncio.Task[None] | None = None
        self._handle = asyncio.get_running_loop().call_later(after_s, self._due)

    def stop(self) -> None:
        self.is_stopped = True
        self._handle.cancel()

    def _due(self) -> None:
        self._calling = asyncio.create_task(self._call())
        self._calling.add_done_callback(self._again)

    def _again(self, _: asyncio.Task[None]) -> None:
        if not self.is_stopped:
            self._handle = asyncio.get_running_loop().call_later(self._after_s, self._due)


async def _rows(connection: AsyncConnection[Row], statement: LiteralString, parameters: dict[str, Any]) -> list[Row]:
    cursor = await connection.execute(statement, parameters)
    return await cursor.fetchall() if cursor.description is not None else []


# A WAL file's name begins with the timeline; the control file's own copy lags behind a promotion.
_FACTS: LiteralString = (
    "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_identifier,"
    " pg_walfile_name(pg_current_wal_insert_lsn()) AS wal_file, pg_postmaster_start_time() AS started_at,"
    " current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names"
)
_FACTS_AND_STORE: LiteralString = f"{_FACTS}, (SELECT store_id FROM cluster) AS store_id"
_DURABILITY: LiteralString = (
    "SELECT current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names"
)
_WAITS_FOR_A_STANDBY: LiteralString = (
    "SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s::integer AND wait_event = 'SyncRep'"
)
# Transactional, so that it commits, and its commit waits for the standby.
_BARRIER: LiteralString = "SELECT pg_logical_emit_message(true, 'tidelog', '')"
_RAISE_DOUBT: LiteralString = (
    "UPDATE doubts SET number = number + 1"
    " FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby RETURNING number"
)


def _fields(identity: DatabaseIdentity | None) -> dict[str, int]:
    return {} if identity is None else {"system_identifier": identity.system_identifier, "timeline": identity.timeline}


def describe_address(database_url: str) -> str:
    """Host, port and database of a URL, without its password."""
    try:
        parts = conninfo_to_dict(database_url)
    except psycopg.ProgrammingError:
        return re.sub(r"//[^@/]*@", "//", database_url)
    return f"{parts.get('host', 'the default socket')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().split("\n", 1)[0]
