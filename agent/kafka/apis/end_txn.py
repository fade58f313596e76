"""Kafka API 26, EndTxn, v0-v5 (KIP-98; KIP-588 a fenced producer; KIP-890: from v5 on the epoch rises with
each end, and the answer brings it).

The transaction has ended in all its partitions and groups when this is answered. A repeated request gets the
first answer.
"""

from typing import Final, Protocol

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from agent.error_codes import transaction_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import TRANSACTIONAL_ID, may
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id, producer_of
from agent.kafka.uses import UsesReads, UsesSequencer
from sequencer.commits.transactions import EndCause, TransactionRefusal
from sequencer.security.acl import Operation


class _Uses(UsesSequencer, UsesReads, Protocol):
    """The parts that this API uses."""


_FIRST_WITH_FENCED: Final = 2
_FIRST_THAT_RAISES_EPOCHS: Final = 5


async def handle(request: EndTxnRequest, context: RequestContext[_Uses]) -> EndTxnResponse:
    if not may(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id, context):
        return _refused(ErrorCode.transactional_id_authorization_failed)
    if not can_be_transactional_id(request.transactional_id):
        return _refused(ErrorCode.invalid_request)
    raises = context.api_version >= _FIRST_THAT_RAISES_EPOCHS
    try:
        ended = await context.parts.sequencer.transactions.end(
            producer_of(request),
            is_commit=request.committed,
            cause=EndCause.CLIENT_2 if raises else EndCause.CLIENT,
        )
    except AWAY:
        return _refused(ErrorCode.coordinator_not_available)
    if isinstance(ended, TransactionRefusal):
        return _refused(transaction_code(ended, knows_fenced=context.api_version >= _FIRST_WITH_FENCED))
    context.parts.reads.committed(ended.markers)
    return EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        producer_id=ProducerId(ended.identity.producer_id),
        producer_epoch=i16(ended.identity.producer_epoch),
    )


def _refused(code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(throttle_time=NO_THROTTLE, error_code=code)
