"""The partitions that are read here now: the poll asks for them, and pushes are subscribed to for them.

Promises:
- A partition is named from its first reader until `recent_s` after its last.
- At most `limit` partitions are named. Beyond it the one read longest ago is dropped, and only its readers'
  latency suffers.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from sequencer.commits.coordinates import PartitionKey

_STILL_NOTED = 0.9
"""The share of `recent_s` that must remain for a further reader to change nothing: most readers then cost
nothing."""


class PartitionsRead:
    def __init__(self, recent_s: float, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.recent_s = recent_s
        self._limit = limit
        self._clock = clock
        self._until_s: OrderedDict[PartitionKey, float] = OrderedDict()
        self._when_new: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._until_s)

    def when_new(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever a partition gets its first reader."""
        self._when_new.append(callback)

    def note(self, key: PartitionKey, now_s: float) -> None:
        """Notes a reader of this partition."""
        until_s = self._until_s.get(key)
        if until_s is not None and until_s - now_s > self.recent_s * _STILL_NOTED:
            return
        self._until_s[key] = now_s + self.recent_s
        self._until_s.move_to_end(key)
        if until_s is None:
            while len(self._until_s) > self._limit:
                self._until_s.popitem(last=False)
            for callback in self._when_new:
                callback()

    def current(self) -> list[PartitionKey]:
        """Returns the partitions with readers, and drops the others."""
        now_s = self._clock()
        while self._until_s:
            key, until_s = next(iter(self._until_s.items()))
            if until_s > now_s:
                break
            del self._until_s[key]
        return list(self._until_s)
