"""Blocking or long calls beside the event loop, a bounded number at once.

Each part that makes such calls has threads of its own. In asyncio's default executor all parts would share one queue
without a bound: the slow calls of one would hold up those of all others.

Promises:
- At most `count` calls run at once. The others wait on the event loop. The client whose calls took the least
  CPU since calls began to wait goes next (`fair_limit.py`).
- A caller that is cancelled while it waits takes no thread. If its call is already running, the call ends first; only
  then is its thread free again.
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
        """What the call returns or raises."""
        return await self.run_for(None, lambda: call(*arguments, **named))

    async def run_for(
        self, client: Hashable, call: Callable[[], Result], then: Callable[[], None] = lambda: None
    ) -> Result:
        """The same for a client that shares the threads with others. `then` is called once, on the event loop, when the
        call has ended or can no longer begin: also when the caller was cancelled."""
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
                running.exception()  # a caller that was cancelled does not ask for it

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
        """Take no more calls. Calls that run go on to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
