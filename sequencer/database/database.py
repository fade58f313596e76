"""The one way to Postgres: a pool of autocommit connections, prepared statements, binary results, bounded
waits.

Promises:
- An error says whether something may have been written. `SequencerUnavailable`: this call wrote nothing, or
  it was a `run` or `read`, whose caller may repeat it. `CommitOutcomeUnknown`: the statement was sent and its
  end was not seen (or Postgres chose it as a deadlock's or serialization's victim): repeat it until it is
  known. Anything else that psycopg raises is an error of this program.
- Once `keep_to` has named a database, no other database gets a statement: while the address leads elsewhere
  (a wrong DNS entry, another cluster's server), calls raise SequencerUnavailable.
- One primary. When a connection shows another Postgres than before (a failover), every older connection ends:
  idle ones are closed, calls under way on others fail. No result of an older connection is handed out from
  then on. An old primary (a standby of it was promoted) is refused. `on_change` notifies those who keep what
  Postgres said.
- A commit that waits for a synchronous standby is never cancelled: a cancelled call ends in the background,
  on its connection. If Postgres gives up the wait nevertheless, the outcome is unknown. Nothing read after
  that is handed out before the standby has confirmed a write (a barrier). The same holds after a restart of
  Postgres.
- Reads and leases have connections that no write can take: writes may all wait for a standby.
- What clients ask for, leases and reservations, housekeeping, and commits have separate connections (`on`).
  No statement waits behind one of another kind.
"""

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import Buffer

from sequencer.database.commit_connection import KeptConnection, KeptStatement, Values, values_of
from sequencer.database.doubts import Doubts
from sequencer.database.durability import REFUSED_AS_WEAK, Durability
from sequencer.database.errors import (
    CommitOutcomeUnknown,
    DatabaseCounters,
    Failures,
    SequencerUnavailable,
    describe_address,
    first_line,
)
from sequencer.database.fair_queue import Asker
from sequencer.database.lanes import Connections, Lane
from sequencer.database.lookout import Confirmation, watch
from sequencer.database.options import CheckedConnection
from sequencer.database.servers import DURABILITY, DatabaseIdentity, Servers
from sequencer.database.to_the_end import AnswerTimer, ToTheEnd
from sequencer.settings import SequencerSettings

__all__ = [
    "CommitOutcomeUnknown",
    "Database",
    "DatabaseCounters",
    "Row",
    "SequencerUnavailable",
    "describe_address",
]

log = logging.getLogger("tidelog")

Row = Any
"""A named tuple of a statement's columns."""

_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Kept:
    """The connection for commits, shared by all lanes."""

    connection: KeptConnection[CheckedConnection] | None = None
    is_in_use: bool = False


class Database:
    """The pools. It opens even when Postgres is away; calls then raise SequencerUnavailable until it is
    back."""

    def __init__(self, database_url: str, settings: SequencerSettings) -> None:
        self._url = database_url
        self._settings = settings
        self._failures = Failures(database_url, self._settings)
        self._servers = Servers(
            database_url,
            standbys_expected=self._settings.standbys_expected,
            follow=lambda connection: self._connections.follow(connection),
            when_restarted=lambda: self._doubts.raise_for_this_client(),
        )
        self._connections = Connections(database_url, self._settings, self._servers.check_connection)
        self._doubts = Doubts(database_url, self._settings, self._connections.fresh)
        self._statements = ToTheEnd(self._settings, self._connections.fresh, self._failures.no_answer)
        self._confirmation = Confirmation(self.check_address, self._settings.database_confirm_gap_s)
        self._kept = _Kept()
        self._lane = Lane.CLIENTS
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._connections.open()
        lookout = watch(self._settings, self.check_address, self.on(Lane.LEASES)._check_settings)
        self._watching = asyncio.create_task(lookout, name="watch Postgres")

    async def close(self) -> None:
        """A commit that waits for a standby goes on waiting in Postgres."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._doubts.close()
        await self._connections.close()
        self._statements.close()
        if not self._kept.is_in_use:
            await self._let_kept_go()

    def on(self, lane: Lane) -> Self:
        """The same database through this lane's connections. Open and close only the original."""
        other = copy.copy(self)
        other._lane = lane
        return other

    def used_share(self, asker: Asker) -> float:
        """Returns which share of its fair part of the clients' queues this asker uses; 1.0 is all of it."""
        return self._connections.used_share(asker)

    @property
    def counters(self) -> DatabaseCounters:
        return self._failures.counters

    def unreachable(self) -> SequencerUnavailable | None:
        """Why the last attempt to connect failed, as Postgres or the network said; None if it did not."""
        return self._connections.unreachable()

    # --- which Postgres

    @property
    def identity(self) -> DatabaseIdentity | None:
        return self._servers.identity

    @property
    def generation(self) -> int:
        return self._servers.generation

    @property
    def weakness(self) -> str | None:
        """Why nothing may be acknowledged now."""
        return self._servers.weakness

    def on_change(self, changed: Callable[[], None]) -> None:
        """Calls `changed` whenever another Postgres answers than before. It must forget what the former one
        said."""
        self._servers.on_change(changed)

    @property
    def is_kept_to_one(self) -> bool:
        """True if `keep_to` named a database."""
        return self._servers.store_id is not None

    def keep_to(self, store_id: str) -> None:
        """From now on only the database with this `cluster.store_id` gets statements: itself, its standby or
        its restored backup."""
        self._servers.store_id = store_id

    async def read_identity(self) -> DatabaseIdentity:
        """Asks which Postgres this is, and how durable its settings are."""
        async with self._borrowed(certain=False) as connection:
            await self._servers.check_connection(connection)
        assert self.identity is not None, "it was found out just now"
        return self.identity

    async def check_address(self) -> None:
        """Makes a new connection, to see where the address leads now. Raises any error of the connection."""
        async with asyncio.timeout(2 * self._settings.database_connect_timeout_s), self._connections.fresh():
            pass

    async def confirm_primary(self) -> None:
        """Returns once a connection that was made after this call was checked. Raises
        SequencerUnavailable."""
        await self._confirmation.get()

    async def _check_settings(self) -> None:
        [row] = await self.run_local(DURABILITY)
        self._servers.note_durability(Durability(**row._asdict()))
        await self._doubts.settle()

    async def settle_doubt(self, number: int) -> None:
        """Returns once what was read with this number of the table `doubts` may be believed. Raises
        SequencerUnavailable."""
        await self._doubts.settle_number(number)

    async def is_certain(self, within_s: float) -> bool:
        """True if what is read may be believed."""
        try:
            await self._doubts.settle(within_s)
        except SequencerUnavailable:
            return False
        return True

    # --- statements

    async def read(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement that only reads. A lost connection is tried again once; then, as for any other
        failure, it raises SequencerUnavailable."""
        return await self._repeated(lambda: self._on_borrowed(statement, parameters, certain=True))

    async def run_local(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """As `read`, for what a failover may lose: the statement reads hints, or writes with
        `synchronous_commit` set to local. It waits for no standby and for no barrier, as leases must not."""
        return await self._repeated(lambda: self._on_borrowed(statement, parameters, certain=False))

    async def run(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement that may be repeated (it reads, or writing it twice is harmless); returns its
        rows, if any. A lost connection is tried again once; then, as for any other failure, it raises
        SequencerUnavailable."""
        return await self._repeated(lambda: self._with_writer(partial(_rows, statement, parameters)))

    async def write(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Runs one statement in its own transaction. Raises CommitOutcomeUnknown once it was sent."""
        self._servers.refuse_while_weak()
        return await self._with_writer(partial(_rows, statement, parameters))

    async def write_kept(self, statement: KeptStatement, values: Sequence[Buffer]) -> list[Values]:
        """As `write`, on a connection kept for it: a frequent statement finds its backend warm and never
        waits behind others. A second call at the same time uses those of its lane. The statement itself
        refuses weak settings.
        """
        if self._kept.is_in_use:

            async def work(connection: CheckedConnection) -> list[Values]:
                cursor = await connection.execute(statement.text, statement.named(values))
                assert cursor.pgresult is not None
                return values_of(cursor.pgresult)

            return await self._with_writer(work)
        self._kept.is_in_use = True
        try:
            kept = await self._kept_for(statement)
        except BaseException:
            self._kept.is_in_use = False
            raise
        return await self._execute(kept, values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A READ COMMITTED transaction, committed at the end of the block, rolled back by an exception.
        Raises as `write`; a block that only reads, or may be repeated, treats CommitOutcomeUnknown as
        "again"."""
        self._servers.refuse_while_weak()
        await self._doubts.settle()
        connection = await self._connections.take_for_writing(self._lane)
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
                await self._connections.give_back_writers(self._lane, connection)

        async def commit(_: CheckedConnection) -> None:
            await transaction.__aexit__(None, None, None)

        await self._to_its_end(self._ending(connection, commit), connection)

    @asynccontextmanager
    async def connection(
        self, *, answer_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in autocommit mode, for work that waits for no standby: a cancellation reaches
        Postgres. It is kept for at most `answer_timeout_s`, else for `database_answer_timeout_s`."""
        async with self._borrowed(certain=True, answer_timeout_s=answer_timeout_s) as connection:
            yield connection

    async def _repeated(self, attempt: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        try:
            return await attempt()
        except CommitOutcomeUnknown as unknown:
            if not unknown.connection_lost:
                raise SequencerUnavailable(str(unknown)) from unknown
        # Postgres may have ended the connection while it lay in the pool (a restart): one more try, on
        # another.
        try:
            return await attempt()
        except CommitOutcomeUnknown as unknown:
            raise SequencerUnavailable(str(unknown)) from unknown

    async def _on_borrowed(
        self, statement: LiteralString, parameters: dict[str, Any], *, certain: bool
    ) -> list[Row]:
        async with self._borrowed(certain=certain) as connection:
            rows = await _rows(statement, parameters, connection)
        self._servers.check_primary(connection)
        return rows

    @asynccontextmanager
    async def _borrowed(
        self, *, certain: bool, answer_timeout_s: float | None = None
    ) -> AsyncIterator[CheckedConnection]:
        if certain:
            await self._doubts.settle()  # before it takes a connection that leases may need
        connection = await self._connections.take(self._lane)
        try:
            async with self._asking(connection, certain=certain, answer_timeout_s=answer_timeout_s):
                yield connection
        finally:
            await self._connections.give_back(self._lane, connection)

    async def _with_writer(self, work: Callable[[CheckedConnection], Awaitable[_Result]]) -> _Result:
        await self._doubts.settle()
        connection = await self._connections.take_for_writing(self._lane)

        async def checked(connection: CheckedConnection) -> _Result:
            await self._check(connection, certain=True)
            return await work(connection)

        return await self._to_its_end(self._ending(connection, checked), connection)

    # --- the kept connection

    async def _kept_for(self, statement: KeptStatement) -> KeptConnection[CheckedConnection]:
        kept = self._kept.connection
        if (
            kept is not None
            and kept.is_usable
            and self._connections.is_up_to_date(kept.connection)
            and self._servers.is_checked(kept.connection)
        ):
            return kept
        await self._let_kept_go()
        connection = await self._connections.take_kept()
        try:
            async with self._asking(connection, certain=False):
                kept = self._kept.connection = KeptConnection(connection, statement)
                return kept
        finally:
            if self._kept.connection is None:
                await self._connections.give_back_kept(connection)

    async def _let_kept_go(self) -> None:
        kept, self._kept.connection = self._kept.connection, None
        if kept is not None:
            try:
                await kept.let_go()
            finally:
                await self._connections.give_back_kept(kept.connection)

    async def _execute(
        self, kept: KeptConnection[CheckedConnection], values: Sequence[Buffer]
    ) -> list[Values]:
        """Waits in the caller's task: a task for each commit costs as much as the rest of the client's work
        for it."""
        timer = self._statements.timer(kept.connection)
        try:
            answer = await kept.execute(values)
        except asyncio.CancelledError as cancelled:
            self._statements.leave(self._end_badly(kept, timer, cancelled), kept.connection)
            raise
        except BaseException as error:
            await self._statements.run(self._end_badly(kept, timer, error), kept.connection)
            raise
        timer.stop()
        if self._connections.is_closed:
            await self._let_kept_go()
        self._kept.is_in_use = False
        self._check_answer(kept.connection)
        return answer

    async def _end_badly(
        self, kept: KeptConnection[CheckedConnection], timer: AnswerTimer, because: BaseException
    ) -> None:
        """Lets the kept connection go, once a cancelled statement has ended. Raises what the error means."""
        try:
            if isinstance(because, asyncio.CancelledError):
                await kept.end_of_cancelled()
                self._check_answer(kept.connection)
            elif isinstance(because, psycopg.Error):
                raise because
        except psycopg.Error as error:
            await self._raise_ours(error, kept.connection)
            raise
        finally:
            timer.stop()
            try:
                await self._let_kept_go()
            finally:
                self._kept.is_in_use = False

    # --- to the end, without a cancellation

    async def _to_its_end(
        self, ending: Coroutine[Any, Any, _Result], connection: CheckedConnection
    ) -> _Result:
        result = await self._statements.run(ending, connection)
        self._servers.check_primary(connection)
        return result

    async def _ending(
        self, connection: CheckedConnection, work: Callable[[CheckedConnection], Awaitable[_Result]]
    ) -> _Result:
        timer = self._statements.timer(connection)
        try:
            result = await work(connection)
            self._check_answer(connection)
            return result
        except psycopg.Error as error:
            await self._raise_ours(error, connection)
            raise
        finally:
            timer.stop()
            await self._connections.give_back_writers(self._lane, connection)

    # --- checks around a statement

    @asynccontextmanager
    async def _asking(
        self, connection: CheckedConnection, *, certain: bool, answer_timeout_s: float | None = None
    ) -> AsyncIterator[None]:
        answer_due = asyncio.timeout(answer_timeout_s or self._settings.database_answer_timeout_s)
        try:
            await self._check(connection, certain=certain)
            async with answer_due:
                yield
                self._check_answer(connection)
        except TimeoutError as error:
            if not answer_due.expired():
                raise
            raise self._failures.no_answer() from error
        except psycopg.Error as error:
            await self._raise_ours(error, connection)
            raise

    async def _check(self, connection: CheckedConnection, *, certain: bool) -> None:
        """Checks a connection before its first statement, and again after each change of the primary."""
        while not self._servers.is_checked(connection):
            try:
                async with asyncio.timeout(self._settings.database_answer_timeout_s):
                    await self._servers.check_connection(connection)
            except TimeoutError as error:
                raise self._failures.no_answer() from error
        if certain:
            await self._doubts.settle()

    def _check_answer(self, connection: CheckedConnection) -> None:
        """Call it after an answer and before it is handed out. Raises CommitOutcomeUnknown."""
        if connection.wait_was_cut:
            connection.wait_was_cut = False
            self._doubts.raise_for_all()
            raise CommitOutcomeUnknown(
                "the outcome is not known (Postgres was made to give up its wait for a synchronous standby,"
                " which may not have this commit)",
                connection_lost=False,
            )
        self._servers.check_primary(connection)

    async def _raise_ours(self, error: psycopg.Error, connection: CheckedConnection) -> None:
        """Raises what the error means to the caller; returns if it is an error of this program."""
        if connection.wait_was_cut:
            self._doubts.raise_for_all()
        if error.diag.sqlstate == REFUSED_AS_WEAK:
            self._servers.note_weakness(first_line(error))
            self._servers.refuse_while_weak()
        if connection.closed and connection.cut_because is None:
            await self._connections.renew(connection)
        self._failures.raise_meaning(error, connection)


async def _rows(
    statement: LiteralString, parameters: dict[str, Any], connection: AsyncConnection[Row]
) -> list[Row]:
    cursor = await connection.execute(statement, parameters)
    return await cursor.fetchall() if cursor.description is not None else []
