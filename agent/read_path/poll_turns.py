"""Which partitions a poll of the sequencer asks for: less often those whose commits are heard of without it.

Pure: time is counted in polls. A poll repairs what no push told (docs/design/read-path.md#pushes-and-polls). Promises
that a partition is asked for by each poll until a commit of it was heard of, and again from the first poll on that
finds one nobody had told; between the two it rests, first for a poll at most, then, while polls find nothing, for twice
as long each time, at most until the `longest`-th poll after the last that asked for it. Partitions that rest are asked
for by the same polls, so that those between, which ask for none, need not take place.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sequencer.commits.coordinates import PartitionKey

_FIRST = 2


class _Rest(NamedTuple):
    polls: int
    until: int
    """The poll that asks again, counted from the start."""


class PollTurns:
    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._polls = self._next_due = 0
        self._rests: dict[PartitionKey, _Rest] = {}
        self._all_doubted = False
        self._doubted: set[PartitionKey] = set()
        """Since the last poll: the next one asks for them, whatever is heard of meanwhile."""

    def heard(self, key: PartitionKey) -> None:
        """A commit of this partition was heard of, by a push or because it was made here, and none is missing."""
        if self._all_doubted or key in self._doubted or self._longest < _FIRST:
            return
        if key not in self._rests:
            self._rests[key] = self._rest(_FIRST)

    def doubt(self, key: PartitionKey) -> None:
        """A commit of it was not heard of."""
        self._rests.pop(key, None)
        self._doubted.add(key)
        self._next_due = self._polls + 1

    def doubt_all(self) -> None:
        self._rests.clear()
        self._all_doubted = True
        self._next_due = self._polls + 1

    @property
    def until_due(self) -> int:
        """How many polls from the last one on the first is that asks for any of the partitions it was given."""
        return max(1, self._next_due - self._polls)

    def due(self, keys: Sequence[PartitionKey], passed: int = 1) -> list[PartitionKey]:
        """Of the partitions read here, those that the poll about to be sent asks for; others are forgotten. `passed`:
        the polls since the last one, this one included."""
        self._polls += passed
        self._next_due = self._polls + self._longest
        self._doubted.clear()
        self._all_doubted = False
        if len(self._rests) > len(keys):
            self._rests = {key: self._rests[key] for key in keys if key in self._rests}
        asked = []
        for key in keys:
            rest = self._rests.get(key)
            if rest is None:
                asked.append(key)
                self._next_due = self._polls + 1
                continue
            if rest.until <= self._polls:
                asked.append(key)
                rest = self._rests[key] = self._rest(min(2 * rest.polls, self._longest))
            self._next_due = min(self._next_due, rest.until)
        return asked

    def _rest(self, polls: int) -> _Rest:
        """Until the next poll whose number is a multiple of so many."""
        return _Rest(polls=polls, until=self._polls + polls - self._polls % polls)
