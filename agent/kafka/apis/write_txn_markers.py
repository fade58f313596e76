"""Kafka API 27, WriteTxnMarkers, v1-v2 (KIP-98; KIP-664: an administrator aborts a hanging transaction).

An abort ends the producer's whole open transaction and fences the producer, because partitions of one
transaction never end apart. Without an open transaction there is nothing to do. A transaction that has lost
its transactional id hangs: no time-out ends it, but an abort does. Refused: a commit, because only the
producer knows if its transaction is complete (INVALID_REQUEST).
"""

from typing import Protocol

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v1.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from agent.kafka.authorization import CLUSTER, is_silently_allowed, may_on_cluster
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY
from agent.kafka.uses import UsesReads, UsesSequencer
from sequencer.commits.transactions import EndCause, Ended
from sequencer.security.acl import CLUSTER_NAME, Operation
from storage.identifiers import ProducerId


class _Uses(UsesSequencer, UsesReads, Protocol):
    """The parts that this API uses."""


async def handle(request: WriteTxnMarkersRequest, context: RequestContext[_Uses]) -> WriteTxnMarkersResponse:
    is_allowed = is_silently_allowed(Operation.ALTER, CLUSTER, CLUSTER_NAME, context) or may_on_cluster(
        Operation.CLUSTER_ACTION, context
    )
    results = []
    for marker in request.markers:
        if not is_allowed:
            results.append(_result(marker, ErrorCode.cluster_authorization_failed))
            continue
        try:
            code = await _end(marker, context)
        except AWAY:
            code = ErrorCode.request_timed_out
        results.append(_result(marker, code))
    return WriteTxnMarkersResponse(markers=tuple(results))


async def _end(marker: WritableTxnMarker, context: RequestContext[_Uses]) -> ErrorCode:
    if marker.transaction_result:
        return ErrorCode.invalid_request
    transactions = context.parts.sequencer.transactions
    producer_id = ProducerId(marker.producer_id)
    producer = await transactions.of_producer(producer_id)
    if context.tenant is not None and (
        producer is None or not context.tenant.owns(producer.transactional_id)
    ):
        return ErrorCode.none  # as if there were no such producer: a tenant cannot see those of others
    if producer is None:
        producer = await transactions.adopt(producer_id, marker.producer_epoch)
    if producer is None:
        return ErrorCode.none
    if marker.producer_epoch < producer.producer_epoch:
        return ErrorCode.invalid_producer_epoch
    ended = await transactions.end(producer, is_commit=False, cause=EndCause.FENCE)
    if isinstance(ended, Ended):
        context.parts.reads.committed(ended.markers)
    return ErrorCode.none


def _result(marker: WritableTxnMarker, code: ErrorCode) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                    for index in topic.partition_indexes
                ),
            )
            for topic in marker.topics
        ),
    )
