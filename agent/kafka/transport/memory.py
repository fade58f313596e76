"""The agent's budget for requests in memory, in bytes: from a frame's length to its response and its commit
(docs/design/write-path.md#request-memory).

Promises:
- Reservations never exceed the limit.
- Waiters are served in the order of arrival, so small requests do not starve a large one.
- A reservation is given back once all that retain it have released it.
- A part of the budget has its own limit and its own queue. Whoever does not wait for the part is not kept
  waiting by its queue.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class MemoryBudget:
    """The bytes that requests of all connections may hold. One owner per agent."""

    def __init__(self, limit_bytes: int, whole: "MemoryBudget | None" = None) -> None:
        """`whole`: this is a part of it. What is reserved here counts there too."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.was_used = False
        """True once anything was reserved in it, if it is a part."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._whole = whole
        self._parts: list[MemoryBudget] = []
        if whole is not None:
            whole._parts.append(self)

    @property
    def waiters(self) -> int:
        return len(self._waiting)

    @property
    def share(self) -> float:
        """How full it is, from 0 to 1 and more. A whole leaves out its parts."""
        if self._waiting:
            return 1.0
        of_parts = sum(part.used_bytes for part in self._parts) if self._parts else 0
        return (self.used_bytes - of_parts) / max(1, self.limit_bytes - of_parts)

    def try_reserve(self, size_bytes: int) -> "Reservation | None":
        """Reserves now, or returns None if there is no room or others wait."""
        if self._waiting or not self._has_room(size_bytes):
            return None
        self._take(size_bytes)
        return Reservation(self, size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        whole = self._whole
        if whole is None:
            return self.used_bytes + size_bytes <= self.limit_bytes
        fits = not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes
        return fits and not whole._waiting and whole._has_room(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        if self._whole is not None:
            self.was_used = True
            self._whole._take(size_bytes)

    async def reserve(self, size_bytes: int) -> "Reservation":
        """Waits for room. The caller bounds `size_bytes` by the limit: a larger request would wait for
        ever. A request larger than a part goes alone.
        """
        if self._whole is None and size_bytes > self.limit_bytes:
            raise ValueError(f"{size_bytes} bytes exceed the whole budget of {self.limit_bytes}")
        reserved = self.try_reserve(size_bytes)
        if reserved is not None:
            return reserved
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, place)
        self._waiting.append(entry)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back(size_bytes)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._wake()
            raise
        return Reservation(self, size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._whole is None:
            self._wake()
        else:
            self._whole._give_back(size_bytes)

    def _wake(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size_bytes, place = self._waiting.popleft()
            if not place.done():
                self._take(size_bytes)
                place.set_result(None)
        for part in self._parts:
            part._wake()


class Reservation:
    """Reserved bytes. Made with one holder. Each `retain` adds one, each `release` removes one."""

    __slots__ = ("_budget", "_grown_bytes", "_holders", "_then", "size_bytes")

    def __init__(self, budget: MemoryBudget, size_bytes: int) -> None:
        self._budget = budget
        self._holders = 1
        self._then: list[Callable[[], None]] = []
        self._grown_bytes = 0
        self.size_bytes = size_bytes

    def when_released(self, callback: Callable[[], None]) -> None:
        """Calls this once, when the bytes are given back: the response is sent, or will never be."""
        if self._holders <= 0:
            callback()
        else:
            self._then.append(callback)

    def try_grow(self, size_bytes: int) -> bool:
        """Reserves this much more than `size_bytes`, if there is room now. It is given back with the rest."""
        if self._holders <= 0:
            raise ValueError("a reservation that was given back cannot grow")
        budget = self._budget if self._budget._whole is None else self._budget._whole
        if budget.used_bytes + size_bytes > budget.limit_bytes:
            return False
        self._budget._take(size_bytes)
        self._grown_bytes += size_bytes
        return True

    @property
    def is_wanted(self) -> bool:
        """True if others wait for these bytes."""
        whole = self._budget._whole
        return bool(self._budget._waiting) or (whole is not None and bool(whole._waiting))

    def count_in(self, budget: MemoryBudget) -> None:
        """Moves it between a budget and a part of it, also beyond the part's limit: the bytes are held."""
        before, size_bytes = self._budget, self.size_bytes + self._grown_bytes
        if before is budget or self._holders <= 0:
            return
        self._budget = budget
        if budget._whole is before:
            budget.used_bytes += size_bytes
            budget.was_used = True
        elif before._whole is budget:
            before.used_bytes -= size_bytes
            budget._wake()
        else:
            raise ValueError("neither budget is a part of the other")

    def retain(self) -> None:
        if self._holders <= 0:
            raise ValueError("a reservation that was given back cannot be retained")
        self._holders += 1

    def release(self) -> None:
        if self._holders <= 0:
            raise ValueError("a reservation was released more often than retained")
        self._holders -= 1
        if self._holders == 0:
            self._budget._give_back(self.size_bytes + self._grown_bytes)
            for callback in self._then:
                callback()
            self._then.clear()
