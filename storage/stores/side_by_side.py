"""Calls that run at the same time, all of them or a few at a time, of which one may fail.

Promises that when one fails, or the caller is cancelled, the others have ended before that is raised, and that a
failure keeps nothing alive but itself: not the tasks, which lead back to it, nor what they had read.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")

AT_ONCE: Final = 64


async def side_by_side(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Their results in order; one alone has no task of its own. Raises what the first that failed raised, as it is,
    unlike a TaskGroup."""
    coroutines = list(calls)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.create_task(call) for call in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
        tasks.clear()  # their exception has this frame in its traceback: each would keep the other


async def few_at_a_time(call: Callable[[Given], Coroutine[Any, Any, Result]], given: Sequence[Given]) -> list[Result]:
    """The results in the order of what is given. For a request that names a hundred thousand things: asked for all at
    once they would fill the queues of all other clients, and keep the event loop from everything else."""
    found: list[Result] = []
    for first in range(0, len(given), AT_ONCE):
        found += await side_by_side(map(call, given[first : first + AT_ONCE]))
    return found


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
