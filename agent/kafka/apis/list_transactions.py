"""Kafka API 66, ListTransactions, v0-v2 (KIP-664, KIP-994, KIP-1152).

Every agent lists the transactional ids of the whole cluster whose coordinator it is, so a client that asks
all agents sees each id once. Filters are checked as in Kafka: the answer names unknown states, and an invalid
pattern is refused (INVALID_REGULAR_EXPRESSION). If the request names producers, only their ids are looked up,
however many others there are. At most TIDELOG_LIST_TRANSACTIONS_LIMIT ids are looked at.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import re2
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse, TransactionState
from kio.schema.types import ProducerId, TransactionalId

from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import TRANSACTIONAL_ID, is_silently_allowed
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting
from agent.kafka.transactions import AWAY, state_of
from agent.kafka.uses import UsesSequencer
from sequencer.commits.transactions import TransactionListing
from sequencer.security.acl import Operation
from storage.identifiers import ProducerId as LogProducerId


class _Uses(UsesSequencer, UsesRouting, Protocol):
    """The parts that this API uses."""


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
_PAGE: Final = 1000


async def handle(
    request: ListTransactionsRequest, context: RequestContext[_Uses]
) -> ListTransactionsResponse:
    try:
        pattern = re2.compile(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except re2.error:
        return _respond(request, ErrorCode.invalid_regular_expression)
    try:
        found = [
            one
            async for one in _looked_at(request, context)
            if _is_wanted(one, request)
            and (pattern is None or pattern.fullmatch(_seen(one.transactional_id, context)))
            and _is_ours(one, context)
            and is_silently_allowed(Operation.DESCRIBE, TRANSACTIONAL_ID, one.transactional_id, context)
        ]
    except AWAY:
        return _respond(request, ErrorCode.coordinator_not_available)
    return _respond(request, ErrorCode.none, found)


def _seen(transactional_id: str, context: RequestContext[_Uses]) -> str:
    tenant = context.tenant
    return (
        transactional_id
        if tenant is None or not tenant.owns(transactional_id)
        else tenant.local(transactional_id)
    )


async def _looked_at(
    request: ListTransactionsRequest, context: RequestContext[_Uses]
) -> AsyncIterator[TransactionListing]:
    transactions, limit = context.parts.sequencer.transactions, context.settings.list_transactions_limit
    asked = sorted({LogProducerId(producer_id) for producer_id in request.producer_id_filters})
    if asked:
        for first in range(0, min(len(asked), limit), _PAGE):
            for one in await transactions.of_producers(asked[first : min(first + _PAGE, limit)]):
                yield one
        return
    # Ids are in the order of their bytes, so those of a tenant lie together. Others use up none of its limit.
    after = prefix = context.prefix
    for _ in range(0, limit, _PAGE):
        page = await transactions.page(_PAGE, after)
        for one in page:
            if not one.transactional_id.startswith(prefix):
                return
            yield one
        if len(page) < _PAGE:
            return
        after = page[-1].transactional_id


def _is_wanted(one: TransactionListing, request: ListTransactionsRequest) -> bool:
    is_open = one.open_for_ms is not None
    return (
        not request.state_filters or state_of(one.last_end, is_open=is_open) in request.state_filters
    ) and (request.duration_filter < 0 or (one.open_for_ms or 0) > request.duration_filter)


def _is_ours(one: TransactionListing, context: RequestContext[_Uses]) -> bool:
    if context.settings.one_address is not None:
        return True
    membership = context.parts.membership
    coordinator = membership.ring.coordinator(f"transaction/{one.transactional_id}")
    itself = membership.self_
    return coordinator is None or itself is None or coordinator.node_id == itself.node_id


def _respond(
    request: ListTransactionsRequest, code: ErrorCode, found: Sequence[TransactionListing] = ()
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        unknown_state_filters=tuple(state for state in request.state_filters if state not in _STATES),
        transaction_states=tuple(
            TransactionState(
                transactional_id=TransactionalId(one.transactional_id),
                producer_id=ProducerId(one.producer_id),
                transaction_state=state_of(one.last_end, is_open=one.open_for_ms is not None),
            )
            for one in found
        ),
    )
