"""Figures of one measurement, and what several rounds of them say together. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figures = Mapping[str, float]
"""By name; the unit is the end of the name."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank, of values in any order; not a number when there are none."""
    if not values:
        return float("nan")
    in_order = sorted(values)
    rank = max(0, min(len(in_order) - 1, -(-len(in_order) * percent // 100) - 1))
    return in_order[int(rank)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of a figure over rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None without a number."""
        numbers = [value for value in values if value == value]
        if not numbers:
            return None
        return cls(median=statistics.median(numbers), low=min(numbers), high=max(numbers), rounds=len(numbers))


def per(amount: float, count: float) -> float:
    """A quotient; not a number without anything to divide by."""
    return amount / count if count else float("nan")
