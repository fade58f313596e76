"""How much history may be loaded at once while the tail is in use (docs/design/read-path.md#tail-and-history: a replay
never slows the tail). Pure.

Whether more concurrent loads bring more depends on their bottleneck. Loads that wait for a distant store do
not slow each other down. Loads that share a machine or a link take twice as long if there are twice as many.
So the limit is found by measuring how long loads take: it doubles as long as each load keeps 0.8 of its speed
at half the limit, which is 1.6 times the rate. The better of two measurements counts. The result holds for
`HELD_S`, then the search begins again.

If even the first doubling does not pay, one load after another would still keep others waiting. Then short
rests separate successive loads.
"""

from typing import Final

STEPS: Final = 3
HELD_S: Final = 30.0
REST: Final = 0.5
"""As a share of the time that a load took."""
LONGEST_REST_S: Final = 0.1
_MEASURED_LOADS: Final = 16
_KEPT_SPEED: Final = 0.8
_MEASURES: Final = 2


class CatchUpPace:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._speed_below = 0.0
        self.forget()

    def forget(self) -> None:
        """Call it when the tail is not in use: it drops the result, and the search begins again."""
        self._held_until_s: float | None = None
        self._step = 0
        self._measures, self._speed = 0, 0.0
        self._measure_from(None)

    @property
    def limit_bytes(self) -> int:
        return max(1, self._most_bytes >> (STEPS - 1 - self._step))

    def rest_s(self, took_s: float) -> float:
        """How long to rest after a load that took `took_s` and kept another waiting."""
        is_shared = self._held_until_s is not None and self._step == 0
        return min(REST * took_s, LONGEST_REST_S) if is_shared else 0.0

    def loaded(self, size_bytes: int, took_s: float, at_once_bytes: int, now_s: float) -> None:
        """Notes that a load has ended, one of `at_once_bytes` concurrent bytes. It counts if it began within
        the current limit, and while more than half the limit was loading."""
        if self._held_until_s is not None:
            if now_s < self._held_until_s:
                return
            self.forget()
        if self._began_s is None:
            self._measure_from(now_s)
            return
        least_bytes = self.limit_bytes // 2 if self._step else 0
        most_bytes = max(self.limit_bytes, size_bytes)  # a load above the limit runs alone
        if now_s - took_s >= self._began_s and least_bytes < at_once_bytes <= most_bytes:
            self._count(size_bytes, took_s, now_s)

    def _count(self, size_bytes: int, took_s: float, now_s: float) -> None:
        self._loads += 1
        self._bytes += size_bytes
        self._took_s += took_s
        if self._loads >= _MEASURED_LOADS and self._took_s > 0:
            self._measured(self._bytes / self._took_s, now_s)
            self._measure_from(now_s)

    def _measure_from(self, now_s: float | None) -> None:
        self._began_s = now_s
        self._loads, self._bytes, self._took_s = 0, 0, 0.0

    def _measured(self, speed: float, now_s: float) -> None:
        self._measures += 1
        self._speed = max(self._speed, speed)
        if self._measures < _MEASURES:
            return
        speed, self._speed, self._measures = self._speed, 0.0, 0
        if self._step and speed < self._speed_below * _KEPT_SPEED:
            self._step -= 1
            self._held_until_s = now_s + HELD_S
            return
        self._speed_below = speed
        if self._step == STEPS - 1:
            self._held_until_s = now_s + HELD_S
        else:
            self._step += 1
