"""The batches of one request on their way, and what becomes of each.

Owned by the write path; whoever appended them waits for `done` and reads what came of them. Promises that `done` is set
once nothing of the batches is on its way any more, also where nobody waits for them by then.
"""

import asyncio

import numpy as np
from numpy.typing import NDArray

from agent.write_path.outcomes import WriteFailed, WriteOutcome
from sequencer.commits import Assigned
from storage.identifiers import Offset
from storage.segment_batches import PendingBatches

_NO_OFFSET = -1
_NO_BATCHES = PendingBatches.of(())


class Appended:
    __slots__ = ("_missing", "_waiter", "base_offsets", "batches", "done", "number", "others")

    def __init__(self, batches: PendingBatches) -> None:
        self.batches = batches
        """Until all of them are sealed: then their bytes are in segments, and the request's frame need not live."""
        self.base_offsets: NDArray[np.int64] = np.full(len(batches), _NO_OFFSET)
        """Of each batch that was assigned one; negative for the others."""
        self.others: dict[int, WriteOutcome] = {}
        """What else came of batches, which the request is told in any case."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.number = 0
        self._missing = len(batches)
        self._waiter: asyncio.Future[None] | None = None
        if not self._missing:
            self.done.set_result(None)

    @property
    def outcomes(self) -> list[WriteOutcome | None]:
        """Of each batch; None while there is none."""
        return [
            self.others.get(index, None if offset < 0 else Assigned(base_offset=Offset(offset)))
            for index, offset in enumerate(self.base_offsets.tolist())
        ]

    async def wait(self, longest_s: float) -> None:
        """Return when it is done, or when the time is over. For one waiter: a timer and a future, where `asyncio.wait`
        takes twice as long."""
        if self.done.done():
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(longest_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()

    def sealed_until(self, end: int) -> None:
        if end == len(self.base_offsets):
            self.batches = _NO_BATCHES

    def assign(self, start: int, base_offsets: NDArray[np.int64]) -> None:
        """Batches from `start` on are written. What their request was told before stands."""
        self.base_offsets[start : start + len(base_offsets)] = base_offsets
        self._settled(len(base_offsets))

    def settle(self, index: int, outcome: WriteOutcome) -> None:
        """This batch is on its way no more. What its request was told before stands."""
        if isinstance(outcome, Assigned):
            self.base_offsets[index] = outcome.base_offset
        else:
            self.others.setdefault(index, outcome)
        self._settled(1)

    def settle_part(self, start: int, end: int, failure: WriteFailed) -> None:
        """These are on their way no more, and were not written."""
        for index in range(start, end):
            self.others.setdefault(index, failure)
        self._settled(end - start)

    def settle_last(self, count: int, failure: WriteFailed) -> None:
        """The last so many will not be written."""
        self.batches = _NO_BATCHES
        self.settle_part(len(self.base_offsets) - count, len(self.base_offsets), failure)

    def answer_all(self, failure: WriteFailed) -> None:
        """Give every batch an outcome for its request, which waits no longer; some may still be on their way."""
        for index in np.flatnonzero(self.base_offsets < 0).tolist():
            self.others.setdefault(index, failure)

    def _settled(self, count: int) -> None:
        self._missing -= count
        if not self._missing and not self.done.done():
            self.done.set_result(None)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
