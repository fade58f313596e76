"""How fast to merge (docs/design/merging.md#effort): an effort in bytes per second that follows the backlog.
Pure.

The effort clears the backlog within `target_s`, shared among the mergers, at most `most_bytes_per_s`. A
growing backlog gets more effort until both balance: at a steady inflow of `i` bytes/s the backlog settles at
about `i * target_s`, and a burst is worked off over `target_s`, not at once. A running merge is slowed only
by the ceiling, not by a short backlog. Its copied bytes are a debt, and the next merge begins when the effort
has paid it.

An overloaded agent gives less effort, down to nothing, but not for ever: what has waited `PATIENCE` times the
target is merged at a tenth of the usual effort.
"""

from dataclasses import dataclass

PATIENCE = 4
_LEAST_SHARE = 0.1
_CALM_LOAD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortLimits:
    target_s: float
    most_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """`backlog_bytes` wait, the oldest for `oldest_s`. `mergers` may work on it, with this one. `load` tells
    how busy this agent is, from 0 to 1: its budgets or its core, whichever is fuller.
    """

    backlog_bytes: int
    oldest_s: float
    mergers: int
    load: float


def ceiling_bytes_per_s(situation: Situation, limits: EffortLimits) -> float:
    """How fast a merge may copy here and now; 0: it pauses."""
    calm = min(1.0, max(0.0, (1.0 - situation.load) / (1.0 - _CALM_LOAD)))
    if situation.oldest_s > PATIENCE * limits.target_s:
        calm = max(calm, _LEAST_SHARE)
    return calm * limits.most_bytes_per_s


def effort_bytes_per_s(situation: Situation, limits: EffortLimits) -> float:
    """How many bytes to copy per second in the long run."""
    wanted = situation.backlog_bytes / limits.target_s / max(1, situation.mergers)
    ceiling = ceiling_bytes_per_s(situation, limits)
    return min(1.0, wanted / limits.most_bytes_per_s) * ceiling


class CopyDebt:
    """Copied bytes that the effort since then has not paid for yet. The caller owns the clock. At most
    `saving_s` of effort is saved up, so that the effort of a pause between two checks is not lost.
    """

    def __init__(self, now_s: float, saving_s: float) -> None:
        self._owed_bytes = 0.0
        self._paid_until_s = now_s
        self._saving_s = saving_s

    def copied(self, size_bytes: int) -> None:
        self._owed_bytes += size_bytes

    def is_paid(self, effort: float, now_s: float) -> bool:
        """True if the debt is paid."""
        paid_bytes = effort * (now_s - self._paid_until_s)
        self._owed_bytes = max(self._owed_bytes - paid_bytes, -effort * self._saving_s)
        self._paid_until_s = now_s
        return self._owed_bytes <= 0.0
