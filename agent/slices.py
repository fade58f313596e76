"""Runs long work on the event loop in slices, between which other tasks get their turn.

All such work takes turns: the loop runs one slice in each of its rounds, however many answers are made at
once.
"""

import asyncio
import time
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

_FREE_S: Final = 0.000_1
"""Shorter work does not wait for a turn."""
_SLICE_S: Final = 0.002


class Slices:
    """The slices of one piece of work."""

    def __init__(self) -> None:
        self._ends_s = time.perf_counter() + _FREE_S

    async def look(self) -> None:
        """Ends the slice if it has taken long enough. Call it about every 50 µs of work."""
        if time.perf_counter() >= self._ends_s:
            await _turns().turn()
            self._ends_s = time.perf_counter() + _SLICE_S


class _Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._goes_on = False

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        self._waiting.append(place)
        if not self._goes_on:
            self._goes_on = True
            loop.call_soon(self._next)
        await place

    def _next(self) -> None:
        """Gives one turn in each round of the loop, until none waits."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                break
        self._goes_on = bool(self._waiting)
        if self._goes_on:
            asyncio.get_running_loop().call_soon(self._next)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _turns() -> _Turns:
    return _of_loops.setdefault(asyncio.get_running_loop(), _Turns())
