"""A connection for one frequent statement, executed as directly as libpq allows. The statement is prepared
once by name. Its parameters are already in Postgres' binary format. Its values are returned as they came.

Promises:
- A result belongs to its call. After an error or a cancellation the connection takes no more statements: let
  it go.
- A connection that is lost while idle is noticed at once.
- Postgres never gets a request to cancel, which would end a commit's wait for its standby.
- It raises what psycopg raises.

For one event loop. The loop watches an epoll object made here, and that watches libpq's socket. There are two
reasons: uvloop stops watching a socket for good once it was reset, although Postgres' last message is still
unread. And libpq closes its socket by itself, so the next connection may get the same number.
"""

import asyncio
import re
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.abc import Buffer
from psycopg.errors import error_from_result

Values = tuple[bytes | None, ...]
"""The values of a row, in Postgres' binary format."""

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStatement:
    """A statement that is prepared once."""

    name: str
    text: LiteralString
    """The statement in psycopg's form."""
    kinds: Mapping[str, type[bytes]]
    """The parameters by name. Each has the type whose values psycopg passes on unchanged."""

    @property
    def numbered(self) -> bytes:
        """The statement in Postgres' form."""
        numbers = {name: number for number, name in enumerate(self.kinds, 1)}
        return _PARAMETER.sub(lambda found: f"${numbers[found[1]]}", self.text).encode()

    def named(self, values: Sequence[Buffer]) -> dict[str, Any]:
        """The parameters in psycopg's form."""
        return {name: kind(value) for (name, kind), value in zip(self.kinds.items(), values, strict=True)}


_Connection = TypeVar("_Connection", bound=AsyncConnection[Any])


class KeptConnection(Generic[_Connection]):
    def __init__(self, connection: _Connection, statement: KeptStatement) -> None:
        """From now on the connection must get no other statement."""
        self.connection = connection
        self._statement = statement
        self._name = f"kept_{statement.name}".encode()
        self._formats = [pq.Format.BINARY] * len(statement.kinds)
        self._is_prepared = False
        self._ended_well = True
        """True once anything was executed."""
        self._answer: asyncio.Future[pq.abc.PGresult] | None = None
        """The result that is due. It is cancelled with the call that waits for it."""
        self._results: list[pq.abc.PGresult] = []
        self._loop = asyncio.get_running_loop()
        self._socket = connection.pgconn.socket
        self._watched = select.epoll()
        self._watched.register(self._socket, select.EPOLLIN)
        self._loop.add_reader(self._watched.fileno(), self._ready)
        self._listens = True
        self._is_flushing = False
        """True while a part of the request waits for room in the socket."""

    @property
    def is_usable(self) -> bool:
        """True if nothing is in progress and nothing has gone wrong."""
        return self._listens and self._ended_well

    async def execute(self, values: Sequence[Buffer]) -> list[Values]:
        """Returns the rows. After any error, let the connection go. A cancelled call leaves its statement to
        end in Postgres: wait for `end_of_cancelled` before letting go."""
        self._ended_well = False
        pgconn = self.connection.pgconn
        if not self._is_prepared:
            pgconn.send_prepare(self._name, self._statement.numbered)
            await self._answered()
            self._is_prepared = True
        pgconn.send_query_prepared(
            self._name, values, param_formats=self._formats, result_format=pq.Format.BINARY
        )
        result = await self._answered()
        self._ended_well = True
        return values_of(result)

    async def end_of_cancelled(self) -> None:
        """Returns once Postgres has answered the statement of the cancelled call. Raises as `execute`."""
        if self._answer is not None:
            await self._wait()

    async def _answered(self) -> pq.abc.PGresult:
        if not self._listens:  # lost since it was last found usable: the answer could not be received
            raise psycopg.OperationalError("the connection was lost")
        if self.connection.pgconn.flush():
            self._is_flushing = True
            self._watched.modify(self._socket, select.EPOLLIN | select.EPOLLOUT)
        return await self._wait()

    async def _wait(self) -> pq.abc.PGresult:
        answer: asyncio.Future[pq.abc.PGresult] = self._loop.create_future()
        self._answer = answer
        return await answer

    def _ready(self) -> None:
        pgconn = self.connection.pgconn
        try:
            if self._is_flushing and not pgconn.flush():
                self._is_flushing = False
                self._watched.modify(self._socket, select.EPOLLIN)
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    self._settle()
                    return
                self._results.append(result)
        except psycopg.Error as error:
            self._end(error)

    def _settle(self) -> None:
        """Postgres is ready for the next statement. If no result was due, it only sent a notice."""
        if self._answer is None:
            return
        results, self._results = self._results, []
        refusal = _refusal_among(results)
        if refusal is not None:
            self._end(refusal)  # this may have been the connection's last message
        else:
            if not self._answer.done():
                [result] = results
                self._answer.set_result(result)
            self._answer = None

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self._answer = None

    def _end(self, error: Exception) -> None:
        """The connection broke. What Postgres said before tells more."""
        self._listen_no_more()
        self._fail(_refusal_among(self._results) or error)

    def _listen_no_more(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._watched.fileno())
            self._watched.close()

    async def let_go(self) -> None:
        """Closes the connection. A statement in progress ends in Postgres, where statements have a bound."""
        self._listen_no_more()
        self._fail(psycopg.OperationalError("the connection was closed"))
        await self.connection.close()


def _refusal_among(results: Sequence[pq.abc.PGresult]) -> psycopg.Error | None:
    """Returns the first error, also one after the rows: a transaction may fail as it ends."""
    refused = [result for result in results if result.status == pq.ExecStatus.FATAL_ERROR]
    return error_from_result(refused[0]) if refused else None


def values_of(result: pq.abc.PGresult) -> list[Values]:
    columns = range(result.nfields)
    return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]
