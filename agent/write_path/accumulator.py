"""Batches gathered for the next segments, in order of arrival (docs/design/write-path.md#gathering).

Pure: no clock, no I/O. Promises that batches come out in the order in which they went in, each at most once and none
that was removed, and that what is taken at once exceeds `segment_size_bytes` only if it is a single batch. Batches
come many at a time, as a request has them, and may go into several segments.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from agent.write_path.seal import OpenSegment

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True)
class Taken(Generic[Owner]):
    """The batches `[start, end)` of what was added together."""

    owner: Owner
    start: int
    end: int


@dataclass(slots=True)
class _Waiting(Generic[Owner]):
    owner: Owner
    sizes: Sequence[int]
    arrived_s: float
    next: int
    size_bytes: int
    """Of those from `next` on."""


class Accumulator(Generic[Owner]):
    """A queue of batches cut into segments by size."""

    def __init__(self, segment_size_bytes: int) -> None:
        self._segment_size_bytes = segment_size_bytes
        self._waiting: OrderedDict[int, _Waiting[Owner]] = OrderedDict()
        self._added = 0
        self._size_bytes = 0

    def add(self, owner: Owner, sizes: Sequence[int], now_s: float) -> int:
        """Batches of these sizes, at least one. Returns their number, for `remove`."""
        self._added += 1
        size_bytes = sum(sizes)
        self._waiting[self._added] = _Waiting(owner, sizes, now_s, 0, size_bytes)
        self._size_bytes += size_bytes
        return self._added

    def remove(self, number: int) -> tuple[int, int]:
        """Let go of what was added under this number: how many of its batches were still here, and their bytes."""
        removed = self._waiting.pop(number, None)
        if removed is None:
            return 0, 0
        self._size_bytes -= removed.size_bytes
        return len(removed.sizes) - removed.next, removed.size_bytes

    @property
    def size_bytes(self) -> int:
        """Of all that waits."""
        return self._size_bytes

    def owners(self) -> list[Owner]:
        """Of all that waits."""
        return [waiting.owner for waiting in self._waiting.values()]

    @property
    def open_segment(self) -> OpenSegment:
        """All that waits, seen as one segment: it is full as soon as one can be filled."""
        oldest_s = self._oldest()[1].arrived_s if self._waiting else None
        return OpenSegment(size_bytes=self._size_bytes, oldest_arrival_s=oldest_s)

    def take(self) -> list[Taken[Owner]]:
        """The batches of the next segment: from the oldest on, up to the size. At least one, if any waits."""
        taken: list[Taken[Owner]] = []
        room_bytes = self._segment_size_bytes
        while self._waiting and room_bytes > 0:
            number, waiting = self._oldest()
            start, left_bytes = waiting.next, waiting.size_bytes
            self._advance(waiting, room_bytes, at_least_one=not taken)
            if waiting.next == start:
                break
            taken.append(Taken(waiting.owner, start, waiting.next))
            room_bytes -= left_bytes - waiting.size_bytes
            if waiting.next < len(waiting.sizes):
                break
            del self._waiting[number]
        return taken

    def _advance(self, waiting: _Waiting[Owner], room_bytes: int, *, at_least_one: bool) -> None:
        """Past as many batches as there is room for."""
        if waiting.size_bytes <= room_bytes:
            gone_bytes, waiting.next = waiting.size_bytes, len(waiting.sizes)
        else:
            gone_bytes = 0
            while gone_bytes + waiting.sizes[waiting.next] <= room_bytes or (at_least_one and not gone_bytes):
                gone_bytes += waiting.sizes[waiting.next]
                waiting.next += 1
                if waiting.next == len(waiting.sizes):
                    break
        waiting.size_bytes -= gone_bytes
        self._size_bytes -= gone_bytes

    def _oldest(self) -> tuple[int, _Waiting[Owner]]:
        return next(iter(self._waiting.items()))
