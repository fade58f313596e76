"""Blocking or long calls beside the event loop, a bounded number at once.

Each part that makes such calls has threads of its own. In asyncio's default executor all parts would share one queue
without a bound: the slow calls of one would hold up those of all others.

Promises:
- At most `count` calls run at once. The others wait on the event loop, and clients take turns (`fair_queue.py`).
- A caller that is cancelled while it waits takes no thread. If its call is already running, the call ends first; only
  then is its thread free again.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from storage.fair_queue import FairQueue

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threads:
    """Threads start when they are first needed. They end with `close`, or with this object."""

    def __init__(self, name: str, count: int) -> None:
        self._queue = FairQueue(count)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    @property
    def running(self) -> int:
        """Calls that have a thread."""
        return self._queue.taken

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return self._queue.waiting

    async def run(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """What the call returns or raises."""
        return await self.run_for(None, lambda: call(*arguments, **named))

    async def run_for(self, client: Hashable, call: Callable[[], Result]) -> Result:
        """The same for a client that takes turns with others."""
        await self._queue.take(client)
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, call)
        except BaseException:
            self._queue.give_back()
            raise
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def close(self) -> None:
        """Take no more calls. Calls that run go on to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self, running: "asyncio.Future[Result]") -> None:
        self._queue.give_back()
        if not running.cancelled():
            running.exception()  # a caller that was cancelled does not ask for it
