"""Batches gathered for the next segments, in order of arrival (DESIGN §5).

Pure: no clock, no I/O. Promises that batches come out in the order in which they went in, each at most once and none
that was removed, and that what is taken at once exceeds `segment_size_bytes` only if it is a single batch.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.write_path.seal import OpenSegment

Entry = TypeVar("Entry")


class Accumulator(Generic[Entry]):
    """A queue of entries cut into segments by size."""

    def __init__(self, segment_size_bytes: int, size_of: Callable[[Entry], int]) -> None:
        self._segment_size_bytes = segment_size_bytes
        self._size_of = size_of
        self._waiting: OrderedDict[int, tuple[Entry, float]] = OrderedDict()
        self._added = 0
        self._size_bytes = 0

    def add(self, entry: Entry, now_s: float) -> int:
        """Returns the entry's number, for `remove`."""
        self._added += 1
        self._waiting[self._added] = (entry, now_s)
        self._size_bytes += self._size_of(entry)
        return self._added

    def remove(self, number: int) -> bool:
        """Let go of an entry; False if it is not here any more."""
        removed = self._waiting.pop(number, None)
        if removed is None:
            return False
        self._size_bytes -= self._size_of(removed[0])
        return True

    @property
    def open_segment(self) -> OpenSegment:
        """All that waits, seen as one segment: it is full as soon as one can be filled."""
        oldest_s = self._oldest()[1] if self._waiting else None
        return OpenSegment(size_bytes=self._size_bytes, oldest_arrival_s=oldest_s)

    def take(self) -> list[Entry]:
        """The entries of the next segment: from the oldest on, up to the size. At least one, if any waits."""
        taken: list[Entry] = []
        taken_bytes = 0
        while self._waiting and taken_bytes < self._segment_size_bytes:
            entry, _ = self._oldest()
            entry_bytes = self._size_of(entry)
            if taken and taken_bytes + entry_bytes > self._segment_size_bytes:
                break
            self._waiting.popitem(last=False)
            taken.append(entry)
            taken_bytes += entry_bytes
        self._size_bytes -= taken_bytes
        return taken

    def _oldest(self) -> tuple[Entry, float]:
        return next(iter(self._waiting.values()))
