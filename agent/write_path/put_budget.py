"""The PUT budget: a token bucket that says how many segments may be sealed before size or age require it
(docs/design/write-path.md#put-budget).

Pure: time is a parameter, in monotonic seconds.

Promises:
- Tokens stay within [-burst, burst].
- Over any span of time the early seals are at most `burst + per_s * span`. Every PUT takes a token. Only size
  and age may take one that is not there.

A second bucket pays for the seals of full windows (producer_window.py). Its rate is given in dollars a month.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

_MONTH_S: Final = 30 * 86_400.0
_HOUR_S: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBudgetPolicy:
    per_s: float
    burst: float


def window_budget_policy(
    *, usd_per_month: float, usd_per_million_puts: float, saved_h: float
) -> PutBudgetPolicy | None:
    """Returns what this many dollars a month buy. The PUTs of `saved_h` hours may be saved up. None: PUTs are
    free, so there is no bound.
    """
    if not usd_per_million_puts:
        return None
    per_s = usd_per_month / usd_per_million_puts * 1e6 / _MONTH_S
    return PutBudgetPolicy(per_s=per_s, burst=per_s * saved_h * _HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBudget:
    """The bucket as it was at `at_s`."""

    policy: PutBudgetPolicy
    tokens: float
    at_s: float

    @classmethod
    def full(cls, policy: PutBudgetPolicy, now_s: float) -> "PutBudget":
        return cls(policy=policy, tokens=policy.burst, at_s=now_s)

    def at(self, now_s: float) -> "PutBudget":
        """Returns the bucket at a later time."""
        elapsed_s = max(0.0, now_s - self.at_s)
        tokens = min(self.policy.burst, self.tokens + elapsed_s * self.policy.per_s)
        return PutBudget(policy=self.policy, tokens=tokens, at_s=max(now_s, self.at_s))

    def spend(self, now_s: float) -> "PutBudget":
        """Spends one PUT, whether a token is there or not."""
        current = self.at(now_s)
        return PutBudget(
            policy=self.policy, tokens=max(-self.policy.burst, current.tokens - 1.0), at_s=current.at_s
        )  # fmt: skip

    def token_at_s(self) -> float:
        """Returns the earliest time, `at_s` or later, at which a whole token is there. Infinite if there
        never is one.
        """
        missing = max(0.0, 1.0 - self.tokens)
        if self.policy.burst < 1.0:
            return inf
        return self.at_s + missing / self.policy.per_s
