"""The plans of the statements on hot paths, written down in `plans/*.txt`.

`python -m tests.sequencer.transcripts` writes them again.

Of every statement its generic plan without costs, in a small database that is always the same. A statement
within a function is found in the function's source, with the function's settings.
"""

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import AsyncClientCursor, AsyncConnection

from sequencer.client import Sequencer
from sequencer.database.named_sql import load_statements
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

PLANS = Path(__file__).parent / "plans"
CONCERNS = (
    "acls",
    "agents",
    "committed_offsets",
    "coordinates",
    "cleanings",
    "credentials",
    "erasures",
    "garbage",
    "groups",
    "history_log",
    "holds",
    "jobs",
    "journal",
    "merges",
    "observations",
    "producers",
    "quotas",
    "reservations",
    "retention",
    "sinks",
    "topics",
    "transactions",
)
FUNCTIONS = (
    "sequence_segments",
    "commit_segments",
    "commit_offsets",
    "publish_merge",
    "add_to_transaction",
    "end_transaction",
    "end_transactions",
    "commit_sink_batch",
)
_STATEMENT = re.compile(r"\b(?:SELECT|WITH|INSERT|UPDATE|DELETE|PERFORM)\b.*", re.DOTALL)
_INTO_VARIABLES = re.compile(r"\bINTO\s+(?:\w+\s*,\s*)*\w+\s*(?=\bFROM\b|$)")
_CONDITION = re.compile(r"\s*IF\b.*?\bTHEN\n", re.DOTALL)
_DECLARED = re.compile(r"^    (\w+) ([\w\[\]]+)(?: :=.*)?;$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`parameters` are types by name; the text names them as `%(name)s`."""

    text: str
    settings: Sequence[str] = ()
    parameters: Mapping[str, str] | None = None


async def fill(sequencer: Sequencer) -> None:
    for statement in (PLANS / "fill.sql").read_text().split(";")[:-1]:
        async with sequencer.database.connection() as connection:
            await connection.execute(statement.encode())


async def transcripts(sequencer: Sequencer) -> dict[str, str]:
    """What the files hold, by their names."""
    written = {concern: _named(load_statements(concern)) for concern in CONCERNS}
    async with sequencer.database.connection() as connection:
        for function in FUNCTIONS:
            statements = await _statements_within(connection, function)
            written[function] = {f"statement {n}": statement for n, statement in enumerate(statements, 1)}
        return {
            name: "\n".join(
                [f"-- {title}\n{await _plan(connection, s)}\n" for title, s in statements.items()]
            )
            for name, statements in written.items()
        }


def _named(statements: Mapping[str, str]) -> dict[str, Statement]:
    """All but those that read `pg_attribute`: their plans depend on how bloated the catalog is."""
    return {
        name: Statement(text=text)
        for name, text in statements.items()
        if _STATEMENT.match(_uncommented(text)) and "pg_attribute" not in text
    }


def _uncommented(text: str) -> str:
    return re.sub(r"--.*", "", text).strip()


async def _statements_within(connection: AsyncConnection[Any], function: str) -> list[Statement]:
    """In the order in which they stand."""
    cursor = await connection.execute(
        "SELECT prosrc, proconfig, proargnames[:pronargs] AS names, proargtypes::regtype[]::text[] AS types"
        " FROM pg_proc WHERE proname = %s",
        (function,),
    )
    row = await cursor.fetchone()
    assert row is not None
    declared, body = _uncommented(row.prosrc).split("BEGIN\n", 1)
    parameters = dict(zip(row.names, row.types, strict=True)) | dict(_DECLARED.findall(declared))
    found = []
    for part in body.split(";"):
        while condition := _CONDITION.match(part):
            part = part[condition.end() :]
        matched = _STATEMENT.search(part)
        if matched is None or re.match(r"\s*(?:ASSERT|GET)\b", part):
            continue
        text = _INTO_VARIABLES.sub("", re.sub(r"^PERFORM\b", "SELECT", matched[0]))
        for name, kind in parameters.items():
            text = re.sub(rf"(?<![.\w])(?<!AS ){name}\b", f"(%({name})s::{kind})", text)
        found.append(Statement(text=text, settings=row.proconfig or [], parameters=parameters))
    return found


async def _plan(connection: AsyncConnection[Any], statement: Statement) -> str:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.text)))
    text = statement.text
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    async with connection.transaction(force_rollback=True):
        for setting in statement.settings:
            await connection.execute(f"SET LOCAL {setting}".encode())
        cursor = AsyncClientCursor(connection)
        await cursor.execute(f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {text}".encode())
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    return re.sub(r"\$(\d+)\b", lambda found: f":{names[int(found[1]) - 1]}", plan)


async def _write(database_url: str) -> None:
    await migrate(database_url, MigrationSettings())
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        await fill(sequencer)
        PLANS.mkdir(exist_ok=True)
        for name, text in (await transcripts(sequencer)).items():
            (PLANS / f"{name}.txt").write_text(text)
    finally:
        await sequencer.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-plans-") as directory:
        server = EmbeddedPostgres(Path(directory) / "data", EmbeddedPostgresSettings(durable=False))
        try:
            asyncio.run(_write(server.start()))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
