"""Runs load in separate processes, and defines the window that all of them measure. Processes are forked, so
prepared frames cost nothing.
"""

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

Result = TypeVar("Result")
_FORK = multiprocessing.get_context("fork")
_END_S = 5.0


class LoadFailed(Exception):
    """The error of a load process, with its traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that counts, `[begin_s, end_s)`, by the monotonic clock that all processes share."""

    begin_s: float
    end_s: float

    @classmethod
    def after(cls, warm_up_s: float, seconds: float) -> Self:
        begin_s = time.monotonic() + warm_up_s
        return cls(begin_s=begin_s, end_s=begin_s + seconds)

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    def holds(self, at_s: float) -> bool:
        return self.begin_s <= at_s < self.end_s

    def wait_begin(self) -> None:
        time.sleep(max(0.0, self.begin_s - time.monotonic()))

    def wait_end(self) -> None:
        time.sleep(max(0.0, self.end_s - time.monotonic()))


class Load(Generic[Result]):
    """`work` running in a process; `result` waits for it."""

    def __init__(self, work: Callable[..., Result], *arguments: Any) -> None:
        self._receiver, sender = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_run, args=(sender, work, arguments), daemon=True)
        self._process.start()
        sender.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def result(self, timeout_s: float = 120.0) -> Result:
        """Raises LoadFailed, also if it takes longer."""
        try:
            if not self._receiver.poll(timeout_s):
                raise LoadFailed(f"a load process was not done after {timeout_s:.0f} s")
            succeeded, value = self._receiver.recv()
        except EOFError as gone:
            raise LoadFailed("a load process ended without a word") from gone
        finally:
            self.end()
        if not succeeded:
            raise LoadFailed(value)
        return value  # type: ignore[no-any-return]

    def end(self) -> None:
        """Ends it at once. May be called again."""
        self._process.join(0.2)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_END_S)
        self._receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _run(sender: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # this process must not use the parent's handler
    try:
        sender.send((True, work(*arguments)))
    except Exception as error:  # noqa: BLE001 - it is raised again in the process that waits
        sender.send((False, f"{error}\n{''.join(traceback.format_exception(error)[-6:])}"))
