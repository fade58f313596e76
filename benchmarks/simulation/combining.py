"""A way past shared row locks: one committer for a database, which puts the commits of all agents into one.

Agents do not do this today. While a commit is in flight, others gather. Then all of them become one commit,
which finds no lock held. It costs a hop to the committing agent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulation.events import EventLoop
from benchmarks.simulation.postgres import Done, Postgres

_HOP_S = 0.001


@dataclass(slots=True)
class _Request:
    batches: int
    runs: int
    rows: Sequence[int]
    done: Done


class Combiner:
    """Takes the place of Postgres for the agents."""

    def __init__(self, loop: EventLoop, postgres: Postgres) -> None:
        self._loop = loop
        self._postgres = postgres
        self._waiting: list[_Request] = []
        self._committing = False

    def commit(self, batches: int, runs: int, rows: Sequence[int], done: Done) -> None:
        self._loop.after(_HOP_S, self._add, _Request(batches, runs, rows, done))

    def _add(self, request: _Request) -> None:
        self._waiting.append(request)
        if not self._committing:
            self._commit()

    def _commit(self) -> None:
        together, self._waiting = self._waiting, []
        self._committing = True
        rows = sorted(set().union(*(request.rows for request in together)))
        batches, runs = sum(one.batches for one in together), sum(one.runs for one in together)
        self._postgres.commit(batches, runs, rows, lambda: self._committed(together))

    def _committed(self, together: Sequence[_Request]) -> None:
        self._committing = False
        if self._waiting:
            self._commit()
        for request in together:
            request.done()
