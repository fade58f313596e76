"""Runs calls at the same time: all of them, or a few at a time.

Promises:
- If one fails, or the caller is cancelled, the others have ended before that is raised.
- A failure keeps no task alive, and nothing that the tasks read.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")

AT_ONCE: Final = 64


async def side_by_side(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Returns the results in order. A single call gets no task. Raises the first failure unchanged, unlike a
    TaskGroup.
    """
    coroutines = list(calls)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.create_task(call) for call in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
        tasks.clear()  # their exception's traceback has this frame: the cycle would keep both alive


async def few_at_a_time(
    call: Callable[[Given], Coroutine[Any, Any, Result]], given: Sequence[Given]
) -> list[Result]:
    """Returns the results in order. Use it for a request that names many things: a hundred thousand calls at
    once would fill the queues of all other clients and block the event loop.
    """
    found: list[Result] = []
    for first in range(0, len(given), AT_ONCE):
        found += await side_by_side(map(call, given[first : first + AT_ONCE]))
    return found


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
