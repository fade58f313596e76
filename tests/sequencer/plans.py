"""For tests of plans: the statement inside a function, its generic plan, and the pages that it touches."""

import re
from collections.abc import Mapping
from typing import Any

from psycopg import AsyncClientCursor, AsyncConnection
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format

from sequencer.database.array_parameters import EncodedArray

_FORMATS = Transformer()
_BUFFERS = re.compile(r"Buffers: shared hit=(\d+)(?: read=(\d+))?")


async def work_statement(connection: AsyncConnection[Any], function: str) -> str:
    """What a function answers with, after its locks: EXPLAIN does not look into functions. Its parameters
    become ours, under their names.
    """
    cursor = await connection.execute(
        "SELECT prosrc, proargnames[:pronargs] AS names, proargtypes::regtype[]::text[] AS types"
        " FROM pg_proc WHERE proname = %s",
        (function,),
    )
    row = await cursor.fetchone()
    assert row is not None
    statement = str(row.prosrc).split("RETURN QUERY", 1)[1].rsplit("END", 1)[0].strip().rstrip(";")
    for name, kind in zip(row.names, row.types, strict=True):
        statement = re.sub(rf"\b{name}\b", f"(%({name})s::{kind})", statement)
    return statement


async def generic_plan(
    connection: AsyncConnection[Any], statement: str, parameters: Mapping[str, Any]
) -> str:
    """The plan of a prepared statement, as it ran; what it did is rolled back. It scans no table."""
    names = [name for name in parameters if f"%({name})s" in statement]
    text = statement
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    values = [_as_list(parameters[name]) for name in names]
    arguments = AsyncClientCursor(connection).mogrify(", ".join(["%s"] * len(values)), values)
    async with connection.transaction(force_rollback=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.execute("SET LOCAL enable_seqscan = off")
        await connection.execute(f"PREPARE explained AS {text}".encode(), prepare=False)
        cursor = await connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE explained ({arguments})".encode(),
            prepare=False,
            binary=False,
        )
        plan = "\n".join(row[0] for row in await cursor.fetchall())
        await connection.execute("DEALLOCATE explained")
    assert "Seq Scan" not in plan, plan
    return plan


def _as_list(value: Any) -> Any:
    if isinstance(value, EncodedArray):
        dumper = _FORMATS.get_dumper(value, PyFormat.BINARY)
        return _FORMATS.get_loader(dumper.oid, Format.BINARY).load(value)
    return list(value) if isinstance(value, tuple) else value


def pages_touched(plan: str) -> int:
    return max(sum(int(pages or 0) for pages in match) for match in _BUFFERS.findall(plan))
