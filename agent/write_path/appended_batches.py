"""The batches of one request on their way, and what becomes of each.

Owned by the write path; whoever appended them is called once all is known, or waits, and reads what came of them.
Promises that `is_done` is true, and whoever asked for it called, once nothing of the batches is on its way any more,
also where nobody waits for them by then.
"""

import asyncio
from collections.abc import Callable, Sequence

from agent.write_path.outcomes import WriteFailed, WriteOutcome
from sequencer.commits.commits import Assigned
from storage.identifiers import Offset
from storage.segments.segment_batches import PendingBatches

_NO_OFFSET = -1
_NO_BATCHES = PendingBatches.of(())


class Appended:
    __slots__ = (
        "_missing",
        "_when_answered",
        "_when_done",
        "base_offsets",
        "batches",
        "log_starts",
        "number",
        "others",
    )

    def __init__(self, batches: PendingBatches) -> None:
        self.batches = batches
        """Until all of them are sealed: then their bytes are in segments, and the request's frame need not live."""
        self.base_offsets: list[int] = [_NO_OFFSET] * len(batches)
        """Of each batch that was assigned one; negative for the others."""
        self.log_starts: list[int] = [_NO_OFFSET] * len(batches)
        """Of each batch that has an outcome the log start offset of its partition; negative if it is not known."""
        self.others: dict[int, WriteOutcome] = {}
        """What else came of batches, which the request is told in any case."""
        self.number = 0
        self._missing = len(batches)
        self._when_answered: list[Callable[[], object]] = []
        self._when_done: list[Callable[[], object]] = []

    @property
    def is_done(self) -> bool:
        return not self._missing

    @property
    def unassigned(self) -> list[int]:
        """The batches that have no offset."""
        return [index for index, offset in enumerate(self.base_offsets) if offset < 0]

    @property
    def outcomes(self) -> list[WriteOutcome | None]:
        """Of each batch; None while there is none."""
        return [
            self.others.get(index, None if offset < 0 else Assigned(base_offset=Offset(offset)))
            for index, offset in enumerate(self.base_offsets)
        ]

    def when_answered(self, callback: Callable[[], object]) -> None:
        """Call this as soon as every batch has an outcome for its request: from within the write path, which it must
        neither hold up nor break."""
        if self._missing:
            self._when_answered.append(callback)
        else:
            callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call this, in the same way, once it is done: later, if its request did not wait for it."""
        if self._missing:
            self._when_done.append(callback)
        else:
            callback()

    async def answered(self) -> None:
        """Return when every batch has an outcome for its request."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.when_answered(wake)
        await waiter

    def sealed_until(self, end: int) -> None:
        if end == len(self.base_offsets):
            self.batches = _NO_BATCHES

    def assign(self, start: int, base_offsets: Sequence[int], log_starts: Sequence[int]) -> None:
        """Batches from `start` on are written. What their request was told before stands."""
        self.base_offsets[start : start + len(base_offsets)] = base_offsets
        self.log_starts[start : start + len(base_offsets)] = log_starts
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
        for index in self.unassigned:
            self.others.setdefault(index, failure)
        self._call(self._when_answered)

    def _settled(self, count: int) -> None:
        self._missing -= count
        if not self._missing:
            self._call(self._when_done)
            self._call(self._when_answered)

    def _call(self, callbacks: list[Callable[[], object]]) -> None:
        """Each of them once."""
        called = callbacks.copy()
        callbacks.clear()
        for callback in called:
            callback()
