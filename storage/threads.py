"""Runs blocking or long calls in threads, a bounded number at once.

Each part of Tidelog that makes such calls has its own threads. In asyncio's default executor all parts would
share one queue without a bound: the slow calls of one part would delay those of all others.

Promises:
- At most `count` calls run at once. The others wait on the event loop. The client whose calls took the least
  CPU since calls began to wait goes next (`fair_limit.py`).
- A caller that is cancelled while it waits takes no thread. If its call already runs, the thread is free only
  once the call has ended.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from storage.fair_limit import FairLimit

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threads:
    """Threads start when they are first needed. They end with `close`, or with this object."""

    def __init__(self, name: str, count: int) -> None:
        self._running = FairLimit(count)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    @property
    def running(self) -> int:
        """Calls that have a thread."""
        return self._running.taken

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return self._running.waiting

    async def run(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Returns what the call returns; raises what it raises."""
        return await self.run_for(None, lambda: call(*arguments, **named))

    async def run_for(
        self, client: Hashable, call: Callable[[], Result], then: Callable[[], None] = lambda: None
    ) -> Result:
        """As `run`, for a client that shares the threads with others. `then` is called once, on the event
        loop, when the call has ended or can no longer begin, also if the caller was cancelled."""
        took_s = 0.0

        def timed() -> Result:
            nonlocal took_s
            began_s = time.thread_time()
            try:
                return call()
            finally:
                took_s = time.thread_time() - began_s

        def ended(running: "asyncio.Future[Result]") -> None:
            self._running.charge(client, took_s)
            self._running.give_back()
            then()
            if not running.cancelled():
                running.exception()  # mark it as seen: a cancelled caller does not

        try:
            await self._running.take(client)
        except BaseException:
            then()
            raise
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, timed)
        except BaseException:
            self._running.give_back()
            then()
            raise
        running.add_done_callback(ended)
        return await asyncio.shield(running)

    def close(self) -> None:
        """Takes no more calls. Running calls go on to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
