"""Log lines about what may happen thousands of times a second.

Promise: at most one line in `every_s`. Each says how many were left out since the last.
"""

import logging
import math
import time
from collections.abc import Callable

EVERY_S = 10.0


class RecurringLog:
    """One per kind of line."""

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._message = message
        self._every_s = every_s
        self._clock = clock
        self._logged_s = -math.inf
        self._left_out = 0

    def warning(self, **fields: object) -> None:
        now_s = self._clock()
        if now_s - self._logged_s < self._every_s:
            self._left_out += 1
            return
        self._log.warning(self._message, extra={**fields, "left_out": self._left_out})
        self._logged_s, self._left_out = now_s, 0
