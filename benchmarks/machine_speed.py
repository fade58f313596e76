"""How fast the machine is at the moment: a virtual machine's neighbours make it half as fast for minutes at a time.

Ratios within a round bear that; figures in seconds, and targets in commits per second, do not. So every measurement
says how long the same work took beside it.
"""

import statistics
import time
from typing import Final

FIGURE: Final = "fixed_loop_ms"
_TURNS: Final = 400_000
_TRIES: Final = 5


def fixed_loop_ms() -> float:
    """The same loop of Python's, in milliseconds of one core: the median of a few."""
    return statistics.median(_once_ms() for _ in range(_TRIES))


def _once_ms() -> float:
    began_s = time.perf_counter()
    total = 0
    for number in range(_TURNS):
        total += number & 7
    return (time.perf_counter() - began_s) * 1000
