"""Decides how long an overloaded agent asks a client to pause (KIP-219), by its budgets when the response is
made.

An overloaded agent in the end stops reading its clients' sockets. The pause comes before that, so that
clients wait where they can show it.

Promises of `throttle_ms`:
- There is no pause while every budget is used to less than `from_share`.
- The pause grows with the fullest budget.
- It never exceeds `longest_ms`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.kafka.transport.memory import MemoryBudget
from agent.metrics import Metrics
from agent.read_path.reads import ReadPath
from agent.settings import AgentSettings
from agent.write_path.write_path import WritePath
from sequencer.database.fair_queue import ASKED_BY, Asker


class Overload:
    """One per agent. `lookups`: how much of its fair part of each queue for the database a client uses."""

    def __init__(
        self,
        memory: MemoryBudget,
        bulk_memory: MemoryBudget,
        write_path: WritePath,
        reads: ReadPath,
        lookups: Sequence[Callable[[Asker], float]],
        settings: AgentSettings,
        metrics: Metrics,
    ) -> None:
        self._memory = memory
        self._bulk_memory = bulk_memory
        self._write_path = write_path
        self._reads = reads
        self._lookups = lookups
        self._most_segments = settings.max_uploads + settings.max_segments_per_commit
        self._policy = ThrottlePolicy(
            from_share=settings.throttle_from_share, longest_ms=settings.throttle_max_ms
        )
        self._metrics = metrics

    def load(self) -> float:
        """Returns how full the fullest of these budgets is, from 0 to 1."""
        return min(
            1.0,
            max(self._memory.share, self._bulk_memory.share, self._segments_share(), self._answers_share()),
        )

    def of_produce(self, *, is_bulk: bool = False) -> int:
        """Returns the pause for the memory of requests, which holds what is not committed, and for segments
        that wait for store or commit. Bulk pauses for its own part of the memory, and no one else does.
        """
        if is_bulk:
            return self._throttle("Produce", self._bulk_memory.share)
        return self._throttle("Produce", self._memory.share, self._segments_share())

    def of_fetch(self) -> int:
        """Returns the pause for the memory of requests, and for responses that are not sent yet."""
        return self._throttle("Fetch", self._memory.share, self._answers_share())

    def of_lookup(self, api: str) -> int:
        """Returns the pause for the client's requests that wait for the database, relative to those of
        others.
        """
        asker = ASKED_BY.get()
        return self._throttle(api, *(used_share(asker) for used_share in self._lookups))

    def of_refused(self, api: str) -> int:
        """Returns the longest pause: the client had too many requests waiting for the database."""
        return self._throttle(api, 1.0)

    def count_pause(self, api: str, pause_ms: int) -> None:
        if pause_ms:
            self._metrics.throttled.labels(api).inc()
            self._metrics.throttle_seconds.labels(api).inc(pause_ms / 1000)

    def _segments_share(self) -> float:
        return self._write_path.sealed_segments / self._most_segments

    def _answers_share(self) -> float:
        return self._reads.answer_bytes / self._reads.settings.fetch_answer_bytes

    def _throttle(self, api: str, *used_shares: float) -> int:
        pause_ms = throttle_ms(used_shares, self._policy)
        self.count_pause(api, pause_ms)
        return pause_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    from_share: float
    """A share of a budget, in [0, 1). Above it, clients are asked to pause."""
    longest_ms: int


def throttle_ms(used_shares: Iterable[float], policy: ThrottlePolicy) -> int:
    """Returns the pause in milliseconds for budgets used to these shares, in proportion to the part above
    `from_share`.
    """
    fullest = max(used_shares, default=0.0)
    beyond = (fullest - policy.from_share) / (1.0 - policy.from_share)
    return round(policy.longest_ms * min(1.0, max(0.0, beyond)))
