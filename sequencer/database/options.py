"""How a connection is made: autocommit, prepared statements, binary results, named tuples, bounds on
statements and on silent peers. Also what this client knows of each connection."""

import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from psycopg import AsyncConnection, AsyncCursor, Error, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic
from psycopg.rows import namedtuple_row

from sequencer.database.durability import WAIT_FOR_STANDBY
from sequencer.settings import SequencerSettings

NOWHERE: Final = ""
"""Marks a connection whose database is not known yet."""


class _BinaryCursor(AsyncCursor[Any]):
    """A cursor with binary results by default."""

    def __init__(self, connection: AsyncConnection[Any], **options: Any) -> None:
        super().__init__(connection, **options)
        self.format = pq.Format.BINARY


class CheckedConnection(AsyncConnection[Any]):
    """A connection, and what is known of its database.

    It also reports the outcome of the attempt to connect, which a pool does not pass on.
    """

    def __init__(self, pgconn: pq.abc.PGconn, *arguments: Any, **options: Any) -> None:
        super().__init__(pgconn, *arguments, **options)
        self.made_at_s = -math.inf
        self.generation = -1
        """The `Database`'s generation when this connection was last checked."""
        self.leads_to: str | None = NOWHERE
        """The store id found then, if it mattered."""
        self.wait_was_cut = False
        """Postgres gave up waiting for its standby: what was committed here may be nowhere else."""
        self.cut_because: Exception | None = None
        """The error for the calls that were in progress."""
        self.add_notice_handler(self._notice)

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        tell: Callable[[Self | Error], None] = options.pop("tell")
        try:
            made = await super().connect(conninfo, **options)
        except Error as error:
            tell(error)
            raise
        made.made_at_s = time.monotonic()
        tell(made)
        return made

    def cut(self, because: Exception) -> None:
        """Ends the calls in progress with an error, at once. Postgres gets no request to cancel, which would
        also cancel its wait for a standby."""
        if self.cut_because is None and not self.closed:
            self.cut_because = because
            with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as its_socket:
                its_socket.shutdown(socket.SHUT_RDWR)

    def _notice(self, notice: Diagnostic) -> None:
        if notice.source_function == WAIT_FOR_STANDBY:
            self.wait_was_cut = True


_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_ENCRYPTS: Final = ("require", "verify-ca", "verify-full")


def is_encrypted(database_url: str) -> bool:
    """True if connections to this Postgres are encrypted, or stay on this machine. libpq's default takes an
    unencrypted one if the server offers no other.
    """
    given = conninfo_to_dict(database_url)
    hosts = str(given.get("hostaddr") or given.get("host") or "").split(",")
    is_local = all(host in _LOCAL_HOSTS or host.startswith(("/", "@")) or not host for host in hosts)
    return is_local or given.get("sslmode") in _ENCRYPTS


def connection_options(database_url: str, settings: SequencerSettings) -> dict[str, Any]:
    """Returns psycopg's options besides the address, whose own options stay."""
    parameters = {
        "statement_timeout": settings.database_statement_timeout_ms,
        "idle_in_transaction_session_timeout": settings.database_idle_in_transaction_timeout_ms,
        "default_transaction_isolation": r"read\ committed",
        "jit": "off",
        "timezone": "UTC",
        "tidelog.standbys_expected": "on" if settings.standbys_expected else "off",
    }
    given = conninfo_to_dict(database_url)
    return {
        "autocommit": True,
        "prepare_threshold": 0,
        "row_factory": namedtuple_row,
        "cursor_factory": _BinaryCursor,
        "connect_timeout": settings.database_connect_timeout_s,
        "keepalives": 1,
        "keepalives_idle": settings.database_keepalive_idle_s,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": (settings.database_keepalive_idle_s + 3) * 1000,
        "application_name": given.get("application_name") or "tidelog",
        "options": " ".join(
            [*(f"-c {name}={value}" for name, value in parameters.items()), str(given.get("options") or "")]
        ).strip(),
    }
