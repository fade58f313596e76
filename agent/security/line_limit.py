"""How many log lines strangers may cause: at most some per second of each kind. The next line that is written
says in `left_out_before` how many were not. Metrics count all.
"""

from collections.abc import Callable
from typing import Final

STRANGERS_LINES_PER_S: Final = 20.0
"""Of failed logins and handshakes: enough to follow an attack, too little to fill a disk with."""


class LineLimit:
    def __init__(self, most_per_s: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic."""
        self._most_per_s = most_per_s
        self._burst = max(1.0, most_per_s)
        self._clock = clock
        self._tokens = self._burst
        self._at_s = clock()
        self._left_out = 0

    def take(self) -> int | None:
        """Returns how many lines were left out since the last one. None: this one is left out, too."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._most_per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            self._left_out += 1
            return None
        self._tokens -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out
