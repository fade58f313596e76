"""How busy this process keeps a core: an agent has one event loop, so that a core is all it can use well.

Pure: the caller owns both clocks.
"""

from collections.abc import Callable

_LEAST_SPAN_S = 1.0


class CpuShare:
    """`cpu_s` and `now_s` are clocks in seconds: of the process' CPU time, and monotonic."""

    def __init__(self, cpu_s: Callable[[], float], now_s: Callable[[], float]) -> None:
        self._cpu_s = cpu_s
        self._now_s = now_s
        self._since = (now_s(), cpu_s())
        self._share = 0.0

    def share(self) -> float:
        """From 0 to 1, since the last time that this was asked, at least a second ago."""
        began_s, spent_s = self._since
        now_s = self._now_s()
        if now_s - began_s >= _LEAST_SPAN_S:
            cpu_s = self._cpu_s()
            self._share = min(1.0, (cpu_s - spent_s) / (now_s - began_s))
            self._since = (now_s, cpu_s)
        return self._share
