"""A bound on bytes in flight, shared by all who load or serve them.

Promises:
- No more than the limit is taken at once. A piece larger than the limit is let through alone.
- Waiters are served in the order of arrival.
- The limit may be lowered, and raised again up to its first value. A piece always counts with its full size.
  A raised limit admits waiters at once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class _Waiter(NamedTuple):
    size_bytes: int
    turn: asyncio.Future[int]
    since_s: float


class ByteBudget:
    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._limit_bytes = capacity_bytes
        self.taken_bytes = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._admit()

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    @property
    def longest_wait_s(self) -> float:
        """How long the first in the queue has waited; 0 without a queue."""
        return asyncio.get_running_loop().time() - self._waiting[0].since_s if self._waiting else 0.0

    def try_take(self, size_bytes: int) -> int | None:
        """Takes the bytes at once; returns what to pass to `give_back`. None: others must finish first."""
        if self._waiting or not self._fits(size_bytes):
            return None
        return self._take(size_bytes)

    async def take(self, size_bytes: int) -> int:
        """Waits until the bytes are free; the caller sets a timeout. Returns what to pass to `give_back`."""
        taken = self.try_take(size_bytes)
        return await self._turn(size_bytes) if taken is None else taken

    def give_back(self, taken: int) -> None:
        self.taken_bytes -= taken
        self._admit()

    @asynccontextmanager
    async def taken(self, size_bytes: int) -> AsyncIterator[None]:
        """Holds `size_bytes` of the budget."""
        taken = await self.take(size_bytes)
        try:
            yield
        finally:
            self.give_back(taken)

    async def _turn(self, size_bytes: int) -> int:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(size_bytes, loop.create_future(), loop.time())
        self._waiting.append(waiter)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.give_back(waiter.turn.result())
            elif waiter in self._waiting:  # it may have been skipped since the cancellation
                self._waiting.remove(waiter)
                self._admit()
            raise

    def _charge(self, size_bytes: int) -> int:
        return min(size_bytes, self._capacity_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return self.taken_bytes == 0 or self.taken_bytes + self._charge(size_bytes) <= self._limit_bytes

    def _take(self, size_bytes: int) -> int:
        taken = self._charge(size_bytes)
        self.taken_bytes += taken
        return taken

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size_bytes):
            waiter = self._waiting.popleft()
            if not waiter.turn.done():
                waiter.turn.set_result(self._take(waiter.size_bytes))
