"""Distributions of times: to draw from, and to count in."""

import math
from dataclasses import dataclass

import numpy as np

_NORMAL_P99 = 2.3263478740408408
_FLOOR_S = 1e-5
_BINS_PER_DECADE = 200
_DECADES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A log-normal distribution, by its median and its 99th percentile, in seconds."""

    p50_s: float
    p99_s: float

    def draw(self, random: np.random.Generator) -> float:
        sigma = math.log(max(self.p99_s, self.p50_s) / self.p50_s) / _NORMAL_P99
        return self.p50_s * math.exp(sigma * random.standard_normal())


class Durations:
    """Weighted durations in bins of about one percent."""

    def __init__(self) -> None:
        self._weights = np.zeros(_BINS_PER_DECADE * _DECADES)
        self.sum_s = 0.0

    def add(self, duration_s: float, weight: float = 1.0) -> None:
        bin_ = int(math.log10(max(duration_s, _FLOOR_S) / _FLOOR_S) * _BINS_PER_DECADE)
        self._weights[min(bin_, self._weights.size - 1)] += weight
        self.sum_s += duration_s * weight

    @property
    def weight(self) -> float:
        return float(self._weights.sum())

    def percentile(self, share: float) -> float:
        """In seconds; not a number if nothing was added."""
        if not self.weight:
            return math.nan
        bin_ = int(np.searchsorted(np.cumsum(self._weights), share * self.weight))
        return float(_FLOOR_S * 10 ** ((min(bin_, self._weights.size - 1) + 0.5) / _BINS_PER_DECADE))
