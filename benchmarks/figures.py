"""Figures of one measurement, and their spread over several rounds. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figures = Mapping[str, float]
"""By name; the unit is the end of the name."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank, of values in any order. NaN if there are none."""
    if not values:
        return float("nan")
    in_order = sorted(values)
    rank = max(0, min(len(in_order) - 1, -(-len(in_order) * percent // 100) - 1))
    return in_order[int(rank)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, smallest and largest of a figure over rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None if there are no numbers."""
        numbers = [value for value in values if value == value]
        if not numbers:
            return None
        return cls(
            median=statistics.median(numbers), low=min(numbers), high=max(numbers), rounds=len(numbers)
        )


def per(amount: float, count: float) -> float:
    """A quotient. NaN if the divisor is 0 or missing."""
    return amount / count if count else float("nan")
