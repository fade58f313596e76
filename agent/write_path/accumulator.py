"""Gathers batches for the next segments, in order of arrival (docs/design/write-path.md#gathering), and
decides when a segment is sealed (docs/design/write-path.md#sealing).

Pure: the caller owns the clock and does the upload. A request adds many batches at a time, which may go into
several segments.

Promises:
- Batches come out in the order in which they went in, each at most once, and never after they were removed.
- What is taken at once exceeds `segment_size_bytes` only if it is a single batch. It has at most
  `most_batches`.
- No batch waits longer than `linger_s`. A full segment does not wait.
- An early seal never overdraws the PUT budget. Only age, size and full windows may. Full windows have their
  own budget.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from agent.write_path.put_budget import PutBudget


class SealReason(Enum):
    SIZE = "size"
    AGE = "age"
    TOKEN = "token"
    WINDOW = "window"
    """Waiting brings nothing: the producers in the segment have no request left to send."""
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSegment:
    """The batches that wait to be sealed. `oldest_arrival_s` is None if there are none."""

    size_bytes: int
    oldest_arrival_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealPolicy:
    segment_size_bytes: int
    linger_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SealDue:
    """`at_s` may be in the past: then the seal is due now."""

    at_s: float
    reason: SealReason


def seal_due(
    segment: OpenSegment,
    policy: SealPolicy,
    budget: PutBudget | None,
    *,
    draining: bool = False,
    windows_full_at_s: float | None = None,
) -> SealDue | None:
    """Returns when to seal, in monotonic seconds, or None while the segment is empty. From
    `windows_full_at_s` on, waiting brings nothing and the budget pays for a seal. Without a budget
    there is no early seal.
    """
    arrived_s = segment.oldest_arrival_s
    if arrived_s is None:
        return None
    if segment.size_bytes >= policy.segment_size_bytes:
        return SealDue(at_s=arrived_s, reason=SealReason.SIZE)
    if draining:
        return SealDue(at_s=arrived_s, reason=SealReason.DRAIN)
    aged_s = arrived_s + policy.linger_s
    token_s = aged_s if budget is None else max(arrived_s, budget.token_at_s())
    full_s = aged_s if windows_full_at_s is None else max(arrived_s, windows_full_at_s)
    if budget is not None and token_s <= min(full_s, aged_s):
        return SealDue(at_s=token_s, reason=SealReason.TOKEN)
    if full_s < aged_s:
        return SealDue(at_s=full_s, reason=SealReason.WINDOW)
    return SealDue(at_s=aged_s, reason=SealReason.AGE)


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
    """The size of the batches from `next` on."""


class Accumulator(Generic[Owner]):
    """A queue of batches cut into segments by size."""

    def __init__(self, segment_size_bytes: int, most_batches: int | None = None) -> None:
        """`most_batches`: of a segment. None: any number."""
        self._segment_size_bytes = segment_size_bytes
        self._most_batches = sys.maxsize if most_batches is None else most_batches
        self._waiting: OrderedDict[int, _Waiting[Owner]] = OrderedDict()
        self._added = 0
        self._size_bytes = 0

    def add(self, owner: Owner, sizes: Sequence[int], now_s: float) -> int:
        """Adds batches of these sizes, at least one. Returns their number, for `remove`."""
        self._added += 1
        size_bytes = sum(sizes)
        self._waiting[self._added] = _Waiting(owner, sizes, now_s, 0, size_bytes)
        self._size_bytes += size_bytes
        return self._added

    def remove(self, number: int) -> tuple[int, int]:
        """Drops what was added under this number. Returns how many of its batches were still here, and their
        bytes.
        """
        removed = self._waiting.pop(number, None)
        if removed is None:
            return 0, 0
        self._size_bytes -= removed.size_bytes
        return len(removed.sizes) - removed.next, removed.size_bytes

    @property
    def size_bytes(self) -> int:
        """The size of all waiting batches."""
        return self._size_bytes

    def owners(self) -> list[Owner]:
        """The owners of all waiting batches."""
        return [waiting.owner for waiting in self._waiting.values()]

    @property
    def open_segment(self) -> OpenSegment:
        """All waiting batches as one segment: it is full as soon as one segment can be filled."""
        oldest_s = self._oldest()[1].arrived_s if self._waiting else None
        return OpenSegment(size_bytes=self._size_bytes, oldest_arrival_s=oldest_s)

    def take(self) -> list[Taken[Owner]]:
        """Returns the batches of the next segment: from the oldest on, up to the size, and at least one if
        any waits.
        """
        taken: list[Taken[Owner]] = []
        room_bytes, room = self._segment_size_bytes, self._most_batches
        while self._waiting and room_bytes > 0 and room > 0:
            number, waiting = self._oldest()
            start, left_bytes = waiting.next, waiting.size_bytes
            self._advance(waiting, room_bytes, room, at_least_one=not taken)
            if waiting.next == start:
                break
            taken.append(Taken(waiting.owner, start, waiting.next))
            room_bytes -= left_bytes - waiting.size_bytes
            room -= waiting.next - start
            if waiting.next < len(waiting.sizes):
                break
            del self._waiting[number]
        return taken

    def _advance(self, waiting: _Waiting[Owner], room_bytes: int, room: int, *, at_least_one: bool) -> None:
        """Moves past as many batches as there is room for."""
        most = min(len(waiting.sizes), waiting.next + room)
        if waiting.size_bytes <= room_bytes and most == len(waiting.sizes):
            gone_bytes, waiting.next = waiting.size_bytes, most
        else:
            gone_bytes = 0
            while gone_bytes + waiting.sizes[waiting.next] <= room_bytes or (at_least_one and not gone_bytes):
                gone_bytes += waiting.sizes[waiting.next]
                waiting.next += 1
                if waiting.next == most:
                    break
        waiting.size_bytes -= gone_bytes
        self._size_bytes -= gone_bytes

    def _oldest(self) -> tuple[int, _Waiting[Owner]]:
        return next(iter(self._waiting.items()))
