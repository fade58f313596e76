"""The results of a fetch, and the bytes of the budget for answers that it holds until it is sent."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from agent.read_path.read_decisions import PartitionPlan, ReadFailure
from agent.topic_traffic import Sent
from cache_ring.coordinates.coordinate_cache import PartitionView
from cache_ring.pages.byte_budget import ByteBudget
from storage.arrow.aborted_batches import AbortedTransaction
from storage.identifiers import NO_OFFSET

Chunks: TypeAlias = Sequence[bytes | bytearray | memoryview]


class PartitionResult(NamedTuple):
    """The result of one partition. Offsets are -1 if they are unknown."""

    plan: PartitionPlan
    failure: ReadFailure | None = None
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    chunks: Chunks = ()
    size_bytes: int = 0
    aborted: Sequence[AbortedTransaction] = ()
    """That overlap the chunks, if the reader wants committed records."""


def found(
    plan: PartitionPlan,
    view: PartitionView,
    chunks: Chunks = (),
    size_bytes: int = 0,
    aborted: Sequence[AbortedTransaction] = (),
) -> PartitionResult:
    return PartitionResult(
        plan,
        None,
        view.high_watermark,
        view.last_stable_offset,
        view.log_start_offset,
        chunks,
        size_bytes,
        aborted,
    )


def failed(plan: PartitionPlan, failure: ReadFailure) -> PartitionResult:
    return PartitionResult(plan, failure)


class FetchAnswer:
    """Take the bytes before they are loaded, and release them once they are sent."""

    __slots__ = ("_budget", "_bulk", "_bulk_taken", "_is_kept", "_taken", "results", "sent", "size_bytes")

    def __init__(self, budget: ByteBudget, results: Sequence[PartitionResult] = ()) -> None:
        self.results = results
        self.size_bytes = 0
        self.sent: list[Sent] = []
        """The outgoing batches of each partition with records."""
        self._budget = budget
        self._taken = 0
        self._bulk: ByteBudget | None = None
        self._bulk_taken = 0
        self._is_kept = False

    @property
    def has_failure(self) -> bool:
        return any(result.failure is not None for result in self.results)

    async def take(self, size_bytes: int, bulk: ByteBudget | None = None) -> None:
        """`bulk`: the part of the budget that bulk may take, if this is bulk. It waits there first, among
        bulk.
        """
        if bulk is not None:
            self._bulk_taken, self._bulk = await bulk.take(size_bytes), bulk
        self._taken = await self._budget.take(size_bytes)

    def kept(self) -> "FetchAnswer":
        self._is_kept = True
        return self

    def release(self) -> None:
        """Gives the bytes back. A second call does nothing."""
        taken, self._taken = self._taken, 0
        self._budget.give_back(taken)
        if self._bulk is not None:
            taken, self._bulk_taken = self._bulk_taken, 0
            self._bulk.give_back(taken)

    def release_unless_kept(self) -> None:
        if not self._is_kept:
            self.release()
