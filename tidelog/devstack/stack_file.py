"""`<data-dir>/stack.json`: how other commands find the development stack that runs on this machine.

A stack writes the file when it is up and removes it when it ends. If a stack was killed, its file stays. A
running stack holds a lock on its directory, so the lock tells the two cases apart.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tidelog.errors import UserError

_FILE = "stack.json"
_LOCK = "lock"
_ATTEMPTS = 5
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAddresses:
    """Everything that a client of the stack needs."""

    database_url: str
    store_url: str
    s3_access_key: str | None
    s3_secret_key: str | None
    bootstrap: str
    http_urls: tuple[str, ...]
    zones: tuple[str, ...]

    def as_environment(self) -> dict[str, str]:
        """The addresses as `TIDELOG_*` variables."""
        found = {
            "TIDELOG_DATABASE_URL": self.database_url,
            "TIDELOG_STORE_URL": self.store_url,
            "TIDELOG_S3_ACCESS_KEY": self.s3_access_key,
            "TIDELOG_S3_SECRET_KEY": self.s3_secret_key,
            "TIDELOG_BOOTSTRAP": self.bootstrap,
            "TIDELOG_HTTP_URL": self.http_urls[0] if self.http_urls else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def write_stack_file(data_dir: Path, addresses: StackAddresses) -> None:
    """Writes it atomically. Only the owner may read it, because it holds keys."""
    temporary = data_dir / f"{_FILE}.{os.getpid()}"
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(addresses), indent=2) + "\n")
    temporary.replace(data_dir / _FILE)


def remove_stack_file(data_dir: Path) -> None:
    """The stack is down."""
    (data_dir / _FILE).unlink(missing_ok=True)


def read_stack_file(data_dir: Path) -> StackAddresses | None:
    """The addresses of the stack that runs on `data_dir`, or None."""
    try:
        found = json.loads((data_dir / _FILE).read_text())
    except FileNotFoundError:
        return None
    if not _is_locked(data_dir):
        return None
    return StackAddresses(**{**found, "http_urls": tuple(found["http_urls"]), "zones": tuple(found["zones"])})


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Locks a data directory for one stack. The kernel frees the lock when the process ends, even if it is
    killed.
    """
    with (data_dir / _LOCK).open("a+") as lock:
        if not _take(lock):
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise UserError(
                f"Another stack (process {holder}) runs on {data_dir}.",
                "Stop it, or give this one another directory with --data-dir.",
            )
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _take(lock: IO[str]) -> bool:
    """Tries more than once: a command that checks whether a stack runs holds the lock for a moment."""
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _is_locked(data_dir: Path) -> bool:
    try:
        with (data_dir / _LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
