"""Rows as `COPY ... TO STDOUT (FORMAT binary)` writes them: reads them in pieces of bounded size, and loads
them again.

Promises:
- Each piece is a whole COPY file.
- Per row, the only work is to take it from libpq. Every few hundred rows other tasks get the event loop.
- Postgres waits while the caller is busy with a piece.
- A reading that is left before its end closes the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from psycopg import AsyncClientCursor, AsyncConnection, pq, sql
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch_many
from psycopg.waiting import Ready, Wait

from storage.segments.journal_format import Column, CopiedRows

_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_ROWS_PER_TURN: Final = 400
_LOADED_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    is_end: bool
    rows: int


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
    """Yields the rows of a SELECT with these columns: at least one piece, which may have no rows. A piece has
    `most_bytes` or one row more. `is_whole` stays set only if one piece has everything. Raises what psycopg
    raises."""
    text = (
        sql.SQL(cast(Any, statement)).format(table=sql.Identifier(table))
        if "{table}" in statement
        else statement
    )
    query = AsyncClientCursor(connection).mogrify(cast(Any, text), parameters)
    await _begin(connection, f"COPY ({query}) TO STDOUT (FORMAT binary)".encode())
    is_end, is_first = False, True
    try:
        while not is_end:
            data = bytearray() if is_first else bytearray(_HEADER)
            rows = 0
            while not is_end and len(data) < most_bytes:
                taken = await connection.wait(_take(connection.pgconn, data, most_bytes))
                is_end, rows = taken.is_end, rows + taken.rows
                await asyncio.sleep(0)
            if is_end:
                rows -= 1  # the last message is the trailer
            else:
                data += _TRAILER
            if rows > 0 or is_first:
                is_all = is_whole and is_first and is_end
                yield CopiedRows(table=table, is_whole=is_all, columns=columns, rows=max(rows, 0), data=data)
            is_first = False
    finally:
        if not is_end:
            await connection.close()


async def _begin(connection: AsyncConnection[Any], query: bytes) -> None:
    connection.pgconn.send_query(query)
    [result, *_] = await connection.wait(execute(connection.pgconn))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise error_from_result(result)


def _take(pgconn: pq.abc.PGconn, data: bytearray, most_bytes: int) -> Generator[Wait, Ready | int, _Taken]:
    """Appends some messages, one row each. The first begins with the header, the last is the trailer.

    They are copied at once: a list of them would hold 50,000 objects, which costs six times as much.
    """
    for rows in range(_ROWS_PER_TURN):
        length, message = pgconn.get_copy_data(1)
        while length == 0:
            pgconn.consume_input()
            length, message = pgconn.get_copy_data(1)
            if length == 0:
                if rows:
                    return _Taken(is_end=False, rows=rows)
                while not (yield Wait.R):
                    pass
        if length < 0:
            [result, *_] = yield from fetch_many(pgconn)
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise error_from_result(result)
            return _Taken(is_end=True, rows=rows)
        data += message
        if len(data) >= most_bytes:
            return _Taken(is_end=False, rows=rows + 1)
    return _Taken(is_end=False, rows=_ROWS_PER_TURN)


async def copy_in(connection: AsyncConnection[Any], rows: CopiedRows, into: str | None = None) -> None:
    """Loads the rows into their table, or into another one. Raises what psycopg raises."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(into or rows.table),
        sql.SQL(", ").join(sql.Identifier(column.name) for column in rows.columns),
    )
    data = memoryview(rows.data)
    async with connection.cursor().copy(statement) as copy:
        for start in range(0, len(data), _LOADED_AT_ONCE):
            await copy.write(bytes(data[start : start + _LOADED_AT_ONCE]))
