"""Kafka API 66, ListTransactions, v0-v2 (KIP-664, KIP-994, KIP-1152): empty, because there are no
transactions yet.

Filters are checked as in Kafka: the answer names unknown states, and an invalid pattern is refused
(INVALID_REGULAR_EXPRESSION).
"""

from typing import Final

import re2
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse

from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext

_STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)


async def handle(
    request: ListTransactionsRequest, context: RequestContext[object]
) -> ListTransactionsResponse:
    del context
    is_pattern = _is_pattern(request.transactional_id_pattern)
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if is_pattern else ErrorCode.invalid_regular_expression,
        unknown_state_filters=tuple(state for state in request.state_filters if state not in _STATES),
        transaction_states=(),
    )


def _is_pattern(pattern: str | None) -> bool:
    if not pattern:
        return True
    try:
        re2.compile(pattern)
    except re2.error:
        return False
    return True
