"""Which Postgres answers, and whether to believe it (DESIGN §10, One primary).

Promises:
- A server that shows a lower timeline than the highest seen of its system identifier is an old primary.
- Every other difference is a change: a failover, a restored backup.

Pure: the caller asks the servers and acts on the verdict.
"""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """Which Postgres this is. A failover to a standby raises the timeline; a restored backup may change both."""

    system_identifier: int
    timeline: int


class Verdict(Enum):
    SAME = auto()
    CHANGED = auto()
    """Another Postgres than before answers. Forget what is known of the former one."""
    OLD = auto()
    """A standby of this server was promoted. Believe nothing that it says."""


class Primaries:
    """The servers seen so far."""

    def __init__(self) -> None:
        self.current: DatabaseIdentity | None = None
        self._highest: dict[int, int] = {}
        """Timelines by system identifier."""

    def highest_timeline(self, system_identifier: int) -> int:
        return self._highest.get(system_identifier, 0)

    def judge(self, seen: DatabaseIdentity) -> Verdict:
        """Judges the server that a connection leads to. Unless it is old, it becomes the current one."""
        if seen.timeline < self.highest_timeline(seen.system_identifier):
            return Verdict.OLD
        self._highest[seen.system_identifier] = seen.timeline
        before, self.current = self.current, seen
        return Verdict.SAME if before in (None, seen) else Verdict.CHANGED
