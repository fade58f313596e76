"""Applies the numbered SQL files of `sequencer/migrations` (`NNNN_name.sql`, append-only) under an advisory
lock.

Promises:
- Every agent may run it at the same time, and a file is applied once, in one transaction.
- A migration never stops commits for longer than `migration_lock_timeout_ms`. Commits queue behind a
  migration that waits for a lock. So it gives up after that time, lets them pass, and tries again later.
- Its locks are free again before a synchronous standby has confirmed it, and soon after this process froze or
  its host was lost. The migration counts as done once the standby has it.
- A long migration runs in steps. Below the line `-- step: repeat until it returns 0` a file has one statement
  that changes a bounded number of rows and returns how many. Each step is one transaction. A killed migration
  continues where it was.
- If `agent_database_role` names a role, that role can afterwards do what `grants.sql` says, and nothing else.
- A database with a later migration than this code knows is refused: an old agent must not run on a newer
  schema by accident. So is a database of a development version.

`schema.sql`, `functions/` and `first_rows.sql` say what a database looks like now. A test makes one database
from them and one from the migrations, and compares the two.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.errors import (
    DeadlockDetected,
    InsufficientPrivilege,
    InternalError_,
    LockNotAvailable,
    UndefinedObject,
)

from sequencer.database.database import SequencerUnavailable, describe_address
from sequencer.settings import MigrationSettings

log = logging.getLogger("tidelog")

T = TypeVar("T")

_FILE = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
_LOCK = 0x7469_6465_6C6F_67  # "tidelog"
_STEP = "-- step: repeat until it returns 0\n"
CONNECT_TIMEOUT_S = 10
ANOTHER_MIGRATION_S = 60
"""How long to wait for another agent's migration."""
_IDLE_S = 10
"""How long a transaction of a process that froze keeps its locks."""


class MigrationRefused(Exception):
    """The database is not one that these migrations made, or is newer than this code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    number: int
    name: str
    text: LiteralString
    step: LiteralString | None
    """Repeated after the text until it returns 0."""


def migrations() -> Sequence[Migration]:
    """Returns the files in order. A number that is used twice or left out is an error of the repository."""
    found = []
    for file in resources.files("sequencer").joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            text = file.read_text(encoding="utf-8")
            schema, _, step = text.partition(_STEP)
            found.append(
                Migration(
                    number=int(match[1]),
                    name=file.name,
                    text=schema,
                    step=step or None,
                )
            )
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise MigrationRefused(
            f"sequencer/migrations must be numbered 1, 2, 3 ... without gaps, found {numbers}"
        )
    return found


def grants() -> LiteralString:
    """Returns `grants.sql`."""
    return resources.files("sequencer").joinpath("grants.sql").read_text(encoding="utf-8")


async def migrate(database_url: str, settings: MigrationSettings) -> list[int]:
    """Returns the numbers applied now. Raises SequencerUnavailable or MigrationRefused."""
    known = migrations()
    try:
        connection = await AsyncConnection.connect(
            database_url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            keepalives_idle=_IDLE_S,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=(_IDLE_S + 3) * 1000,
        )
    except psycopg.OperationalError as error:
        raise SequencerUnavailable.cannot_connect(database_url, error) from error
    try:
        async with connection:
            return await _Migrating(connection, settings).apply(known)
    except InsufficientPrivilege as error:
        raise MigrationRefused(
            f"this database role may not migrate ({str(error).splitlines()[0]}): name the tables' owner in"
            " TIDELOG_MIGRATIONS_DATABASE_URL (docs/security.md)"
        ) from error
    except psycopg.OperationalError as error:
        raise SequencerUnavailable(
            f"migrating {describe_address(database_url)} was interrupted: {error}"
        ) from error


class _Migrating:
    def __init__(self, connection: AsyncConnection, settings: MigrationSettings) -> None:
        self._connection = connection
        self._settings = settings

    async def apply(self, known: Sequence[Migration]) -> list[int]:
        await self._connection.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_S}s'")
        await self._connection.execute(f"SET lock_timeout = '{ANOTHER_MIGRATION_S}s'")
        try:
            # Released with the connection.
            await self._connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        except LockNotAvailable as error:
            raise MigrationRefused(
                f"another migration of this database has been at work for {ANOTHER_MIGRATION_S} s:"
                " run this again once it is done"
            ) from error
        await self._connection.execute(f"SET lock_timeout = {self._settings.migration_lock_timeout_ms}")
        applied = await self._applied(known)
        if applied and max(applied) > len(known):
            raise MigrationRefused(
                f"the database is at migration {max(applied)}, this code knows {len(known)}:"
                " run the newer tidelog that migrated it"
            )
        pending = [migration for migration in known if not applied.get(migration.number, False)]
        for migration in pending:
            if migration.number not in applied:
                await self._patiently(migration.name, partial(self._change_schema, migration))
            if migration.step is not None:
                await self._step_through(migration, migration.step)
            await self._connection.execute(
                "UPDATE migrations SET is_complete = true WHERE number = %s", (migration.number,)
            )
        if self._settings.agent_database_role:
            # A GRANT takes no lock. It fails if another transaction changes the same row of the catalog.
            await self._patiently("grants.sql", self._grant, (InternalError_,))
        return [migration.number for migration in pending]

    async def _applied(self, known: Sequence[Migration]) -> dict[int, bool]:
        """Returns the numbers whose schema exists, each with whether all its steps are done and a standby has
        them."""
        found = await self._connection.execute("SELECT to_regclass('migrations') IS NOT NULL")
        if not (await found.fetchall())[0][0]:
            await self._connection.execute(
                "CREATE TABLE migrations (number integer PRIMARY KEY, name text NOT NULL,"
                " applied_at timestamptz NOT NULL DEFAULT clock_timestamp(), is_complete boolean NOT NULL "
                "DEFAULT true)"
            )
        cursor = await self._connection.execute("SELECT number, name FROM migrations WHERE number = 1")
        if any(name != known[0].name for _, name in await cursor.fetchall()):
            raise MigrationRefused(
                "this database was made by a development version of Tidelog, before the first release:"
                " its tables cannot be brought to this version. Use a new database and a new bucket or prefix"
            )
        cursor = await self._connection.execute("SELECT number, is_complete FROM migrations")
        return dict(await cursor.fetchall())

    async def _grant(self) -> None:
        cursor = await self._connection.execute("SELECT current_schema(), current_user")
        [(schema, owner)] = await cursor.fetchall()
        role = self._settings.agent_database_role
        if role == owner:
            raise MigrationRefused(
                f"TIDELOG_AGENT_DATABASE_ROLE ({role}) is the role that migrates: it would lose its tables."
                " Name another one in TIDELOG_MIGRATIONS_DATABASE_URL"
            )
        try:
            await self._connection.execute(
                sql.SQL(grants()).format(schema=sql.Identifier(schema), role=sql.Identifier(role))
            )
        except UndefinedObject as error:
            raise MigrationRefused(
                f"there is no database role {role} (TIDELOG_AGENT_DATABASE_ROLE): create it first"
            ) from error

    async def _change_schema(self, migration: Migration) -> None:
        """The steps, which are written later, wait for the standby, and so does this."""
        await self._connection.execute("SELECT set_config('synchronous_commit', 'local', true)")
        await self._connection.execute(migration.text)
        await self._connection.execute(
            "INSERT INTO migrations (number, name, is_complete) VALUES (%s, %s, false)",
            (migration.number, migration.name),
        )

    async def _step_through(self, migration: Migration, step: LiteralString) -> None:
        rows = 0
        while changed := await self._patiently(migration.name, partial(self._take_step, step)):
            rows += changed
            log.info("migration goes on in steps", extra={"migration": migration.name, "rows": rows})

    async def _take_step(self, step: LiteralString) -> int:
        cursor = await self._connection.execute(step)
        [(changed,)] = await cursor.fetchall()
        return int(changed)

    async def _patiently(
        self,
        name: str,
        work: Callable[[], Awaitable[T]],
        transient: tuple[type[psycopg.Error], ...] = (LockNotAvailable, DeadlockDetected),
    ) -> T:
        """Does the work in one transaction, as often as it takes to get its locks."""
        ends_s = time.monotonic() + self._settings.migration_patience_s
        pause_s = self._settings.migration_pause_s
        while True:
            try:
                async with self._connection.transaction():
                    return await work()
            except transient as error:
                if time.monotonic() >= ends_s:
                    raise MigrationRefused(
                        f"{name} could not lock what it changes for "
                        f"{self._settings.migration_patience_s:g} s:"
                        " find the long transaction in pg_stat_activity and end it, or raise"
                        " TIDELOG_MIGRATION_PATIENCE_S. Run it again later; nothing is lost"
                    ) from error
                log.warning(
                    (
                        "migration waits for a lock that a long transaction holds, and lets commits pass "
                        "meanwhile"
                    ),
                    extra={
                        "migration": name,
                        "again_in_s": round(pause_s, 1),
                        "error": str(error).split("\n")[0],
                    },
                )
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, self._settings.migration_longest_pause_s)
