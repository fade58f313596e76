"""The batches of one request on their way through the write path, and the outcome of each.

The write path owns them. Their request waits for the outcomes, or registers callbacks.

Promise: `is_done` is true, and the callbacks of `when_done` are called, once no batch is on its way any more,
also if the request stopped waiting before that.
"""

import asyncio
from collections.abc import Callable, Sequence

from agent.write_path.outcomes import AssignedBatches, Unassigned, WriteFailed, WriteOutcome
from sequencer.commits.commits import Assigned
from storage.identifiers import Offset
from storage.segments.segment_batches import PendingBatches

_NO_BATCHES = PendingBatches.of(())


class Appended:
    __slots__ = (
        "_count",
        "_missing",
        "_when_answered",
        "_when_done",
        "assigned",
        "batches",
        "is_bulk",
        "number",
        "unassigned",
    )

    def __init__(self, batches: PendingBatches) -> None:
        self.batches = batches
        """Set until all of them are sealed. Then their bytes are in segments, and the request's frame is no
        longer needed.
        """
        self.assigned: list[AssignedBatches] = []
        self.unassigned: dict[int, Unassigned] = {}
        """The other outcomes by the index of the batch. The request gets them even if a batch is assigned
        later.
        """
        self.number = 0
        self.is_bulk = False
        """True if the batches go the way of bulk."""
        self._count = self._missing = len(batches)
        self._when_answered: list[Callable[[], object]] = []
        self._when_done: list[Callable[[], object]] = []

    @property
    def is_done(self) -> bool:
        return not self._missing

    @property
    def outcomes(self) -> list[WriteOutcome | None]:
        """The outcome of each batch for its request. None: there is none yet."""
        outcomes: list[WriteOutcome | None] = [None] * self._count
        for part in self.assigned:
            for index, base_offset in enumerate(part.base_offsets, part.start):
                outcomes[index] = Assigned(base_offset=base_offset)
        for index, unassigned in self.unassigned.items():
            outcomes[index] = unassigned.outcome
        return outcomes

    def when_answered(self, callback: Callable[[], object]) -> None:
        """Calls this as soon as every batch has an outcome for its request. The call comes from within the
        write path: it must neither block nor raise.
        """
        if self._missing:
            self._when_answered.append(callback)
        else:
            callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls this, in the same way, once no batch is on its way. That is later if its request did not wait
        for it.
        """
        if self._missing:
            self._when_done.append(callback)
        else:
            callback()

    async def answered(self) -> None:
        """Returns when every batch has an outcome for its request."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.when_answered(wake)
        await waiter

    def sealed_until(self, end: int) -> None:
        if end == self._count:
            self.batches = _NO_BATCHES

    def assign(self, start: int, base_offsets: Sequence[Offset], log_starts: Sequence[Offset] | None) -> None:
        """Batches from `start` on are written. An outcome that their request already has does not change."""
        self.assigned.append(AssignedBatches(start, base_offsets, log_starts))
        self._settled(len(base_offsets))

    def settle(self, index: int, outcome: WriteOutcome, log_start_offset: Offset | None) -> None:
        """This batch is no longer on its way. An outcome that its request already has does not change."""
        if isinstance(outcome, Assigned):
            self.assign(
                index, (outcome.base_offset,), None if log_start_offset is None else (log_start_offset,)
            )
        else:
            self.unassigned.setdefault(index, Unassigned(outcome, log_start_offset))
            self._settled(1)

    def settle_part(self, start: int, end: int, failure: WriteFailed) -> None:
        """These are no longer on their way, and were not written."""
        for index in range(start, end):
            self.unassigned.setdefault(index, Unassigned(failure))
        self._settled(end - start)

    def settle_last(self, count: int, failure: WriteFailed) -> None:
        """The last `count` batches will not be written."""
        self.batches = _NO_BATCHES
        self.settle_part(self._count - count, self._count, failure)

    def answer_all(self, failure: WriteFailed) -> None:
        """Gives every batch an outcome for its request, which waits no longer. Some batches may still be on
        their way.
        """
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self.unassigned[index] = Unassigned(failure)
        self._call(self._when_answered)

    def _settled(self, count: int) -> None:
        self._missing -= count
        if not self._missing:
            self._call(self._when_done)
            self._call(self._when_answered)

    def _call(self, callbacks: list[Callable[[], object]]) -> None:
        """Calls each of them once."""
        called = callbacks.copy()
        callbacks.clear()
        for callback in called:
            callback()


class OwnLane:
    """The batches of one connection on their way through the write path: all are in one lane.

    Whoever must wait before it adds some does so until all are done, not only the last: a batch whose upload
    fails is done before earlier ones.
    """

    __slots__ = ("_emptied", "_is_bulk", "_under_way")

    def __init__(self) -> None:
        self._is_bulk = False
        self._under_way = 0
        self._emptied: asyncio.Future[None] | None = None

    @property
    def has_bulk(self) -> bool:
        return self._is_bulk and self._under_way > 0

    def must_wait(self, *, is_bulk: bool) -> bool:
        """True if earlier batches are in the other lane."""
        return self._under_way > 0 and self._is_bulk is not is_bulk

    async def emptied(self) -> None:
        """Returns once nothing is on its way. One request at a time may wait: the next in order."""
        if self._under_way:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def took(self, appended: Appended) -> None:
        if appended.is_done:  # none of its batches was valid
            return
        self._is_bulk = appended.is_bulk
        self._under_way += 1
        appended.when_done(self._one_is_done)

    def _one_is_done(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
