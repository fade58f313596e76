"""For tests of the ownership: copies of a database, time that passes at once, stores that fail."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psycopg

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.stores.memory_store import MemoryStore
from storage.stores.object_store import ObjectStore, StoreUnavailable, TaggedObject
from tests.support.postgres import OWNER

CLUSTER = "tidelog"
_copies = itertools.count(1)


@asynccontextmanager
async def a_copy(
    sequencer: Sequencer, database_url: str, *, as_files: bool = True
) -> AsyncIterator[Sequencer]:
    """A copy of the database as it is now. `as_files`: as if its files had been copied and another Postgres
    had been started on them; else as a dump that was restored.
    """
    name = urlsplit(database_url).path.strip("/")
    copy = f"{name}_copy_{next(_copies)}"
    url = database_url.replace(f"/{name}", f"/{copy}", 1)
    server = database_url.replace(f"/{name}", "/postgres", 1)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        connection.execute(f"CREATE DATABASE {copy} OWNER {OWNER} TEMPLATE {name} STRATEGY FILE_COPY")
    opened = await Sequencer.open(url, SequencerSettings())
    try:
        if as_files:
            await opened.database.run(
                "UPDATE ownership SET postmaster_started_at = postmaster_started_at - interval '1 day',"
                " database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())"
                " WHERE database_oid IS NOT NULL"
            )
        await sequencer.database.run("SELECT")  # its connections were ended
        yield opened
    finally:
        await opened.close()
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {copy} WITH (FORCE)")


async def time_passes(sequencer: Sequencer, seconds: float) -> None:
    """As if the clock were `seconds` ahead."""
    await sequencer.database.run(
        "UPDATE ownership SET confirmed_at = confirmed_at - make_interval(secs => %(seconds)s),"
        " watched_since = watched_since - make_interval(secs => %(seconds)s)",
        seconds=seconds,
    )


class WithoutConditions(MemoryStore):
    """A store that ignores conditions of puts, like rclone."""

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        del expected_tag
        await self.put(key, chunks)


class BreaksAt:
    """A store that fails at call number `at` of a ratchet (get, put, get). `after`: it fails after the call
    was done.
    """

    def __init__(self, store: ObjectStore, at: int, *, after: bool) -> None:
        self._store = store
        self._calls_left = at
        self._after = after

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], expected_tag: str | None) -> None:
        self._count(after=False)
        await self._store.put_if(key, chunks, expected_tag)
        self._count(after=True)

    async def get_tagged(self, key: ObjectKey) -> TaggedObject:
        self._count(after=False)
        found = await self._store.get_tagged(key)
        self._count(after=True)
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _count(self, *, after: bool) -> None:
        if not after:
            self._calls_left -= 1
        if self._calls_left == 0 and after == self._after:
            raise StoreUnavailable("killed")
