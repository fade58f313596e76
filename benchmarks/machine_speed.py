"""How fast the machine is at the moment. Other guests can make a virtual machine half as fast for minutes.

Ratios within a round stay right; figures in seconds, and targets in commits per second, do not. So each
measurement also times the same piece of work.
"""

import statistics
import time
from typing import Final

FIGURE: Final = "fixed_loop_ms"
_TURNS: Final = 400_000
_TRIES: Final = 5


def fixed_loop_ms() -> float:
    """The time of one Python loop, in milliseconds of one core: the median of a few runs."""
    return statistics.median(_once_ms() for _ in range(_TRIES))


def _once_ms() -> float:
    began_s = time.perf_counter()
    total = 0
    for number in range(_TURNS):
        total += number & 7
    return (time.perf_counter() - began_s) * 1000
