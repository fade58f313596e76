"""What the sequencer's Postgres says about its own durability and archiving, and changes of its settings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from sequencer.database.database import describe_address
from tidelog.errors import UserError

SETTINGS = (
    "archive_command",
    "archive_mode",
    "archive_timeout",
    "data_directory",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "wal_level",
)
LEFT_BY_A_RESTORE = (
    "recovery_target_action",
    "recovery_target_time",
    "recovery_target_timeline",
    "restore_command",
)

_STATE = """
SELECT pg_is_in_recovery() AS in_recovery,
       (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
       extract(epoch FROM pg_postmaster_start_time())::bigint AS started_at_s,
       (SELECT sum(pg_database_size(oid))::bigint FROM pg_database) AS size_bytes,
       archiver.last_archived_wal, archiver.last_archived_time, archiver.last_failed_wal,
       archiver.last_failed_time, archiver.archived_count, now() AS now,
       (SELECT count(*) FROM pg_stat_replication
        WHERE sync_state IN ('sync', 'quorum')) AS synchronous_standbys
FROM pg_stat_archiver archiver
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """`settings` has the names in SETTINGS. If this role may not read one, its value is None."""

    settings: Mapping[str, str | None]
    pending_restart: frozenset[str]
    """Settings that are changed in the files and wait for a restart."""
    system_identifier: str
    started_at_s: int
    in_recovery: bool
    size_bytes: int
    last_archived_wal: str | None
    last_archived_at: datetime | None
    last_failed_wal: str | None
    last_failed_at: datetime | None
    archived_count: int
    synchronous_standbys: int
    now: datetime

    @property
    def is_archiving(self) -> bool:
        """Archive mode is on. This does not say that the command works."""
        return self.settings["archive_mode"] in ("on", "always")

    @property
    def is_failing(self) -> bool:
        """The archiver's last attempt failed."""
        if self.last_failed_at is None:
            return False
        return self.last_archived_at is None or self.last_failed_at > self.last_archived_at

    def runs_here(self) -> bool:
        """True if Postgres runs on this machine. (Elsewhere, a data directory may have the same path.)"""
        directory = self.settings["data_directory"]
        if directory is None:
            return False
        try:
            lines = (Path(directory) / "postmaster.pid").read_text().splitlines()
            return abs(int(lines[2]) - self.started_at_s) <= 2
        except (OSError, ValueError, IndexError):
            return False


class Server:
    """One connection. The caller closes it."""

    def __init__(self, connection: psycopg.Connection[psycopg.rows.TupleRow]) -> None:
        self._connection = connection

    def state(self) -> ServerState:
        """Everything at one moment."""
        rows = self._connection.execute(
            "SELECT name, setting, unit, pending_restart FROM pg_settings WHERE name = ANY(%s)",
            [[*SETTINGS, *LEFT_BY_A_RESTORE]],
        ).fetchall()
        settings: dict[str, str | None] = dict.fromkeys(SETTINGS) | {
            name: value for name, value, _, _ in rows
        }
        with self._connection.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            found: Any = cursor.execute(_STATE).fetchone()
        return ServerState(
            settings=settings,
            pending_restart=frozenset(name for name, _, _, pending in rows if pending),
            system_identifier=found.system_identifier,
            started_at_s=found.started_at_s,
            in_recovery=found.in_recovery,
            size_bytes=found.size_bytes,
            last_archived_wal=found.last_archived_wal,
            last_archived_at=found.last_archived_time,
            last_failed_wal=found.last_failed_wal,
            last_failed_at=found.last_failed_time,
            archived_count=found.archived_count,
            synchronous_standbys=found.synchronous_standbys,
            now=found.now,
        )

    def change(self, settings: Mapping[str, str], resets: tuple[str, ...] = ()) -> None:
        """Writes settings into postgresql.auto.conf and makes Postgres read it. Needs a superuser."""
        for name, value in settings.items():
            self._connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
        for name in resets:
            self._connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
        self._connection.execute("SELECT pg_reload_conf()")

    def switch_wal(self) -> None:
        """Ends the current WAL file, so that it is archived now. A switch needs something written before
        it.
        """
        self._connection.execute("SELECT pg_logical_emit_message(false, 'tidelog', 'backup')")
        self._connection.execute("SELECT pg_switch_wal()")


@contextmanager
def connected(database_url: str, timeout_s: float) -> Iterator[Server]:
    """Raises UserError if Postgres refuses."""
    try:
        with psycopg.connect(
            database_url, autocommit=True, connect_timeout=max(1, round(timeout_s))
        ) as connection:
            yield Server(connection)
    except psycopg.errors.InsufficientPrivilege as refused:
        raise UserError(
            f"Postgres refuses: {' '.join(str(refused).split())}.",
            "Backups need a superuser: set TIDELOG_DATABASE_URL to one for this command. A managed "
            "Postgres that has none makes its own backups; use those.",
        ) from None
    except psycopg.OperationalError as away:
        raise UserError(
            f"Cannot reach Postgres at {describe_address(database_url)}: {' '.join(str(away).split())}.",
            "Is it running, and is TIDELOG_DATABASE_URL right?",
        ) from None
