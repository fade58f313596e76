"""What is built or fetched once and kept, by whichever of several processes (test workers, say) needs it first.

Promises that a target is there whole or not at all, and that those who come meanwhile wait for it. A process that dies
leaves neither a half-made target nor a lock.
"""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """One holder per target, among all processes and threads; the others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, a file or a folder. `make` is given where to make it: a free path beside it."""
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
