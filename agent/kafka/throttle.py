"""How long an overloaded agent asks a client to pause (pure; KIP-219).

What slows clients down in the end is that their sockets are not read; the pause comes before that, so that clients wait
where they can show it. Promises that there is no pause while every budget is used to less than `from_share`, that it
grows with the fullest one, and that it never exceeds `longest_ms`.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    from_share: float
    """Of a budget, in [0, 1): used to more than this, clients are asked to pause."""
    longest_ms: int


def throttle_ms(used_shares: Iterable[float], policy: ThrottlePolicy) -> int:
    """The pause in milliseconds for budgets used to these shares: in proportion to what is beyond `from_share`."""
    fullest = max(used_shares, default=0.0)
    beyond = (fullest - policy.from_share) / (1.0 - policy.from_share)
    return round(policy.longest_ms * min(1.0, max(0.0, beyond)))
