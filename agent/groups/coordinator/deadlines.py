"""The deadlines of a group's timers, one per key. Deadlines move often, and the next one is read often. Pure.

Promises:
- Moving a deadline later costs no more than a dictionary entry.
- At most about twice as many entries are kept as there are deadlines, however many were set and cleared.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SPARE = 64
"""Obsolete entries that a heap may have before it is cleaned."""


class Deadlines(Generic[Key]):
    def __init__(self) -> None:
        self._due: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        """Possibly too early. It is corrected when an entry comes first."""
        self._entries: dict[Key, int] = {}
        """The earliest entry of each key in the heap."""
        self._count = 0

    def set(self, key: Key, due_ms: int) -> None:
        self._due[key] = due_ms
        if self._entries.get(key, due_ms + 1) > due_ms:
            self._push(key, due_ms)

    def set_if_absent(self, key: Key, due_ms: int) -> None:
        if key not in self._due:
            self.set(key, due_ms)

    def clear(self, key: Key) -> None:
        self._due.pop(key, None)

    def next_ms(self) -> int | None:
        while self._heap:
            entry_ms, _, key = self._heap[0]
            due_ms = self._due.get(key)
            if due_ms == entry_ms:
                return due_ms
            heapq.heappop(self._heap)
            if self._entries.get(key) == entry_ms:
                del self._entries[key]
                if due_ms is not None:
                    self._push(key, due_ms)
        return None

    def take_next(self) -> Key:
        """Returns the key that is due next and clears its deadline. There must be one (`next_ms`)."""
        assert self.next_ms() is not None
        key = self._heap[0][2]
        self.clear(key)
        return key

    def take_due(self, now_ms: int) -> list[Key]:
        """Returns the keys that are due, the earliest first, and clears their deadlines."""
        due = []
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            key = self._heap[0][2]
            self.clear(key)
            due.append(key)
        return due

    def _push(self, key: Key, due_ms: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, key))
        self._entries[key] = due_ms
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            self._entries = dict(self._due)
            self._heap = [(at_ms, number, of_key) for number, (of_key, at_ms) in enumerate(self._due.items())]
            self._count = len(self._heap)
            heapq.heapify(self._heap)
