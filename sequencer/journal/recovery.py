"""The database for `tidelog recover`: one connection, statements that may take long, no other writer.

Promises:
- A rehearsal leaves nothing behind: it works on copies, in a schema made by a transaction that is rolled
  back.
- If two recoveries of one database run at once, the second is refused.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString, Self, cast

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import namedtuple_row

from sequencer.commits.commits import Committed, SegmentRefused, SegmentToCommit, commit_on
from sequencer.commits.outcomes import Outcomes, encode_outcomes
from sequencer.database.database import Database, Row, SequencerUnavailable
from sequencer.database.named_sql import load_statements
from sequencer.migrate import CONNECT_TIMEOUT_S, migrations
from storage.identifiers import ObjectKey, Offset, Partition, SegmentId, TopicId

SQL = load_statements("recovery")
WRITER: Final = "recovery"
"""The writer in the headers and rows of objects that recovery writes."""
WRITER_BEYOND: Final = f"{WRITER} beyond"
"""The writer in the rows of objects that were added after the end of the log, until the recovery has
ended."""
_REHEARSAL: Final = "tidelog_rehearsal"


class RecoveryAtWork(Exception):
    """Another recovery of this database runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """A segment as the bucket's listing shows it."""

    segment_id: SegmentId
    object_key: ObjectKey
    size_bytes: int
    modified_at: datetime
    is_merged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRange:
    """Offsets `[base_offset, last_offset]` that no object holds any more."""

    topic_id: TopicId
    topic: str
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    reason: str
    found_at: datetime


class GoneRanges:
    """The ranges that recovery gave up, for logs and for `tidelog doctor`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def first(self, cap: int) -> Sequence[GoneRange]:
        """At most `cap` ranges that consumers may still come to, by topic, partition and offset."""
        rows = await self._database.run(SQL["gone_ranges"], cap=cap)
        return [
            GoneRange(
                topic_id=row.topic_id,
                topic=row.name,
                partition=row.partition,
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                reason=row.reason,
                found_at=row.found_at,
            )
            for row in rows
        ]


class RecoverySession:
    """`async with RecoverySession.open(url, ...) as session:`."""

    def __init__(self, connection: AsyncConnection[Row], *, is_rehearsal: bool) -> None:
        self.connection = connection
        self.is_rehearsal = is_rehearsal

    @classmethod
    @asynccontextmanager
    async def open(cls, database_url: str, *, statement_timeout_s: float) -> AsyncIterator[Self]:
        """On a migrated database. Raises SequencerUnavailable or RecoveryAtWork."""
        async with _connected(database_url, statement_timeout_s) as connection:
            session = cls(connection, is_rehearsal=False)
            if not (await session.row("lock_recovery")).locked:
                raise RecoveryAtWork("another `tidelog recover` works on this database; wait for its end")
            yield session

    @classmethod
    @asynccontextmanager
    async def rehearse(cls, database_url: str, *, statement_timeout_s: float) -> AsyncIterator[Self]:
        """Works on copies, dropped at the end. The database may be empty. Raises SequencerUnavailable."""
        async with (
            _connected(database_url, statement_timeout_s) as connection,
            connection.transaction(force_rollback=True),
        ):
            session = cls(connection, is_rehearsal=True)
            await session._copy_everything()
            yield session

    async def _copy_everything(self) -> None:
        """Copies the columns that both sides have: the database may be older than this code."""
        execute = self.connection.execute
        await execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        [found] = await (await execute("SELECT current_schema() AS schema")).fetchall()
        await execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(_REHEARSAL)))
        await execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(_REHEARSAL)))
        for migration in migrations():
            await execute(migration.text)
        if found.schema is None:
            return
        tables = await (await execute(_COMMON_COLUMNS, {"old": found.schema, "new": _REHEARSAL})).fetchall()
        for table in tables:
            new, old = sql.Identifier(_REHEARSAL, table.name), sql.Identifier(found.schema, table.name)
            columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
            await execute(sql.SQL("TRUNCATE {}").format(new))
            await execute(sql.SQL("INSERT INTO {0} ({2}) SELECT {2} FROM {1}").format(new, old, columns))

    async def run(self, name: str, **parameters: Any) -> list[Row]:
        """Runs one named statement."""
        return await self.execute(SQL[name], **parameters)

    async def execute(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        cursor = await self.connection.execute(statement, parameters or None)
        return await cursor.fetchall() if cursor.description is not None else []

    async def row(self, name: str, **parameters: Any) -> Row:
        [found] = await self.run(name, **parameters)
        return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield

    async def begin_listing(self) -> None:
        await self.run("listing_table")
        await self.run("empty_listing")
        await self.run("missing_table")
        await self.run("empty_missing")

    async def add_listed(self, objects: Iterable[ListedObject]) -> None:
        async with self.connection.cursor() as cursor, cursor.copy(SQL["copy_listing"]) as copy:
            for one in objects:
                await copy.write_row(
                    (one.segment_id, one.object_key, one.size_bytes, one.modified_at, one.is_merged)
                )

    async def end_listing(self) -> tuple[int, int]:
        """Returns how many uploaded and merged segments the bucket has."""
        await self.run("index_listing")
        await self.connection.execute("ANALYZE listed")
        counts = await self.row("count_listing")
        return counts.uploaded, counts.merged

    async def commit(self, segments: Sequence[SegmentToCommit]) -> tuple[Committed | SegmentRefused, ...]:
        return await commit_on(self.connection, segments)

    async def set_outcome(self, segment_id: SegmentId, outcomes: Outcomes) -> None:
        await self.run("set_outcome", segment_id=segment_id, outcome=encode_outcomes(outcomes))


@asynccontextmanager
async def _connected(database_url: str, statement_timeout_s: float) -> AsyncIterator[AsyncConnection[Row]]:
    try:
        connection = await AsyncConnection.connect(
            database_url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            row_factory=namedtuple_row,
            application_name="tidelog recover",
        )
    except psycopg.OperationalError as error:
        raise SequencerUnavailable.cannot_connect(database_url, error) from error
    try:
        async with connection:
            await connection.execute("SET jit = off")
            await connection.execute("SET tidelog.recovers = on")
            await connection.execute(
                sql.SQL("SET statement_timeout = {}").format(sql.Literal(int(statement_timeout_s * 1000)))
            )
            yield cast(AsyncConnection[Row], connection)
    except psycopg.OperationalError as error:
        raise SequencerUnavailable(
            f"Postgres failed while it was recovered: {error}. Run it again"
        ) from error


_COMMON_COLUMNS: Final = """
SELECT new.table_name AS name, array_agg(new.column_name::text) AS columns
FROM information_schema.columns AS new JOIN information_schema.columns AS old USING (table_name, column_name)
WHERE new.table_schema = %(new)s AND old.table_schema = %(old)s AND new.is_generated = 'NEVER'
GROUP BY new.table_name
"""
