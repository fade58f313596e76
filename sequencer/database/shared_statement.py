"""Calls that wait at the same time share a statement, and so a round trip and a flush of Postgres' log.

Promises:
- A call that finds no other is not delayed. The more calls wait, the more share the next statement.
- Connections take turns (`fair_queue.py`). A full queue refuses with TooManyWait.
- A statement that fails for several calls is repeated for each of them alone, so a bad call fails alone. If
  Postgres is away, or the outcome is not known, all of them are told at once.
- A cancelled call disturbs no other. It may have been carried out.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from sequencer.database.errors import CommitOutcomeUnknown, SequencerUnavailable, TooManyWait
from sequencer.database.fair_queue import ASKED_BY, THE_AGENT, FairQueue

_Call = TypeVar("_Call")
_Answer = TypeVar("_Answer")

_MOST_WAITING: Final = 10_000


class _Waiting(Generic[_Call, _Answer]):
    """A call and its answer. Equal only to itself."""

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()


class SharedStatement(Generic[_Call, _Answer]):
    """`run` carries out calls and returns their answers in order. At most `most` calls share a statement, and
    at most `at_once` statements run at once.
    """

    def __init__(
        self, run: Callable[[Sequence[_Call]], Awaitable[Sequence[_Answer]]], *, most: int, at_once: int
    ) -> None:
        self._run = run
        self._most = most
        self._at_once = at_once
        self._queue: FairQueue[_Waiting[_Call, _Answer]] = FairQueue(_MOST_WAITING)
        self._running: set[asyncio.Task[None]] = set()
        """Those that still look at the queue."""

    async def answer_to(self, call: _Call) -> _Answer:
        """Raises what `run` raises, or TooManyWait."""
        waiting: _Waiting[_Call, _Answer] = _Waiting(call)
        asker = ASKED_BY.get()
        refused = self._queue.add(asker, waiting)
        if refused is not None and not refused.answer.done():
            refused.answer.set_exception(TooManyWait())
        if len(self._running) < self._at_once:
            self._start()
        try:
            return await waiting.answer
        finally:
            self._queue.remove(asker, waiting)

    def _start(self) -> None:
        context = contextvars.copy_context()
        context.run(ASKED_BY.set, THE_AGENT)
        self._running.add(asyncio.create_task(self._run_all(), context=context))

    async def _run_all(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in its own"
        try:
            while self._queue:
                some = [self._queue.next() for _ in range(min(len(self._queue), self._most))]
                await self._answer(some)
        finally:
            self._running.discard(task)

    async def _answer(self, some: Sequence[_Waiting[_Call, _Answer]]) -> None:
        try:
            answers = await self._run([waiting.call for waiting in some])
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            _fail(some, error)
        except asyncio.CancelledError:
            _fail(some, SequencerUnavailable("the agent stops"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
            if len(some) == 1:
                _fail(some, error)
                return
            for waiting in some:
                await self._answer([waiting])
        else:
            for waiting, answer in zip(some, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)


def _fail(some: Sequence[_Waiting[_Call, _Answer]], error: Exception) -> None:
    for waiting in some:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
