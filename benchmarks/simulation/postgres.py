"""Postgres in the model: cores, row locks taken in order, one log with shared syncs, and outages.

Promises:
- Two commits never hold a partition at once.
- A commit that waits for a row holds the rows before it, so convoys form as they do in Postgres.
- A commit that was in flight during a failover is repeated, as the committer does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulation.calibration import CommitCost
from benchmarks.simulation.events import Cores, EventLoop

Done = Callable[[], None]

_LONGEST_BACKOFF_S = 2.0
"""Of `agent/write_path/backoff.py`."""


class RowLocks:
    """Partition rows; each waiter holds what it got before the row it waits for."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._waiting: dict[int, deque[_Taking]] = {}
        self.waits = 0

    def take(self, rows: Sequence[int], taken: Done) -> None:
        """`rows` in ascending order, as the commit locks them."""
        if self._held.isdisjoint(rows):
            self._held.update(rows)
            taken()
        else:
            self.waits += 1
            self._continue(_Taking(rows, taken))

    def release(self, rows: Sequence[int]) -> None:
        if not self._waiting:
            self._held.difference_update(rows)
            return
        woken = []
        for row in rows:
            queue = self._waiting.get(row)
            if queue is None:
                self._held.discard(row)
                continue
            woken.append(queue.popleft())
            if not queue:
                del self._waiting[row]
        for taking in woken:  # each has got the row that it waited for
            taking.place += 1
            self._continue(taking)

    def _continue(self, taking: "_Taking") -> None:
        rows = taking.rows
        while taking.place < len(rows):
            row = rows[taking.place]
            if row in self._held:
                self._waiting.setdefault(row, deque()).append(taking)
                return
            self._held.add(row)
            taking.place += 1
        taking.taken()


class _Taking:
    __slots__ = ("place", "rows", "taken")

    def __init__(self, rows: Sequence[int], taken: Done) -> None:
        self.rows = rows
        self.taken = taken
        self.place = 0


class Log:
    """The write-ahead log: one sync at a time, shared by all who came before it began."""

    def __init__(self, loop: EventLoop, sync_s: float, bytes_per_s: float) -> None:
        self._loop = loop
        self._sync_s = sync_s
        self._bytes_per_s = bytes_per_s
        self._waiting: list[tuple[float, Done]] = []
        self._syncing = False
        self.bytes = 0.0
        self.syncs = 0

    def write(self, size_bytes: float, synced: Done) -> None:
        self._waiting.append((size_bytes, synced))
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        group, self._waiting = self._waiting, []
        size_bytes = sum(size for size, _ in group)
        self._syncing = True
        self.bytes += size_bytes
        self.syncs += 1
        self._loop.after(
            self._sync_s + size_bytes / self._bytes_per_s, self._synced, [done for _, done in group]
        )

    def _synced(self, group: Sequence[Done]) -> None:
        self._syncing = False
        if self._waiting:
            self._sync()
        for done in group:
            done()


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    """What surrounds a primary."""

    log_bytes_per_s: float
    standby_s: float = 0.0
    """Until the synchronous standby has a commit's log; many wait at a time, each with its locks."""
    network_s: float = 0.0
    """A round trip of a client."""


class Postgres:
    """One primary."""

    def __init__(
        self,
        loop: EventLoop,
        cores: Cores,
        cost: CommitCost,
        place: PostgresPlace,
        random: np.random.Generator,
    ) -> None:
        self._loop = loop
        self._cost = cost
        self._place = place
        self._random = random
        self._failovers = 0
        self._away_until_s = 0.0
        self.cores = cores
        self.locks = RowLocks()
        self.log = Log(loop, cost.sync_s, place.log_bytes_per_s)
        self.cpu_s = 0.0
        self.commits = 0
        self.batches = 0
        self.runs = 0
        self.statements = 0

    def fail_over(self, away_s: float) -> None:
        """Answers nothing for this long. Commits in flight have an unknown outcome and are repeated."""
        self._failovers += 1
        self._away_until_s = self._loop.now_s + away_s
        self.locks = RowLocks()

    def commit(self, batches: int, runs: int, rows: Sequence[int], done: Done) -> None:
        """`rows` are the partitions, in ascending order; `done` when the outcome is known."""
        if self._loop.now_s < self._away_until_s:
            pause_s = float(self._random.uniform(0.0, _LONGEST_BACKOFF_S))
            self._loop.at(self._away_until_s + pause_s, self.commit, batches, runs, rows, done)
            return
        work_s, failovers, locks = self._cost.cpu_s(batches, runs), self._failovers, self.locks

        def locked() -> None:
            self.cpu_s += work_s
            self.cores.submit(work_s, worked)

        def worked() -> None:
            self.log.write(self._cost.log_bytes(batches, runs), synced)

        def synced() -> None:
            self._after(self._place.standby_s, ended)

        def ended() -> None:
            locks.release(rows)
            if failovers != self._failovers:
                self.commit(batches, runs, rows, done)
                return
            self.commits += 1
            self.batches += batches
            self.runs += runs
            self._after(self._place.network_s / 2, done)

        self._after(self._place.network_s / 2, lambda: locks.take(rows, locked))

    def statement(self, work_s: float, done: Done) -> None:
        """A read, or a write whose sync no part of the model waits for."""
        self.statements += 1
        self.cpu_s += work_s
        if self._loop.now_s < self._away_until_s:
            self._loop.at(self._away_until_s, done)
        else:
            self.cores.submit(work_s, lambda: self._after(self._place.network_s, done))

    def _after(self, delay_s: float, then: Done) -> None:
        if delay_s:
            self._loop.after(delay_s, then)
        else:
            then()
