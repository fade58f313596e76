"""Where servers of tests keep their files: in memory, if the machine has enough.

Creating a test's database there takes a sixth to a twentieth of the time. It copies 310 files, and on a
virtual machine the first touch of each page of a disk's cache is slow. No test claims that data survives the
machine. These are not pytest's directories: as root, Postgres runs as another user, who may not enter those.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 << 30
"""Free before a session begins, of the file system and of the machine: tests with two workers use about one.
"""
_PREFIX = "tidelog-test-"


@contextmanager
def new_directory(purpose: str) -> Iterator[Path]:
    """A directory that is deleted with the context."""
    base = _base()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{purpose}-", dir=base))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _base() -> Path | None:
    """None: the usual place of temporary files."""
    if not os.access(_IN_MEMORY, os.W_OK):
        return None
    _sweep()
    room = min(shutil.disk_usage(_IN_MEMORY).free, psutil.virtual_memory().available)
    return _IN_MEMORY if room >= _ROOM_BYTES else None


def _sweep() -> None:
    """Deletes what killed sessions left. Their Postgres ends when it finds its files gone."""
    for left in _IN_MEMORY.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
