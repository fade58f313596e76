"""Named points in a history job, at which a process waits while a test kills something.

The driver and the Python of the executors run under `halting_driver.py` and `halting_worker.py`, which wrap
the functions below. A test arms a point by writing its name into a folder that all of them see. The first
process that comes there says so with its process id, and waits until the point is disarmed.

Promises that at most one point is armed, that a process waits no longer than `_LONGEST_S`, and that a
coroutine waits without stopping its event loop: the driver keeps its leases meanwhile.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sequencer.history.history_values import Begun

FOLDER_VARIABLE = "FAULT_POINTS"
"""Of the environment: the folder."""
_ARMED = "armed"
_REACHED = "reached-"
_LONGEST_S = 60.0
_POLL_S = 0.05

Holder = Literal["driver", "executor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPoint:
    """`function` is "module:name" or "module:Class.name". `counts` tells from the arguments and the result
    (None before the call) whether this call is at the point.
    """

    name: str
    holder: Holder
    function: str
    after: bool
    counts: Callable[[Sequence[Any], Any], bool] = lambda _, __: True


def _removes(given: Sequence[Any], _: Any) -> bool:
    return bool(given[1].removed)


def _only_adds(given: Sequence[Any], _: Any) -> bool:
    return not given[1].removed


_TABLE = "spark_compaction.iceberg_table:HistoryTableFiles"
_PUT = "spark_compaction.bucket:S3Bucket.put"
_HISTORY = "sequencer.history.history:History"

POINTS = (
    FaultPoint(
        name="job claimed",
        holder="driver",
        function=f"{_HISTORY}.begin_compaction",
        after=True,
        counts=lambda _, result: isinstance(result, Begun),
    ),
    FaultPoint(
        name="records decoded",
        holder="executor",
        function="spark_compaction.history_file:HistoryFile.add",
        after=False,
    ),
    FaultPoint(name="file written, not put", holder="executor", function=_PUT, after=False),
    FaultPoint(name="file put, not reported", holder="executor", function=_PUT, after=True),
    FaultPoint(
        name="tasks done", holder="driver", function="spark_compaction.compact:run_in_spark", after=True
    ),
    FaultPoint(name="footers read", holder="driver", function=f"{_TABLE}.describe", after=True),
    FaultPoint(name="staged in part", holder="driver", function=_PUT, after=True),
    FaultPoint(
        name="staged, not published",
        holder="driver",
        function=f"{_TABLE}.stage",
        after=True,
        counts=_only_adds,
    ),
    FaultPoint(name="merge staged", holder="driver", function=f"{_TABLE}.stage", after=True, counts=_removes),
    FaultPoint(name="in the publish", holder="driver", function=f"{_HISTORY}._publish", after=True),
    FaultPoint(name="published, no answer", holder="driver", function=f"{_HISTORY}.publish", after=True),
)
"""In the order in which a job comes to them."""


def install(holder: Holder) -> None:
    """Wraps the functions of this process's points. Does nothing without the variable."""
    if FOLDER_VARIABLE not in os.environ:
        return
    folder = Path(os.environ[FOLDER_VARIABLE])
    for point in POINTS:
        if point.holder == holder:
            module, _, path = point.function.partition(":")
            *owners, name = path.split(".")
            owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
            wrap = _wrapped_coroutine if inspect.iscoroutinefunction(getattr(owner, name)) else _wrapped
            setattr(owner, name, wrap(point, getattr(owner, name), folder))


def _wrapped(point: FaultPoint, function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def wait(given: Sequence[Any], result: Any) -> None:
        if _halts(folder, point, given, result):
            while _goes_on_waiting(folder, point):
                time.sleep(_POLL_S)

    @functools.wraps(function)
    def at_the_point(*given: Any, **named: Any) -> Any:
        if not point.after:
            wait(given, None)
        result = function(*given, **named)
        if point.after:
            wait(given, result)
        return result

    return at_the_point


def _wrapped_coroutine(point: FaultPoint, function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    assert point.after, "no coroutine has a point before it"

    @functools.wraps(function)
    async def at_the_point(*given: Any, **named: Any) -> Any:
        result = await function(*given, **named)
        if _halts(folder, point, given, result):
            while _goes_on_waiting(folder, point):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(_POLL_S)
        return result

    return at_the_point


def _halts(folder: Path, point: FaultPoint, given: Sequence[Any], result: Any) -> bool:
    """Whether this process waits here; then it has said so."""
    if _armed(folder) != point.name or not point.counts(given, result):
        return False
    (folder / f"{_REACHED}{os.getpid()}").touch()
    return True


def _goes_on_waiting(folder: Path, point: FaultPoint) -> bool:
    """False, too, if nobody has disarmed the point for long: the test is gone."""
    with contextlib.suppress(OSError):
        age_s = time.time() - (folder / _ARMED).stat().st_mtime
        return _armed(folder) == point.name and age_s < _LONGEST_S
    return False


def _armed(folder: Path) -> str:
    try:
        return (folder / _ARMED).read_text()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class FaultPoints:
    """The test's side."""

    folder: Path

    def wait_until_reached(self, point: FaultPoint, timeout_s: float) -> int:
        """Arms the point, and returns the process id of the first that waits there."""
        for reached in self.folder.glob(f"{_REACHED}*"):
            reached.unlink()
        part = self.folder / "part"
        part.write_text(point.name)
        part.replace(self.folder / _ARMED)  # at once, so that no process reads half a name
        until = time.monotonic() + timeout_s
        while True:
            for reached in self.folder.glob(f"{_REACHED}*"):
                return int(reached.name.removeprefix(_REACHED))
            if time.monotonic() > until:
                raise TimeoutError(f"nothing came to the point '{point.name}'")
            os.utime(self.folder / _ARMED)
            time.sleep(_POLL_S)

    def disarm(self) -> None:
        """Whoever waits goes on."""
        (self.folder / _ARMED).unlink(missing_ok=True)
