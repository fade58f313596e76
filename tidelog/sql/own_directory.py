"""The temporary directory of one `tidelog sql`."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "tidelog-sql-"
_LOCK: Final = "lock"


class OwnDirectory:
    """A temporary directory. A process that lives holds a lock in it, also where processes of several
    containers share the place.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path / f".{_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / f".{_LOCK}").rename(self.path / _LOCK)  # only a lock that is held has this name

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(place: Path) -> None:
    """Removes the directories whose locks no process holds. Those of other users stay."""
    for directory in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (directory / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
