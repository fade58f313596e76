"""What administrative requests have in common: their timeouts, and what may be named only once in them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

from kio.schema.errors import ErrorCode

from agent.error_codes import Refused
from agent.kafka.context import RequestContext

_Name = TypeVar("_Name", bound=Hashable)


def named_twice(names: Iterable[_Name]) -> set[_Name]:
    return {name for name, times in Counter(names).items() if times > 1}


@asynccontextmanager
async def within(timeout: timedelta, context: RequestContext) -> AsyncIterator[None]:
    """Raises Refused with REQUEST_TIMED_OUT once the request's time is over: what it asked for may be done all the
    same. A timeout of zero or less names no time, and the sequencer's own limits hold.
    """
    if timeout <= timedelta(0):
        yield
        return
    deadline_s = context.received_at_s + timeout.total_seconds()
    due = asyncio.timeout_at(deadline_s)
    try:
        async with due:
            yield
    except TimeoutError as error:
        if not due.expired():
            raise
        raise Refused(ErrorCode.request_timed_out, "the request's timeout was over before its answer") from error
