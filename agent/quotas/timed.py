"""Measures how long a coroutine keeps the event loop busy, without the time that it waits."""

import time
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Timed(Awaitable[T], Generic[T]):
    """Await it once."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.busy_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        step, value = self._coroutine.send, None
        while True:
            began_s = time.perf_counter()
            try:
                waits_for = step(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.busy_s += time.perf_counter() - began_s
            try:
                value, step = (yield waits_for), self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine, as a cancellation does
                value, step = error, self._coroutine.throw
