"""A primary and its streaming standby, two embedded Postgres, and an address that leads new connections to
either.

Promises:
- The standby is made with `pg_basebackup` and streams until `promote`.
- Promoting leaves the old primary alive. Connections to it stay where they are.
- The address moves new connections only, as a DNS entry or a proxy does.
- Both servers end with the context, also one with processes that a test froze.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from tests.support.directories import new_directory
from tests.support.postgres import Address
from tests.support.waiting import wait_until
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

_SETTINGS = EmbeddedPostgresSettings(durable=False, max_connections=100, shared_buffers_mib=32)


class Server:
    """One of the two servers. Its statements always go to this server, wherever the address leads."""

    def __init__(self, name: str, data: Path) -> None:
        self.name = name
        self.data = data
        self.postgres = EmbeddedPostgres(data, _SETTINGS)

    @property
    def url(self) -> str:
        return self.postgres.url()

    @property
    def postmaster(self) -> psutil.Process:
        return psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement, which waits for no standby."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def configure(self, **settings: str) -> None:
        """ALTER SYSTEM and reload. Sessions follow within a moment."""
        for name, value in settings.items():
            self.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        self.ask("SELECT pg_reload_conf()")
        # Not SHOW, for `ask` sets one of them for itself.
        shown = "SELECT name, reset_val FROM pg_settings WHERE name = ANY(%s)"
        wait_until(lambda: dict(self.ask(shown, list(settings))) == settings)

    def freeze(self, title: str) -> None:
        """SIGSTOP for the server's processes whose title contains this, e.g. "walreceiver"."""
        found = [child for child in self.postmaster.children() if title in " ".join(child.cmdline())]
        assert found, f"the {self.name} has no process {title}"
        for child in found:
            child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT for all frozen processes."""
        for process in (self.postmaster, *self.postmaster.children()):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            self.thaw()
        self.postgres.stop()


class Replication:
    """`promote` swaps `primary` and `standby`. Clients use `address.url`."""

    def __init__(self, directory: Path, *, synchronous: bool) -> None:
        self._directory = directory
        self._synchronous = synchronous
        self._made = 0
        self.servers: list[Server] = []
        self.primary = self._new_server()

    def start(self) -> None:
        self.primary.postgres.start()
        with ThreadPoolExecutor(
            max_workers=1
        ) as elsewhere:  # the caller's thread may already run an event loop
            elsewhere.submit(asyncio.run, migrate(self.primary.url, MigrationSettings())).result()
        self.address = Address(self._directory / "address", self.primary.url)
        self.standby = self._new_standby()

    def demand_standby(self) -> None:
        """From now on, commits on the primary wait for the standby."""
        self.primary.configure(synchronous_standby_names=self.standby.name)
        wait_until(lambda: self._replicates("sync"))

    def promote(self) -> Server:
        """Promotes the standby to a primary that waits for no standby. Returns the old primary, which stays
        alive.
        """
        old, new = self.primary, self.standby
        new.postgres.promote()
        self.primary, self.standby = new, old
        return old

    def fail_over(self) -> Server:
        """Promotes the standby and leads new connections to it. Returns the old primary, which lives on."""
        old = self.promote()
        self.address.lead_to(self.primary.url)
        return old

    def renew_standby(self) -> Server:
        """Ends the old primary that `promote` left, and makes a standby of the current primary."""
        self.standby.stop()
        self.standby = self._new_standby()
        return self.standby

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def _new_server(self) -> Server:
        self._made += 1
        server = Server(f"pg{self._made}", self._directory / f"pg{self._made}")
        self.servers.append(server)
        return server

    def _new_standby(self) -> Server:
        standby = self.standby = self._new_server()
        standby.postgres.copy_from(self.primary.url, standby.name)
        _forget_standbys(standby.data / "postgresql.auto.conf")
        standby.postgres.start()
        wait_until(lambda: self._replicates("async"))
        if self._synchronous:
            self.demand_standby()
        return standby

    def _replicates(self, state: str) -> bool:
        found = (
            "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming' "
            "AND sync_state = %s"
        )
        return bool(self.primary.ask(found, self.standby.name, state))


def _forget_standbys(configuration: Path) -> None:
    """Once promoted, a copy of a primary would wait for a standby that it does not have."""
    lines = configuration.read_text().splitlines(keepends=True)
    configuration.write_text(
        "".join(line for line in lines if not line.startswith("synchronous_standby_names"))
    )


@contextmanager
def replication(*, synchronous: bool = False) -> Iterator[Replication]:
    """A migrated primary and its standby. With `synchronous`, commits wait for the standby."""
    with new_directory("replication") as directory:
        pair = Replication(directory, synchronous=synchronous)
        try:
            pair.start()
            yield pair
        finally:
            pair.stop()


@pytest.fixture
def new_replication() -> Iterator[Callable[..., Replication]]:
    """`new_replication(synchronous=True)` makes a pair that ends with the test."""
    with ExitStack() as made:
        yield lambda **options: made.enter_context(replication(**options))
