"""Shares a bound, of bytes or of threads, among clients that would each take all of it.

Promises:
- No more than the limit is taken at once. A piece larger than the limit is let through alone, so that it never waits
  for ever.
- Clients take turns, however many pieces one of them waits with. The pieces of one client go in order.
- A piece whose owner is cancelled while it waits takes nothing.

The caller bounds how many pieces a client may wait with.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import NamedTuple


class _Waiter(NamedTuple):
    size: int
    turn: asyncio.Future[None]


class FairQueue:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: OrderedDict[Hashable, deque[_Waiter]] = OrderedDict()
        """By client, the client whose turn is next first."""

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def take(self, client: Hashable, size: int = 1) -> None:
        """Wait for a turn. What is taken must be given back."""
        if not self._waiting and self._fits(size):
            self._taken += size
            return
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.cancelled():
                self._leave(client, waiter)
            else:
                self.give_back(size)
            raise

    def give_back(self, size: int = 1) -> None:
        self._taken -= size
        self._admit()

    @asynccontextmanager
    async def turn(self, client: Hashable, size: int = 1) -> AsyncIterator[None]:
        """Hold `size` while the block runs."""
        await self.take(client, size)
        try:
            yield
        finally:
            self.give_back(size)

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limit

    def _leave(self, client: Hashable, waiter: _Waiter) -> None:
        queue = self._waiting.get(client)
        if queue is None or waiter not in queue:
            return  # its turn came after it was cancelled, and was passed on
        queue.remove(waiter)
        if not queue:
            del self._waiting[client]
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            client, queue = next(iter(self._waiting.items()))
            if not self._fits(queue[0].size):
                return
            waiter = queue.popleft()
            if queue:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not waiter.turn.done():
                self._taken += waiter.size
                waiter.turn.set_result(None)
