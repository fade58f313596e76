"""How many produce requests each connection keeps in flight, when waiting for more of them brings nothing,
and what a producer should set that its own window limits (docs/tuning.md,
docs/design/write-path.md#full-windows).

Promises:
- A window is full when the connection has as many requests in flight as its recent maximum.
- A connection is limited by its window if it fills it again soon after each answer: in less than half the
  time that the answer took, or within `refill_s`.
- A connection flushes if it waits for all answers and then sends again within `refill_s`, again and again.
  Such a wait is a silence of twice its usual pause between requests, and at least `refill_wait_s`.
- Waiting brings nothing only if every connection with batches in the open segment has a full window or waits
  in a flush, and at least one is limited by it. Connections that are about to fill theirs again are waited
  for, at most `refill_wait_s`.
- There is no advice for a producer that larger batches would not help.

Pure: time is a parameter, in monotonic seconds.
"""

from dataclasses import dataclass
from typing import Final

_HISTORY_REQUESTS: Final = 100
"""A window's history is what the last requests showed: one to two times this many."""
_MOST_REFILLS: Final = 8
_LIMITED_FROM: Final = 2
"""Refills at once from which on a window counts as limited. A window that was not refilled at once halves the
count. The same counts flushes.
"""
_PAUSE_SHARE: Final = 0.125
"""The share of the newest pause in the usual one."""
_PAUSES_OF_SILENCE: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy:
    refill_s: float
    refill_wait_s: float


class ProducerWindow:
    """The window of one connection. The write path counts its requests."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_earlier_widest",
        "_ended_s",
        "_flushes",
        "_is_flush",
        "_pause_s",
        "_refill_until_s",
        "_refills",
        "_requests",
        "_sent_s",
        "_was_full",
        "_widest",
        "batch_bytes",
        "in_flight",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests handed to the write path and not answered."""
        self.batch_bytes = 0
        """The mean size of a batch, as the last full history shows it. 0: there is none yet."""
        self._widest = self._earlier_widest = 0
        self._requests = self._batches = self._bytes = 0
        self._refill_until_s: float | None = None
        """When it should be full again, because an answer came while it was full."""
        self._refills = 0
        self._sent_s = self._ended_s = 0.0
        """When the last of the requests in flight was sent, and when the last of them was answered."""
        self._pause_s = 0.0
        """The usual pause between requests while others are in flight."""
        self._is_flush = False
        """True if nothing came for long before the last answer."""
        self._was_full = False
        """True if the window was full since it was last empty. That may be why its producer waited."""
        self._flushes = 0

    @property
    def widest(self) -> int:
        """The recent maximum of requests in flight."""
        return max(self._widest, self._earlier_widest)

    @property
    def is_full(self) -> bool:
        return self.in_flight >= self._widest and self.in_flight >= self._earlier_widest

    @property
    def is_limited(self) -> bool:
        return self._refills >= _LIMITED_FROM

    @property
    def is_steadily_limited(self) -> bool:
        """True if its whole history is limited."""
        return self._refills == _MOST_REFILLS and self.batch_bytes > 0

    @property
    def flushes(self) -> bool:
        return self._flushes >= _LIMITED_FROM

    def silence_s(self, policy: WindowPolicy) -> float:
        """How long nothing comes until a flush is assumed."""
        return max(policy.refill_wait_s, _PAUSES_OF_SILENCE * self._pause_s)

    def sent(self, batches: int, size_bytes: int, now_s: float, policy: WindowPolicy) -> None:
        """Notes that the connection sent a request."""
        if self.in_flight == 0:
            self._begin(now_s, policy)
        elif not self.is_full:
            self._pause_s += _PAUSE_SHARE * (now_s - self._sent_s - self._pause_s)
        self._sent_s = now_s
        self.in_flight += 1
        self._was_full |= self.is_full
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
        """Notes that the request sent at `sent_s` got its answer."""
        if self.is_full:
            self._refill_until_s = now_s + max(policy.refill_s, (now_s - sent_s) / 2)
        self.in_flight -= 1
        if self.in_flight == 0:
            self._ended_s = now_s
            self._is_flush = now_s - self._sent_s >= self.silence_s(policy)

    def _begin(self, now_s: float, policy: WindowPolicy) -> None:
        """The first request after all were answered. If it comes soon, its producer waited for them."""
        if self._is_flush and now_s - self._ended_s <= policy.refill_s:
            self._flushes += self._flushes < _MOST_REFILLS and not self._was_full
        else:
            self._flushes //= 2
        self._was_full = False

    def _begin_history(self) -> None:
        self.batch_bytes = self._bytes // max(1, self._batches)
        self._earlier_widest, self._widest = self._widest, self.in_flight
        self._requests = self._batches = self._bytes = 0


class OpenWindows:
    """The windows of producers whose batches wait in the open segment."""

    def __init__(self, policy: WindowPolicy) -> None:
        self._policy = policy
        self._open: set[ProducerWindow] = set()
        self._with_room = 0
        self._limited = 0
        self._expected: set[ProducerWindow] = set()
        """Limited windows that were just answered and have no batch in the open segment yet."""
        self._expected_until_s = 0.0
        self._silent_at_s = 0.0
        """From when on those that flush have been silent for long enough."""
        self._others_wait = False
        """True if the open segment has batches without a window, or batches that an earlier seal left."""

    @property
    def are_full(self) -> bool:
        """True if waiting brings nothing from the windows in the open segment."""
        return not self._with_room and self._limited > 0 and not self._others_wait

    def full_at_s(self, now_s: float) -> float | None:
        """Returns the time from which waiting brings nothing. None: it may bring more."""
        if not self.are_full:
            return None
        return max(now_s, self._silent_at_s, self._expected_until_s if self._expected else now_s)

    def took(
        self,
        window: ProducerWindow | None,
        batches: int,
        size_bytes: int,
        now_s: float,
    ) -> None:
        """The open segment took a request's batches. None: its producer waits for no answer."""
        if window is None:
            self._others_wait = True
            return
        if window in self._open:
            self._with_room -= _has_room(window)
            self._limited -= _is_limited(window)
        else:
            self._open.add(window)
            self._expected.discard(window)
        window.sent(batches, size_bytes, now_s, self._policy)
        self._with_room += _has_room(window)
        self._limited += _is_limited(window)
        if window.flushes and not window.is_full:
            self._silent_at_s = max(self._silent_at_s, now_s + window.silence_s(self._policy))

    def answered(self, window: ProducerWindow, sent_s: float, now_s: float) -> None:
        if window in self._open:
            self._with_room -= _has_room(window)
            window.answered(sent_s, now_s, self._policy)
            self._with_room += _has_room(window)
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
        self._silent_at_s = 0.0
        self._others_wait = not is_rest_empty


def _has_room(window: ProducerWindow) -> bool:
    return not (window.is_full or window.flushes)


def _is_limited(window: ProducerWindow) -> bool:
    return window.is_limited or window.flushes


_LARGE_BATCH_BYTES: Final = 131_072
"""From this batch size on, a window of a few batches is not narrow."""
_SETTINGS: Final = {
    "apache-kafka-java": "batch.size=262144 and linger.ms=50",
    "librdkafka": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-python": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-go": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-javascript": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-dotnet": "BatchSize=1000000 and LingerMs=50",
    "kgo": "ProducerLinger(50ms) and ProducerBatchMaxBytes(1 MiB)",
    "kafka-python": "batch_size=262144 and linger_ms=50",
    "sarama": "Producer.Flush.Bytes=262144 and Producer.Flush.Frequency=50ms",
}
"""By the name that a library gives in ApiVersions (KIP-511)."""
_ANY: Final = "larger batches (256 KiB) and a linger of 50 ms"


def advice(window: ProducerWindow, software_name: str) -> str | None:
    """Returns a sentence for people, if there is one."""
    if not window.is_steadily_limited or window.batch_bytes >= _LARGE_BATCH_BYTES:
        return None
    settings = _SETTINGS.get(software_name, _ANY)
    if window.widest == 1:
        return f"it waits for each answer before it sends again: let it send more at once, with {settings}"
    batch = (
        f"{window.batch_bytes / 1024:.0f} KiB"
        if window.batch_bytes >= 1024
        else f"{window.batch_bytes} bytes"
    )
    return f"it is limited by its {window.widest} requests in flight, with batches of {batch}: set {settings}"
