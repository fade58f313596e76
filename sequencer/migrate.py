"""Applies the numbered SQL files of `sequencer/migrations` (`NNNN_name.sql`, append-only), each in one transaction,
under an advisory lock.

Promises that every agent may run it at the same time, that a file is applied once, and that a database which knows a
later migration than this code refuses (an old agent must not run on a newer schema by accident).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import LiteralString

import psycopg
from psycopg import AsyncConnection

from sequencer.database import SequencerUnavailable, describe_address

_FILE = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
_LOCK = 0x7469_6465_6C6F_67  # "tidelog"
CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 60
"""How long to wait for another agent's migration, or for a table that one of ours must lock."""


class MigrationRefused(Exception):
    """The database is not one that these migrations made, or is newer than this code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    number: int
    name: str
    text: LiteralString


def migrations() -> Sequence[Migration]:
    """The files in order; a number used twice or left out is an error of the repository."""
    found = []
    for file in resources.files("sequencer").joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            text = file.read_text(encoding="utf-8")
            found.append(Migration(number=int(match[1]), name=file.name, text=text))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise MigrationRefused(f"sequencer/migrations must be numbered 1, 2, 3 ... without gaps, found {numbers}")
    return found


async def migrate(database_url: str) -> list[int]:
    """Returns the numbers applied now. Raises SequencerUnavailable or MigrationRefused."""
    known = migrations()
    try:
        connection = await AsyncConnection.connect(database_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
    except psycopg.OperationalError as error:
        raise SequencerUnavailable.cannot_connect(database_url, error) from error
    try:
        async with connection:
            return await _apply(connection, known)
    except psycopg.OperationalError as error:
        raise SequencerUnavailable(f"migrating {describe_address(database_url)} was interrupted: {error}") from error


async def _apply(connection: AsyncConnection, known: Sequence[Migration]) -> list[int]:
    await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
    await connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))  # released with the connection
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations ("
        "number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    cursor = await connection.execute("SELECT number FROM migrations ORDER BY number")
    applied = [row[0] for row in await cursor.fetchall()]
    if applied and applied[-1] > len(known):
        raise MigrationRefused(
            f"the database is at migration {applied[-1]}, this code knows {len(known)}:"
            " run the newer tidelog that migrated it"
        )
    pending = known[len(applied) :]
    for migration in pending:
        async with connection.transaction():
            await connection.execute(migration.text)
            await connection.execute(
                "INSERT INTO migrations (number, name) VALUES (%s, %s)", (migration.number, migration.name)
            )
    return [migration.number for migration in pending]
