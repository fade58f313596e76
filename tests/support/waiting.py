"""Waits for a condition in tests, with a bound so that nothing hangs. No test measures time with it."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Returns when the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state, which sets no event
            await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Like `until`, without an event loop."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s:g} s in vain")
        time.sleep(0.02)
