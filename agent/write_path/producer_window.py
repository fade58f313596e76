"""How many produce requests each connection keeps in flight, and when waiting for more of them brings nothing.

Promises:
- A window is full when the connection has as many requests in flight as it had at most lately.
- A connection is limited by its window if it fills it again soon, whenever it gets answers: in less than half the time
  that the answer took, or within `refill_s`.
- Waiting brings nothing only if every connection with batches in the open segment has a full window, and at least one
  is limited by it. Connections that are about to fill theirs again are waited for, `refill_wait_s` at most.

Pure: time is a parameter, in monotonic seconds.
"""

from dataclasses import dataclass
from typing import Final

_HISTORY_REQUESTS: Final = 100
"""A window's history is what the last one to two times so many requests showed."""
_MOST_REFILLS: Final = 8
_LIMITED_FROM: Final = 2
"""Windows filled again at once. One that was not takes half of them away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy:
    refill_s: float
    refill_wait_s: float


class ProducerWindow:
    """One connection's. The write path counts its requests."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_earlier_widest",
        "_refill_until_s",
        "_refills",
        "_requests",
        "_widest",
        "batch_bytes",
        "in_flight",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests handed to the write path and not answered."""
        self.batch_bytes = 0
        """The mean size of a batch, as the last full history shows it; 0: there is none yet."""
        self._widest = self._earlier_widest = 0
        self._requests = self._batches = self._bytes = 0
        self._refill_until_s: float | None = None
        """When it should be full again, since an answer came while it was."""
        self._refills = 0

    @property
    def widest(self) -> int:
        """The most requests in flight, lately."""
        return max(self._widest, self._earlier_widest)

    @property
    def is_full(self) -> bool:
        return self.in_flight >= self._widest and self.in_flight >= self._earlier_widest

    @property
    def is_limited(self) -> bool:
        return self._refills >= _LIMITED_FROM

    @property
    def is_steadily_limited(self) -> bool:
        """For as long as its history goes back."""
        return self._refills == _MOST_REFILLS and self.batch_bytes > 0

    def sent(self, batches: int, size_bytes: int, now_s: float) -> None:
        """The connection sent a request."""
        self.in_flight += 1
        self._widest = max(self._widest, self.in_flight)
        self._requests += 1
        self._batches += batches
        self._bytes += size_bytes
        if self._refill_until_s is not None and self.is_full:
            is_soon = now_s <= self._refill_until_s
            self._refills = min(_MOST_REFILLS, self._refills + 1) if is_soon else self._refills // 2
            self._refill_until_s = None
        if self._requests == _HISTORY_REQUESTS:
            self._begin_history()

    def answered(self, sent_s: float, now_s: float, policy: WindowPolicy) -> None:
        """The request of `sent_s` got its answer."""
        if self.is_full:
            self._refill_until_s = now_s + max(policy.refill_s, (now_s - sent_s) / 2)
        self.in_flight -= 1

    def _begin_history(self) -> None:
        self.batch_bytes = self._bytes // max(1, self._batches)
        self._earlier_widest, self._widest = self._widest, self.in_flight
        self._requests = self._batches = self._bytes = 0


class OpenWindows:
    """The windows of those whose batches wait in the open segment."""

    def __init__(self, policy: WindowPolicy) -> None:
        self._policy = policy
        self._open: set[ProducerWindow] = set()
        self._with_room = 0
        self._limited = 0
        self._expected: set[ProducerWindow] = set()
        """Limited windows that were just answered and have no batch in the open segment yet."""
        self._expected_until_s = 0.0
        self._others_wait = False
        """Whether the open segment has batches that belong to no window, or that an earlier seal left."""

    @property
    def are_full(self) -> bool:
        """Whether waiting brings nothing from those in the open segment."""
        return not self._with_room and self._limited > 0 and not self._others_wait

    def full_at_s(self, now_s: float) -> float | None:
        """From when on waiting brings nothing; None: it may bring more."""
        if not self.are_full:
            return None
        return max(now_s, self._expected_until_s) if self._expected else now_s

    def took(self, window: ProducerWindow | None, batches: int, size_bytes: int, now_s: float) -> None:
        """The open segment took a request's batches. None: of somebody who waits for no answer."""
        if window is None:
            self._others_wait = True
            return
        if window in self._open:
            self._with_room -= not window.is_full
            self._limited -= window.is_limited
        else:
            self._open.add(window)
            self._expected.discard(window)
        window.sent(batches, size_bytes, now_s)
        self._with_room += not window.is_full
        self._limited += window.is_limited

    def answered(self, window: ProducerWindow, sent_s: float, now_s: float) -> None:
        if window in self._open:
            self._with_room -= not window.is_full
            window.answered(sent_s, now_s, self._policy)
            self._with_room += not window.is_full
            return
        window.answered(sent_s, now_s, self._policy)
        if window.is_limited:
            self._expected.add(window)
            self._expected_until_s = now_s + self._policy.refill_wait_s

    def sealed(self, *, is_rest_empty: bool) -> None:
        """The open segment was sealed."""
        self._open.clear()
        self._expected.clear()
        self._with_room = self._limited = 0
        self._others_wait = not is_rest_empty
