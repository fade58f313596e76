"""For tests of the journal: a writer, a database rebuilt from the bucket, and both databases' content."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection, sql

from compactor.journal_writer import JournalWrite, JournalWriter
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.database.database import Database, Row
from sequencer.journal.journal import CHECKPOINT_TABLES
from sequencer.journal.loading import RunLeftOut, rebuild
from sequencer.journal.reading import JournalFound, JournalInBucket
from sequencer.settings import SequencerSettings
from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import CLUSTER

NOT_COMPARED = ("agents", "merge_candidates", "topic_changes")
"""Entries do not have the first two. The last one is a counter."""


def a_writer(sequencer: Sequencer, store: ObjectStore, **changed: Any) -> JournalWriter:
    return JournalWriter(sequencer, store, CLUSTER, HousekeeperSettings.model_validate(changed))


async def write_all(sequencer: Sequencer, writer: JournalWriter) -> JournalWrite:
    """Writes an entry with everything new, however long the last reading took."""
    await sequencer.database.run(
        "UPDATE journal SET families = coalesce("
        """(SELECT jsonb_object_agg(key, value || '{"took_s": 0}') FROM jsonb_each(families)), '{}')"""
    )
    return await writer.write_entry()


async def found_in(store: ObjectStore) -> JournalFound:
    found = await JournalInBucket(store, CLUSTER).find()
    assert found is not None
    return found


@asynccontextmanager
async def rebuilt(store: ObjectStore, url: str) -> AsyncIterator[tuple[Sequencer, list[RunLeftOut]]]:
    """Makes the database of this URL what the journal in the bucket says."""
    opened = await Sequencer.open(url, SequencerSettings())
    try:
        async with opened.database.transaction() as connection:
            left_out = await rebuild(connection, JournalInBucket(store, CLUSTER), await found_in(store))
        yield opened, left_out
    finally:
        await opened.close()


async def contents(sequencer: Sequencer) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables that a rebuilt database has, as text, in a fixed order."""
    async with sequencer.database.connection() as connection:
        return {
            table: await _rows(connection, table) for table in CHECKPOINT_TABLES if table not in NOT_COMPARED
        }


async def _rows(connection: AsyncConnection[Any], table: str) -> list[tuple[Any, ...]]:
    statement = sql.SQL("SELECT t::text AS row FROM {} AS t ORDER BY 1").format(sql.Identifier(table))
    return [row.row for row in await (await connection.execute(statement)).fetchall()]


class PausingDatabase:
    """A real database whose readers stop after BEGIN, before Postgres takes their snapshot, until `opened` is
    set.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    @asynccontextmanager
    async def connection(self, **options: Any) -> AsyncIterator[Any]:
        async with self._database.connection(**options) as connection:
            yield _PausingConnection(connection, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class _PausingConnection:
    def __init__(self, connection: AsyncConnection[Row], pauses: PausingDatabase) -> None:
        self._connection = connection
        self._pauses = pauses

    async def execute(self, statement: Any, *parameters: Any) -> Any:
        cursor = await self._connection.execute(statement, *parameters)
        if str(statement).startswith("BEGIN"):
            self._pauses.reached.set()
            await self._pauses.opened.wait()
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class DyingStore(MemoryStore):
    """The writer dies at one of its puts: before the put, or after it but before it gets the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_in: int | None = None
        self.is_done_first = False

    def die(self, *, in_puts: int, is_done_first: bool) -> None:
        self.dies_in, self.is_done_first = in_puts, is_done_first

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        if self.dies_in is not None:
            self.dies_in -= 1
        if self.dies_in == 0:
            self.dies_in = None
            if self.is_done_first:
                await super().put_if(key, chunks, expected_tag)
            raise Died
        await super().put_if(key, chunks, expected_tag)


class Died(Exception):
    """As if the process had been killed here."""
