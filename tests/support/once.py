"""Builds or fetches something once, in the first of several processes (such as test workers) that needs it.

Promises that a target is complete or missing, and that other processes wait for it. A process that dies
leaves neither a half-made target nor a lock.
"""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Locks a target against all other processes and threads, which wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Returns `target`, a file or a folder. `make` gets a free path next to it, and makes it there."""
    if target.exists():
        return target
    with alone(target):
        if not target.exists():
            building = target.with_name(f"{target.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            building.unlink(missing_ok=True)
            make(building)
            building.rename(target)
    return target
