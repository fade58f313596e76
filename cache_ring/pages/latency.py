"""The median of recent durations, so that waits can be as long as what they are compared with usually takes.

Pure. Promises to remember no more than the last `_KEPT` durations.
"""

from collections import deque
from statistics import median

_KEPT = 64


class MedianLatency:
    def __init__(self) -> None:
        self._durations_s: deque[float] = deque(maxlen=_KEPT)
        self._median_s: float | None = None

    def add(self, duration_s: float) -> None:
        self._durations_s.append(duration_s)
        self._median_s = None

    def median_s(self) -> float | None:
        """None before the first duration."""
        if self._median_s is None and self._durations_s:
            self._median_s = median(self._durations_s)
        return self._median_s
