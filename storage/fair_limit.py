"""Shares a bound, of bytes or of threads, among clients that could each take all of it.

Promises:
- No more than the limit is taken at once. A piece larger than the limit is let through alone, so that it
  never waits for ever.
- The client that was charged least since clients began to wait goes next. Equal clients take turns, however
  many pieces one of them waits with. A client that comes later has no credit for what it did not use. The
  pieces of one client go in order.
- If the owner of a waiting piece is cancelled, the piece takes nothing.

The caller bounds how many pieces a client may wait with.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

_SPARE_CHARGES: Final = 1_000
"""The most clients whose charges are kept although they do not wait."""


class _Waiter(NamedTuple):
    size: int
    turn: asyncio.Future[None]


class FairLimit:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: OrderedDict[Hashable, deque[_Waiter]] = OrderedDict()
        """By client. Of clients with equal charges, the first goes next."""
        self._charged: dict[Hashable, float] = {}
        self._least_charged = 0.0
        """The charge of the client that went last."""

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def take(self, client: Hashable, size: int = 1) -> None:
        """Waits until `size` is free for this client. The caller gives it back."""
        if not self._waiting and self._fits(size):
            self._taken += size
            return
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(waiter)
        self._charged[client] = max(self._charged.get(client, 0.0), self._least_charged)
        self._forget_spare()
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
        if not self._taken:  # then no client waits
            self._charged.clear()
            self._least_charged = 0.0

    def charge(self, client: Hashable, cost: float) -> None:
        """Adds the cost of a client's piece, for example in seconds. Call it before the piece is given
        back."""
        self._charged[client] = max(self._charged.get(client, 0.0), self._least_charged) + cost
        self._forget_spare()

    @asynccontextmanager
    async def turn(self, client: Hashable, size: int = 1) -> AsyncIterator[None]:
        """Holds `size` while the block runs."""
        await self.take(client, size)
        try:
            yield
        finally:
            self.give_back(size)

    def _forget_spare(self) -> None:
        if len(self._charged) > _SPARE_CHARGES + 2 * len(self._waiting):
            self._charged = {waiting: self._charged[waiting] for waiting in self._waiting}

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limit

    def _leave(self, client: Hashable, waiter: _Waiter) -> None:
        queue = self._waiting.get(client)
        if queue is None or waiter not in queue:
            return  # it was admitted after its cancellation, and its share was passed on
        queue.remove(waiter)
        if not queue:
            del self._waiting[client]
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            client = min(self._waiting, key=self._charged.__getitem__)
            queue = self._waiting[client]
            if not self._fits(queue[0].size):
                return
            waiter = queue.popleft()
            if queue:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not waiter.turn.done():
                self._taken += waiter.size
                self._least_charged = max(self._least_charged, self._charged[client])
                waiter.turn.set_result(None)
