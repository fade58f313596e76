"""A recovery with real parts: a database that is copied and restored, a bucket, and a comparison."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from recovery.recover import Task, recover, rehearse
from recovery.report import Report
from recovery.settings import RecoverySettings
from sequencer.client import Sequencer
from sequencer.settings import MigrationSettings, SequencerSettings
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.compactor.builders import CLUSTER
from tests.support.postgres import OWNER
from tidelog.embedded.postgres import EmbeddedPostgres


@dataclass(kw_only=True)
class Place:
    """A cluster: its database, which can be set back, and its bucket."""

    server: EmbeddedPostgres
    database_url: str
    store_url: str
    store: ObjectStore
    sequencer: Sequencer
    backups: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return urlsplit(self.database_url).path.strip("/")

    def back_up(self) -> str:
        """A copy of the database as it is now."""
        copy = f"{self.name}_backup_{len(self.backups)}"
        self._copy(self.name, copy)
        self.backups.append(copy)
        return copy

    def restore(self, backup: str) -> None:
        """Sets the database back to the copy. The bucket stays as it is."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        self._copy(backup, self.name)

    def server_without(self, name: str) -> None:
        """Leaves an empty database without tables."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name} OWNER {OWNER}")

    def _copy(self, old: str, new: str) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {old} ALLOW_CONNECTIONS false")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (old,)
            )
            connection.execute(f"CREATE DATABASE {new} OWNER {OWNER} TEMPLATE {old} STRATEGY FILE_COPY")
            connection.execute(f"ALTER DATABASE {old} ALLOW_CONNECTIONS true")
            connection.execute(f"ALTER DATABASE {new} ALLOW_CONNECTIONS true")

    def task(self, *, take_over: bool = True, **settings: Any) -> Task:
        chosen = {
            "ownership_ratchet_s": 0.05,
            "recovery_requests": 3,
            "recovery_holes_per_step": 2,
            **settings,
        }
        return Task(
            database_url=self.database_url,
            store_url=self.store_url,
            cluster=CLUSTER,
            take_over=take_over,
            settings=RecoverySettings.model_validate(chosen),
            store_settings=StoreSettings(),
            sequencer_settings=SequencerSettings(),
            migration_settings=MigrationSettings(),
        )

    async def recover(self, *, take_over: bool = True, **settings: Any) -> Report:
        return await recover(self.task(take_over=take_over, **settings), self.store)

    async def rehearse(self, **settings: Any) -> Report:
        return await rehearse(self.task(**settings), self.store)


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, database_url: str, sequencer: Sequencer, tmp_path: Path
) -> AsyncIterator[Place]:
    store_url = f"file://{tmp_path}"
    store = await open_store(store_url, StoreSettings())
    place = Place(
        server=postgres, database_url=database_url, store_url=store_url, store=store, sequencer=sequencer
    )
    yield place
    await store.close()
    with _quietly(postgres) as connection:
        for backup in place.backups:
            connection.execute(f"DROP DATABASE IF EXISTS {backup} WITH (FORCE)")


@contextmanager
def _quietly(server: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield connection
