"""Kafka API 22, InitProducerId, v0-v5 (KIP-98; KIP-360: a producer that names its id and epoch gets the next
epoch; KIP-588: a fenced producer is told from an old one).

With a transactional id, earlier producers of that id are fenced, and their open transaction is aborted at
once. Refused: a transaction timeout above TIDELOG_TRANSACTION_MAX_TIMEOUT_S, and a transactional id that its
tenant may not have.
"""

from datetime import timedelta
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from agent.error_codes import administration_code, transaction_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import CLUSTER, TOPIC, TRANSACTIONAL_ID, may, note_refusal
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id
from agent.kafka.uses import UsesReads, UsesSequencer, UsesTransactionalIds
from sequencer.commits.producers import ProducerIdentity
from sequencer.commits.transactions import (
    EndCause,
    Ended,
    ProducerOfTransactions,
    TransactionRefusal,
)
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import CLUSTER_NAME, Operation
from sequencer.tenants.tenant_limits import TenantLimitReached
from storage.identifiers import NO_PRODUCER_ID
from storage.identifiers import ProducerId as LogProducerId

_TRIES: Final = 5
"""How often an open transaction is aborted and the id asked for again. Others may begin one in between."""
_FIRST_WITH_FENCED: Final = 4


class _Uses(UsesSequencer, UsesReads, UsesTransactionalIds, Protocol):
    """The parts that this API uses."""


async def handle(request: InitProducerIdRequest, context: RequestContext[_Uses]) -> InitProducerIdResponse:
    refused = _refusal(request.transactional_id, context)
    if refused is not None:
        return _refused(refused)
    asked = ProducerIdentity(
        producer_id=LogProducerId(request.producer_id), producer_epoch=request.producer_epoch
    )
    if (asked.producer_id < 0) != (asked.producer_epoch < 0):
        return _refused(ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return await _initialize_transactions(request, asked, context)
    try:
        identity = await context.parts.sequencer.producers.initialize(asked.producer_id, asked.producer_epoch)
    except SequencerUnavailable:
        return _refused(ErrorCode.coordinator_not_available)
    return _given(identity)


def _refusal(transactional_id: str | None, context: RequestContext[_Uses]) -> ErrorCode | None:
    if transactional_id is not None:
        is_allowed = may(Operation.WRITE, TRANSACTIONAL_ID, transactional_id, context)
        return None if is_allowed else ErrorCode.transactional_id_authorization_failed
    rights = context.connection.rights
    if rights.allows(Operation.IDEMPOTENT_WRITE, CLUSTER) or rights.allows_some(Operation.WRITE, TOPIC):
        return None
    note_refusal(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME, context)
    return ErrorCode.cluster_authorization_failed


async def _initialize_transactions(
    request: InitProducerIdRequest, asked: ProducerIdentity, context: RequestContext[_Uses]
) -> InitProducerIdResponse:
    if not can_be_transactional_id(request.transactional_id):
        return _refused(ErrorCode.invalid_request)
    assert request.transactional_id is not None
    timeout_ms = request.transaction_timeout // timedelta(milliseconds=1)
    if not 0 < timeout_ms <= context.settings.transaction_max_timeout_s * 1000:
        return _refused(ErrorCode.invalid_transaction_timeout)
    transactions = context.parts.sequencer.transactions
    try:
        for _ in range(_TRIES):
            found = await transactions.initialize(request.transactional_id, timeout_ms, asked)
            if isinstance(found, ProducerIdentity):
                context.parts.transactional_ids.note(found.producer_id, request.transactional_id)
                return _given(found)
            if isinstance(found, TransactionRefusal):
                knows_fenced = context.api_version >= _FIRST_WITH_FENCED
                return _refused(transaction_code(found, knows_fenced=knows_fenced))
            await _abort(found, asked, context)
    except TenantLimitReached as refused:
        return _refused(administration_code(refused))
    except AWAY:
        return _refused(ErrorCode.coordinator_not_available)
    return _refused(ErrorCode.concurrent_transactions)


async def _abort(
    found: ProducerOfTransactions, asked: ProducerIdentity, context: RequestContext[_Uses]
) -> None:
    """Aborts an open transaction: of an earlier producer, or of this one, which then goes on."""
    is_its_own = asked.producer_id == found.producer_id and asked.producer_epoch == found.producer_epoch
    ended = await context.parts.sequencer.transactions.end(
        found, is_commit=False, cause=EndCause.RESTART if is_its_own else EndCause.FENCE
    )
    if isinstance(ended, Ended):
        context.parts.reads.committed(ended.markers)


def _given(identity: ProducerIdentity) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        producer_id=ProducerId(identity.producer_id),
        producer_epoch=i16(identity.producer_epoch),
    )


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        producer_id=ProducerId(NO_PRODUCER_ID),
        producer_epoch=i16(-1),
    )
