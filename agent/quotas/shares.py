"""Which part of a cluster's quota an agent may use (pure).

Promises:
- If all agents know the same wishes, their shares add up to no more than the quota.
- An agent whose clients had to wait gets as much as any other that had to wait.
- What no agent wants is divided equally, so a client that comes or grows is not stuck.
- An agent that gains waits one round, until those that lose have heard of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HEADROOM: Final = 1.15
"""What an agent wants, relative to what its clients used without waiting."""
FLOOR: Final = 0.05
"""All agents divide this part of a quota equally at least, so that no client stops altogether."""
_ROUNDS_OF_DEBT: Final = 2
"""In so many rounds, an agent wants to pay what clients overdrew that are silent now."""


@dataclass(slots=True, kw_only=True)
class Share:
    """The part of one quota that one agent may use, and how it follows the wishes."""

    now: float
    gained: float
    wanted: float = 0.0
    """In the last report."""

    @staticmethod
    def of_newcomer(agents: int) -> "Share":
        """No other agent knows of its clients yet."""
        return Share(now=1.0 / max(1, agents), gained=1.0 / max(1, agents))

    def take(self, others: Sequence[float], agents: int) -> None:
        """Follows a report and what others wanted in theirs."""
        share = share_of(self.wanted, others)
        if not self.wanted:
            share = min(share, 1.0 / agents)  # it reports no more, so others do not count with it
        self.now, self.gained = max(FLOOR / agents, min(share, self.gained)), share


def wanted_part(used: float, *, has_waited: bool, debt_rounds: float = 0.0) -> float:
    """Returns the part of the quota that an agent wants, in [0, 1]. `used` is a part of it too. `debt_rounds`
    is what clients overdrew and have not paid, in rounds of the whole quota.
    """
    return 1.0 if has_waited else min(1.0, used * HEADROOM + debt_rounds / _ROUNDS_OF_DEBT)


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
