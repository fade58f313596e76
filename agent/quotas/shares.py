"""Which part of a cluster's quota an agent may use (pure).

Promises:
- If all agents know the same wishes, their shares add up to no more than the quota.
- An agent whose clients had to wait gets as much as any other that had to wait.
- What no agent wants is divided equally, so a client that comes or grows is not stuck.
"""

from collections.abc import Sequence
from typing import Final

HEADROOM: Final = 1.15
"""What an agent wants, relative to what its clients used without waiting."""


def wanted_part(used: float, *, has_waited: bool) -> float:
    """Returns the part of the quota that an agent wants, in [0, 1]. `used` is a part of it too."""
    return 1.0 if has_waited else min(1.0, used * HEADROOM)


def share_of(wanted: float, others: Sequence[float]) -> float:
    """Returns this agent's part of the quota: water is poured until every wish is filled or none is left."""
    wishes = sorted([wanted, *others])
    rest = 1.0
    for place, wish in enumerate(wishes):
        level = rest / (len(wishes) - place)
        if wish >= level:
            return min(wanted, level)
        rest -= wish
    return wanted + rest / len(wishes)
