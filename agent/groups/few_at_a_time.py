"""What a request asks of many groups, asked of a few of them at a time.

A request of two megabytes names a hundred thousand groups. Asked of all at once they would fill the queue of loads, so
that other clients' groups find no place in it, and keep the event loop from everything else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

_Group = TypeVar("_Group")
_Answer = TypeVar("_Answer")

AT_ONCE: Final = 64


async def few_at_a_time(ask: Callable[[_Group], Awaitable[_Answer]], groups: Sequence[_Group]) -> list[_Answer]:
    """The answers in the order of the groups."""
    answers: list[_Answer] = []
    for first in range(0, len(groups), AT_ONCE):
        answers += await asyncio.gather(*map(ask, groups[first : first + AT_ONCE]))
    return answers
