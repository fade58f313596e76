"""Looks up in the sequencer what several clients ask for at the same time, with one statement
(docs/design/failure-rules.md#isolation).

Promises:
- The statement for a caller begins after the caller came, so its answer shows everything written before that.
- One statement runs at a time. It names a key once, however many wait for it, and fewer than twice
  `most_keys` keys. So Postgres's work does not grow with the number of clients.
- Askers take turns (`sequencer/database/fair_queue.py`). A request of many keys waits with `most_keys` of
  them at a time.
- At most `most_waiting` requests wait. Past it, a request of the client with most waiting ones is refused.
- A failed statement fails for all that wait by then, so no request waits longer than for two.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.database.errors import TooManyWait
from sequencer.database.fair_queue import ASKED_BY, Asker, FairQueue

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiting(Generic[_Key, _Value]):
    keys: tuple[_Key, ...]
    answer: "asyncio.Future[Mapping[_Key, _Value]]"


class SharedLookups(Generic[_Key, _Value]):
    """`ask` runs one statement. A key that it does not find is absent from its answer."""

    def __init__(
        self,
        ask: Callable[[list[_Key]], Awaitable[Mapping[_Key, _Value]]],
        *,
        most_keys: int,
        most_waiting: int,
    ) -> None:
        self._ask = ask
        self._most_keys = most_keys
        self._queue: FairQueue[_Waiting[_Key, _Value]] = FairQueue(most_waiting)
        self._asking: asyncio.Task[None] | None = None
        self.statements = 0

    async def get(self, keys: Collection[_Key]) -> dict[_Key, _Value]:
        """Returns the values of those of these keys that exist. Raises what `ask` raises, and TooManyWait."""
        found: dict[_Key, _Value] = {}
        remaining = iter(keys)
        while part := tuple(islice(remaining, self._most_keys)):
            answer = await self._wait_for(part)
            found.update((key, answer[key]) for key in part if key in answer)
        return found

    def used_share(self, asker: Asker) -> float:
        """Returns how much of its fair part of the queue this asker uses. 1.0 is all of it."""
        return self._queue.used_share(asker)

    async def _wait_for(self, keys: tuple[_Key, ...]) -> Mapping[_Key, _Value]:
        asker = ASKED_BY.get()
        waiting: _Waiting[_Key, _Value] = _Waiting(
            keys=keys, answer=asyncio.get_running_loop().create_future()
        )
        refused = self._queue.add(asker, waiting)
        if refused is not None:
            _fail(refused, TooManyWait())
        if self._asking is None:
            # A separate context: it works for all callers, not only for the first.
            self._asking = asyncio.get_running_loop().create_task(
                self._ask_for_all(), context=contextvars.Context()
            )
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._queue.remove(asker, waiting)
            if not waiting.answer.cancelled():
                waiting.answer.exception()  # handled here if it came in the same moment
            raise

    async def _ask_for_all(self) -> None:
        try:
            while self._queue:
                batch, keys = self._batch()
                if not batch:
                    continue
                self.statements += 1
                try:
                    answer = await self._ask(keys)
                except (SequencerUnavailable, CommitOutcomeUnknown) as error:
                    for waiting in (*batch, *self._all_waiting()):
                        _fail(waiting, SequencerUnavailable(str(error)))
                except Exception as error:  # noqa: BLE001 - raised where each waits
                    for waiting in batch:
                        _fail(waiting, error)
                else:
                    for waiting in batch:
                        if not waiting.answer.done():
                            waiting.answer.set_result(answer)
        finally:
            self._asking = None

    def _batch(self) -> tuple[list[_Waiting[_Key, _Value]], list[_Key]]:
        batch, keys = [], dict[_Key, None]()
        while self._queue and len(keys) < self._most_keys:
            waiting = self._queue.next()
            if not waiting.answer.done():
                batch.append(waiting)
                keys.update(dict.fromkeys(waiting.keys))
        return batch, list(keys)

    def _all_waiting(self) -> list[_Waiting[_Key, _Value]]:
        return [self._queue.next() for _ in range(len(self._queue))]


def _fail(waiting: _Waiting[_Key, _Value], error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
