"""Postgres for the tests: one embedded server per session, and per test a new, migrated database, copied from
a template in milliseconds. Also a second server, and an address that leads to either, for tests of an address
that moves.

The database's URL has the agents' role, with the rights of `grants.sql`, so the tests show that these are
enough. A test that changes tables or other databases has the mark `superuser`.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from sequencer.client import Sequencer
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from tests.support.directories import new_directory
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

TEMPLATE = "tidelog_template"
OWNER, AGENT, _SUPERUSER = "tidelog_owner", "tidelog_agent", "postgres"
OWN_FOR_YEARS: LiteralString = """
    UPDATE ownership SET confirmed_at = clock_timestamp(), ratchet_s = 1e9,
        system_identifier = (SELECT system_identifier FROM pg_control_system()),
        database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()),
        timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
        postmaster_started_at = pg_postmaster_start_time()"""
_numbers = itertools.count(1)


def as_owner(url: str) -> str:
    """The URL with the role that owns the tables."""
    return _with_role(url, OWNER)


def as_superuser(url: str) -> str:
    return _with_role(url, _SUPERUSER)


def _with_role(url: str, role: str) -> str:
    return f"postgresql://{role}@{url.partition('@')[2]}"


def _role(request: pytest.FixtureRequest) -> str:
    return AGENT if request.node.get_closest_marker("superuser") is None else _SUPERUSER


@contextmanager
def _a_server(purpose: str) -> Iterator[EmbeddedPostgres]:
    with new_directory(purpose) as directory:
        server = EmbeddedPostgres(directory / "data", EmbeddedPostgresSettings(durable=False))
        try:
            with psycopg.connect(server.start(), autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {OWNER} LOGIN; CREATE ROLE {AGENT} LOGIN")
                connection.execute(f"CREATE DATABASE {TEMPLATE} OWNER {OWNER}")
            settings = MigrationSettings(agent_database_role=AGENT)
            asyncio.run(migrate(as_owner(server.url(TEMPLATE)), settings))
            yield server
        finally:
            server.stop()


@contextmanager
def _a_database(server: EmbeddedPostgres, name: str, role: str) -> Iterator[str]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    yield _with_role(server.url(name), role)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The session's server, with a migrated template database."""
    with _a_server("pg") as server:
        yield server


@pytest.fixture(scope="session")
def other_postgres() -> Iterator[EmbeddedPostgres]:
    """A second server."""
    with _a_server("pg2") as server:
        yield server


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database for one test."""
    with _a_database(postgres, f"tidelog_test_{next(_numbers)}", _role(request)) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Another migrated database on the same server, to recover a log into: its URL has the superuser."""
    with _a_database(postgres, f"tidelog_test_{next(_numbers)}", _SUPERUSER) as url:
        yield url


@pytest.fixture
def other_database_url(
    other_postgres: EmbeddedPostgres, database_url: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    """One of the same name on another server."""
    with _a_database(other_postgres, urlsplit(database_url).path.strip("/"), _role(request)) as url:
        yield url


class Address:
    """Stands for a host's name: `url` leads to the server that was set last."""

    def __init__(self, link: Path, first_url: str) -> None:
        self._link = link
        self.url = f"{first_url.split('?')[0]}?host={link}"
        self.lead_to(first_url)

    def lead_to(self, url: str) -> None:
        """Existing connections stay where they are."""
        new = self._link.with_suffix(".new")
        new.symlink_to(parse_qs(urlsplit(url).query)["host"][0])
        new.replace(self._link)

    @staticmethod
    def cut(url: str) -> None:
        """Ends the connections to the database of this URL."""
        with psycopg.connect(as_superuser(url), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture
def address(database_url: str) -> Iterator[Address]:
    """At first, it leads to this test's database."""
    with new_directory("address") as directory:
        yield Address(directory / "pg", database_url)


@pytest.fixture
async def unowned(database_url: str) -> AsyncIterator[Sequencer]:
    """An open client of a database that has not ratcheted its ownership yet. A deadlock or serialization
    failure in any test breaks the lock order, so it fails the test.
    """
    opened = await Sequencer.open(database_url, SequencerSettings())
    try:
        yield opened
        assert opened.database.counters.deadlocks == 0, "the lock order was broken: Postgres found a deadlock"
        assert opened.database.counters.serialization_failures == 0
    finally:
        await opened.close()


@pytest.fixture
async def sequencer(unowned: Sequencer) -> Sequencer:
    """An open client of a database that owns its bucket, for as long as any test takes."""
    await unowned.database.run(OWN_FOR_YEARS)
    return unowned
