"""Log lines that strangers cause: at most some per second of each kind.

The next line that is written says in `left_out_before` how many were not. Metrics count all.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

log = logging.getLogger("tidelog")

STRANGERS_LINES_PER_S: Final = 20.0
"""Of failed logins and handshakes: enough to follow an attack, too little to fill a disk with."""


class LimitedLines:
    def __init__(self, message: str, most_per_s: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic."""
        self._message = message
        self._most_per_s = most_per_s
        self._burst = max(1.0, most_per_s)
        self._clock = clock
        self._tokens = self._burst
        self._at_s = clock()
        self._left_out = 0

    def warn(self, fields: Mapping[str, object]) -> None:
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._most_per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            self._left_out += 1
            return
        self._tokens -= 1.0
        log.warning(self._message, extra={**fields, "left_out_before": self._left_out})
        self._left_out = 0
