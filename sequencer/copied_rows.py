"""Rows as `COPY ... TO STDOUT (FORMAT binary)` writes them, read in pieces of bounded size and loaded again.

Promises that each piece is a whole COPY file, that nothing is done per row but to take it from libpq, that the event
loop is given up every few hundred rows, and that Postgres waits while the caller is busy with a piece. A reading that
is left before its end closes the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from psycopg import AsyncClientCursor, AsyncConnection, pq, sql
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch_many
from psycopg.waiting import Ready, Wait

from storage.byte_arrays import Buffer
from storage.journal_format import Column, CopiedRows

_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_ROWS_PER_TURN: Final = 400
_LOADED_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    is_end: bool
    size_bytes: int


async def copy_out(
    connection: AsyncConnection[Any],
    table: str,
    columns: tuple[Column, ...],
    statement: str,
    parameters: Mapping[str, Any],
    *,
    most_bytes: int,
    is_whole: bool = False,
) -> AsyncIterator[CopiedRows]:
    """The rows of a SELECT whose columns are these; at least one piece, which may have no rows. A piece has
    `most_bytes` or a row more. `is_whole` is kept only if one piece has it all. Raises what psycopg raises."""
    text = sql.SQL(cast(Any, statement)).format(table=sql.Identifier(table)) if "{table}" in statement else statement
    query = AsyncClientCursor(connection).mogrify(cast(Any, text), parameters)
    await _begin(connection, f"COPY ({query}) TO STDOUT (FORMAT binary)".encode())
    is_end, is_first = False, True
    try:
        messages: list[Buffer] = []
        while not is_end:
            size_bytes = 0
            while not is_end and size_bytes < most_bytes:
                taken = await connection.wait(_take(connection.pgconn, messages, most_bytes - size_bytes))
                is_end, size_bytes = taken.is_end, size_bytes + taken.size_bytes
                await asyncio.sleep(0)
            rows = len(messages) - is_end
            data = b"".join([b"" if is_first else _HEADER, *messages, b"" if is_end else _TRAILER])
            messages = []
            if rows > 0 or is_first:
                yield CopiedRows(
                    table=table,
                    is_whole=is_whole and is_first and is_end,
                    columns=columns,
                    rows=max(rows, 0),
                    data=data,
                )
            is_first = False
    finally:
        if not is_end:
            await connection.close()


async def _begin(connection: AsyncConnection[Any], query: bytes) -> None:
    connection.pgconn.send_query(query)
    [result, *_] = await connection.wait(execute(connection.pgconn))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise error_from_result(result)


def _take(pgconn: pq.abc.PGconn, messages: list[Buffer], most_bytes: int) -> Generator[Wait, Ready | int, _Taken]:
    """Some messages, of which each is a row; the first begins with the header, the last is the trailer."""
    size_bytes = 0
    for _ in range(_ROWS_PER_TURN):
        length, data = pgconn.get_copy_data(1)
        while length == 0:
            if size_bytes:
                return _Taken(is_end=False, size_bytes=size_bytes)
            while not (yield Wait.R):
                pass
            pgconn.consume_input()
            length, data = pgconn.get_copy_data(1)
        if length < 0:
            [result, *_] = yield from fetch_many(pgconn)
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise error_from_result(result)
            return _Taken(is_end=True, size_bytes=size_bytes)
        messages.append(data)
        size_bytes += length
        if size_bytes >= most_bytes:
            break
    return _Taken(is_end=False, size_bytes=size_bytes)


async def copy_in(connection: AsyncConnection[Any], rows: CopiedRows, into: str | None = None) -> None:
    """Loads the rows into their table, or into another one. Raises what psycopg raises."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(into or rows.table), sql.SQL(", ").join(sql.Identifier(column.name) for column in rows.columns)
    )
    data = memoryview(rows.data)
    async with connection.cursor().copy(statement) as copy:
        for start in range(0, len(data), _LOADED_AT_ONCE):
            await copy.write(bytes(data[start : start + _LOADED_AT_ONCE]))
