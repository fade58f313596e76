"""The text of `/metrics`, which strangers may ask for as often as they like.

Promise: if the text takes long to make, because there are many series, making it takes at most a tenth of the
event loop's time. In between, requests get the last text.
"""

import time
from collections.abc import Callable
from typing import Final

_SHORT_S: Final = 0.02
"""A text that takes less is made for each request: it costs little more than any other answer."""
_PAUSE: Final = 9.0


class MetricsText:
    def __init__(self, make: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._text = b""
        self._until_s = clock()

    def kept(self) -> bytes | None:
        """Returns the last text while it counts."""
        return self._text if self._clock() < self._until_s else None

    def new(self) -> bytes:
        began_s = self._clock()
        text = self._make()
        ended_s = self._clock()
        if ended_s - began_s >= _SHORT_S:
            self._text, self._until_s = text, ended_s + _PAUSE * (ended_s - began_s)
        return text
