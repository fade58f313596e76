"""Kafka API 25, AddOffsetsToTxn, v0-v4 (KIP-98, KIP-588): adds a group to a transaction, which begins with it
if it is the first."""

from typing import Final

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
from kio.schema.errors import ErrorCode

from agent.error_codes import transaction_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TRANSACTIONAL_ID, may
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id, producer_of
from agent.kafka.uses import UsesSequencer
from sequencer.commits.transactions import TransactionRefusal
from sequencer.groups.groups import InvalidId, refuse_impossible_id
from sequencer.security.acl import Operation

_FIRST_WITH_FENCED: Final = 2


async def handle(
    request: AddOffsetsToTxnRequest, context: RequestContext[UsesSequencer]
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=await _add(request, context))


async def _add(request: AddOffsetsToTxnRequest, context: RequestContext[UsesSequencer]) -> ErrorCode:
    if not may(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id, context):
        return ErrorCode.transactional_id_authorization_failed
    if not may(Operation.READ, GROUP, request.group_id, context):
        return ErrorCode.group_authorization_failed
    if not can_be_transactional_id(request.transactional_id):
        return ErrorCode.invalid_request
    try:
        refuse_impossible_id(request.group_id)
        added = await context.parts.sequencer.transactions.add(
            producer_of(request), group_ids=[request.group_id]
        )
    except InvalidId:
        return ErrorCode.invalid_group_id
    except AWAY:
        return ErrorCode.coordinator_not_available
    if isinstance(added, TransactionRefusal):
        return transaction_code(added, knows_fenced=context.api_version >= _FIRST_WITH_FENCED)
    return ErrorCode.none
