"""An event loop whose time passes only while all its tasks wait, and then at once. Minutes take milliseconds,
and each run is the same. For code that waits only for timers and other tasks, not for sockets or threads.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            self.now_s += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtually(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Returns the result of `main`."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main())
