"""How much history may be loaded at once while the tail is in use (DESIGN §6: a replay never slows the tail).

Pure. What a second load at once brings depends on what bounds them: where loads wait for a distant store, twice the
rate; where they keep a machine or a link busy, next to nothing but a queue, in which the tail waits as well. So the
limit is found by measuring: it rises by a step as long as a step brings at least 0.6 of what it would bring if nothing
were shared, and all is measured anew after a while. Where not even the second step does, one load after another keeps
others waiting too, and rests lie between them. Promises a limit of at least one step and at most all of them, and rests
in proportion to what loads take."""

from typing import Final

STEPS: Final = 4
_MEASURED_LOADS: Final = 16
_HELD_MEASURES: Final = 64
_WORTH_IT: Final = 0.6
REST: Final = 0.5
"""Of the time that a load took."""


class CatchUpPace:
    def __init__(self, most_bytes: int) -> None:
        self._step_bytes = max(1, most_bytes // STEPS)
        self._step = 1
        self._held = 0
        """Measures still to pass before the climb begins anew; 0 during it."""
        self._rate_below = 0.0
        self._loads = 0
        self._bytes = 0
        self._began_s: float | None = None

    @property
    def limit_bytes(self) -> int:
        return self._step * self._step_bytes

    def rest_s(self, took_s: float) -> float:
        """How long nothing is loaded in the stead of a load that took so long. None while steps are compared."""
        return REST * took_s if self._held and self._step == 1 else 0.0

    def loaded(self, size_bytes: int, now_s: float, *, is_bound: bool) -> None:
        """A load has ended. `is_bound`: the limit kept others waiting; otherwise nothing is learned of it."""
        if not is_bound:
            self._began_s = None
            return
        if self._began_s is None:
            self._begin(now_s)
            return
        self._loads += 1
        self._bytes += size_bytes
        if self._loads >= _MEASURED_LOADS and now_s > self._began_s:
            self._measured(self._bytes / (now_s - self._began_s))
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_s, self._loads, self._bytes = now_s, 0, 0

    def _measured(self, rate: float) -> None:
        if self._held:
            self._held -= 1
            if not self._held:
                self._step, self._rate_below = 1, 0.0
            return
        below = self._step - 1
        if below and rate < self._rate_below * (1 + _WORTH_IT / below):
            self._step, self._held = below, _HELD_MEASURES
        elif self._step == STEPS:
            self._held = _HELD_MEASURES
        else:
            self._step, self._rate_below = self._step + 1, rate
