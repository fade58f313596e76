"""Barman's commands for backups in object stores (barman-cloud-*), run as processes.

Promises:
- Keys and passwords are passed in the environment, which other users cannot read.
- If a command fails, the error has what it printed.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from storage.stores.object_store import StoreSettings
from tidelog.backup.archive import Archive
from tidelog.errors import UserError

INSTALL = "Install it for this Python: `pip install 'tidelog[backup]'` (in a checkout: `make install`)."
_DONE = "DONE"
_WATCH_S = 0.2
_ERROR_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBackup:
    """One whole base backup."""

    backup_id: str
    server: str
    began_at: datetime
    ended_at: datetime
    begin_wal: str
    timeline: int
    size_bytes: int
    postgres_version: int
    """As `server_version_num`: 180004."""


def program(name: str) -> str:
    """The path of one of Barman's commands; raises UserError if it is not installed."""
    found = _find(name)
    if found is None:
        raise UserError(f"{name} is not installed.", INSTALL)
    return found


def program_or_name(name: str) -> str:
    """Like `program`, but without the path if it is not installed: for settings of another machine."""
    return _find(name) or name


class Barman:
    """Runs the commands for one archive. Each gets `variables` and the keys in its environment."""

    def __init__(
        self, archive: Archive, store: StoreSettings, variables: Mapping[str, str], *, timeout_s: float
    ) -> None:
        self._archive = archive
        self._timeout_s = timeout_s
        self._environment = {**variables, **archive.environment()}
        if store.s3_access_key is not None and store.s3_secret_key is not None:
            self._environment["AWS_ACCESS_KEY_ID"] = store.s3_access_key
            self._environment["AWS_SECRET_ACCESS_KEY"] = store.s3_secret_key.get_secret_value()

    def backups(self, server: str) -> list[BaseBackup]:
        """All complete base backups of a server, oldest first."""
        said = self._run(
            "barman-cloud-backup-list", [*self._where(server, "--format", "json")], self._timeout_s
        )
        found = [
            _base_backup(each, server) for each in json.loads(said)["backups_list"] if each["status"] == _DONE
        ]
        return sorted(found, key=lambda backup: backup.ended_at)

    def back_up(self, server: str, database_url: str, jobs: int, on_read: Callable[[int], None]) -> None:
        """Takes a base backup of the server on this machine; `on_read` gets the bytes read so far."""
        options = self._where(
            server, "--lz4", "--immediate-checkpoint", "--jobs", str(jobs), *self._archive.upload_options()
        )
        self._run("barman-cloud-backup", options, None, libpq_environment(database_url), on_read)

    def restore(self, backup: BaseBackup, directory: Path, on_read: Callable[[int], None]) -> None:
        """Unpacks a base backup into an empty directory."""
        options = [*self._where(backup.server), backup.backup_id, str(directory)]
        self._run("barman-cloud-restore", options, None, {}, on_read)

    def prune(self, server: str, keep: int) -> None:
        """Deletes all but the newest `keep` base backups, and WAL that none of these needs."""
        options = self._where(server, "--retention-policy", f"REDUNDANCY {keep}")
        self._run("barman-cloud-backup-delete", options, None)

    def _where(self, server: str, *options: str) -> list[str]:
        return [*self._archive.store_options(), *options, self._archive.url, server]

    def _run(
        self,
        name: str,
        options: Sequence[str],
        timeout_s: float | None,
        environment: Mapping[str, str] | None = None,
        on_read: Callable[[int], None] | None = None,
    ) -> str:
        """What the command printed. Raises UserError."""
        command = [program(name), *options]
        # Files, because a full pipe would block the command.
        with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                env={**self._environment, **(environment or {})},
            )
            try:
                _wait(process, timeout_s, on_read)
            except BaseException as interrupted:
                process.send_signal(signal.SIGINT)  # it tells Postgres that the backup ended
                process.wait()
                if isinstance(interrupted, subprocess.TimeoutExpired):
                    raise UserError(f"{name} did not end within {timeout_s:g} s.", _REACHABLE) from None
                raise
            errors.seek(0)
            if process.returncode != 0:
                said = errors.read().strip()[-_ERROR_CHARACTERS:]
                raise UserError(f"{name} ended with status {process.returncode}: {said}", _REACHABLE)
            printed.seek(0)
            return printed.read()


_REACHABLE = "Can this machine reach the bucket? Checked TIDELOG_STORE_URL and TIDELOG_S3_*."


def libpq_environment(database_url: str) -> dict[str, str]:
    """The URL as the variables that every client of Postgres reads (PGHOST, PGPASSWORD, ...)."""
    given = conninfo_to_dict(database_url)
    names = {
        default.keyword.decode(): default.envvar.decode()
        for default in Conninfo.get_defaults()
        if default.envvar
    }
    return {
        names[keyword]: str(value)
        for keyword, value in given.items()
        if keyword in names and value is not None
    }


def _find(name: str) -> str | None:
    here = Path(sys.executable).parent / name
    return str(here) if here.exists() else shutil.which(name)


def _wait(
    process: subprocess.Popen[bytes], timeout_s: float | None, on_read: Callable[[int], None] | None
) -> None:
    if on_read is None:
        process.wait(timeout_s)
        return
    while True:
        try:
            process.wait(_WATCH_S)
        except subprocess.TimeoutExpired:
            on_read(_bytes_read(process.pid))
        else:
            return


def _bytes_read(pid: int) -> int:
    """By the process so far; 0 where the system does not say."""
    try:
        return int(getattr(psutil.Process(pid).io_counters(), "read_chars", 0))
    except (psutil.Error, AttributeError, OSError):
        return 0


def _base_backup(found: Mapping[str, Any], server: str) -> BaseBackup:
    return BaseBackup(
        backup_id=found["backup_id"],
        server=server,
        began_at=datetime.fromisoformat(found["begin_time_iso"]),
        ended_at=datetime.fromisoformat(found["end_time_iso"]),
        begin_wal=found["begin_wal"],
        timeline=int(found["timeline"]),
        size_bytes=int(found["cluster_size"] or 0),
        postgres_version=int(found["version"]),
    )
