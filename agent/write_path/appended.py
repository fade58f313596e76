"""The batches of one request on their way, and what becomes of each.

Owned by the write path; whoever appended them waits for `done` and reads `outcomes`. Promises that `done` is set once
nothing of the batches is on its way any more, also where nobody waits for them by then.
"""

import asyncio
from collections.abc import Sequence

from agent.write_path.outcomes import WriteFailed, WriteOutcome
from storage.segment import PendingBatch


class Appended:
    __slots__ = ("_missing", "_waiter", "batches", "done", "number", "outcomes")

    def __init__(self, batches: Sequence[PendingBatch]) -> None:
        self.batches = batches
        """Until all of them are sealed: then their bytes are in segments, and the request's frame need not live."""
        self.outcomes: list[WriteOutcome | None] = [None] * len(batches)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.number = 0
        self._missing = len(batches)
        self._waiter: asyncio.Future[None] | None = None
        if not batches:
            self.done.set_result(None)

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
        if end == len(self.outcomes):
            self.batches = ()

    def settle(self, index: int, outcome: WriteOutcome) -> None:
        """This batch is on its way no more. What its request was told before stands."""
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
        self._settled(1)

    def settle_last(self, count: int, failure: WriteFailed) -> None:
        """The last so many will not be written."""
        for index in range(len(self.outcomes) - count, len(self.outcomes)):
            if self.outcomes[index] is None:
                self.outcomes[index] = failure
        self.batches = ()
        self._settled(count)

    def answer_all(self, failure: WriteFailed) -> None:
        """Give every batch an outcome for its request, which waits no longer; some may still be on their way."""
        self.outcomes = [failure if outcome is None else outcome for outcome in self.outcomes]

    def _settled(self, count: int) -> None:
        self._missing -= count
        if not self._missing and not self.done.done():
            self.done.set_result(None)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
