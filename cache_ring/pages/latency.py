"""The median of recent durations: it tells how long a wait of this kind usually takes.

Pure. Promise: at most the last `_KEPT` durations are remembered.
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
        """The median; None before the first duration."""
        if self._median_s is None and self._durations_s:
            self._median_s = median(self._durations_s)
        return self._median_s
