"""The text of `/metrics`, which strangers may ask for as often as they like.

Promise: if the text costs much, because there are many series, making it takes at most a tenth of the event
loop's time. In between, requests get the last text. CPU time counts, so that a busy machine does not make
texts older.
"""

import time
from collections.abc import Callable
from typing import Final

_SHORT_S: Final = 0.02
"""A text that takes less CPU time is made for each request: it costs little more than any other answer."""
_PAUSE: Final = 9.0


class MetricsText:
    def __init__(
        self,
        make: Callable[[], bytes],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._make = make
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._text = b""
        self._until_s = clock()

    def kept(self) -> bytes | None:
        """Returns the last text while it counts."""
        return self._text if self._clock() < self._until_s else None

    def new(self) -> bytes:
        began_s = self._cpu_clock()
        text = self._make()
        took_s = self._cpu_clock() - began_s
        if took_s >= _SHORT_S:
            self._text, self._until_s = text, self._clock() + _PAUSE * took_s
        return text
