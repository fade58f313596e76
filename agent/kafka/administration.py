"""What administrative requests have in common: their timeouts, and what may be named only once in them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

from kio.schema.errors import ErrorCode

from agent.error_codes import Refused
from agent.kafka.config_entries import TOPIC_RESOURCE
from agent.kafka.context import RequestContext
from sequencer.topics import Topic

_Name = TypeVar("_Name", bound=Hashable)


def named_twice(names: Iterable[_Name]) -> set[_Name]:
    return {name for name, times in Counter(names).items() if times > 1}


async def topics_of(resources: Iterable[tuple[int, str]], context: RequestContext) -> dict[str, Topic]:
    """The topics among resources (type, name), looked up at once. Raises one of ADMINISTRATION_ERRORS."""
    names = {name for resource_type, name in resources if resource_type == TOPIC_RESOURCE}
    return await context.parts.topics.fresh(names) if names else {}


@asynccontextmanager
async def within(timeout: timedelta, context: RequestContext) -> AsyncIterator[None]:
    """Raises Refused with REQUEST_TIMED_OUT once the request's time is over: what it asked for may be done all the
    same. A timeout of zero or less names no time; no request has longer than `max_admin_timeout_s`.
    """
    longest_s = context.settings.max_admin_timeout_s
    wait_s = min(timeout.total_seconds(), longest_s) if timeout > timedelta(0) else longest_s
    deadline_s = context.received_at_s + wait_s
    due = asyncio.timeout_at(deadline_s)
    try:
        async with due:
            yield
    except TimeoutError as error:
        if not due.expired():
            raise
        raise Refused(ErrorCode.request_timed_out, "the request's timeout was over before its answer") from error
