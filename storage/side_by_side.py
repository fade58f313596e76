"""Requests side by side, of which one may fail.

Promises that when one fails, or the caller is cancelled, the others have ended before that is raised, and that a
failure keeps nothing alive but itself: not the tasks, which lead back to it, nor what they had read.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


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


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
