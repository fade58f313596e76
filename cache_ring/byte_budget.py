"""A bound on bytes in flight, shared by whoever loads or serves them.

Promises that no more than the limit is taken at once, that waiters are served in order of arrival, and that a piece
larger than the whole budget is let through alone rather than never. The limit may be changed; it holds for what is
taken from then on."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def try_take(self, size_bytes: int) -> int | None:
        """Take at once what `give_back` later takes, or None if others must finish first."""
        taken = min(size_bytes, self.limit_bytes)
        if self._waiting or self.taken_bytes + taken > self.limit_bytes:
            return None
        self.taken_bytes += taken
        return taken

    async def take(self, size_bytes: int) -> int:
        """Wait for a turn, so the caller sets the timeout; returns what `give_back` later takes."""
        taken = self.try_take(size_bytes)
        return await self._turn(size_bytes) if taken is None else taken

    def give_back(self, taken: int) -> None:
        self.taken_bytes -= taken
        self._admit()

    @asynccontextmanager
    async def taken(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold `size_bytes` of the budget."""
        taken = await self.take(size_bytes)
        try:
            yield
        finally:
            self.give_back(taken)

    async def _turn(self, size_bytes: int) -> int:
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, turn)
        self._waiting.append(entry)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            elif entry in self._waiting:  # not if it was passed over between the cancellation and now
                self._waiting.remove(entry)
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting:
            taken = min(self._waiting[0][0], self.limit_bytes)
            if self.taken_bytes + taken > self.limit_bytes:
                return
            _, turn = self._waiting.popleft()
            if not turn.done():
                self.taken_bytes += taken
                turn.set_result(taken)
