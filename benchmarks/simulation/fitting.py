"""Costs from measurements: least squares with coefficients that are not negative."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def fit(
    rows: Sequence[Sequence[float]], measured: Sequence[float], beside: Sequence[float] | None = None
) -> list[float]:
    """The costs `c >= 0` for which `rows @ c` comes closest to what was measured, relative to it, or to
    `beside` where that is a small difference of larger measurements. For a handful of costs: all subsets are
    tried.
    """
    weights = 1.0 / np.maximum(np.asarray(measured if beside is None else beside, dtype=float), 1e-9)
    scaled = np.asarray(rows, dtype=float) * weights[:, None]
    ones = np.asarray(measured, dtype=float) * weights
    count = scaled.shape[1]
    best, best_error = np.zeros(count), float("inf")
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], ones, rcond=None)
            error = float(np.square(scaled[:, chosen] @ found - ones).sum())
            if (found >= 0).all() and error < best_error - 1e-12:
                best, best_error = np.zeros(count), error
                best[chosen] = found
    return [float(cost) for cost in best]
