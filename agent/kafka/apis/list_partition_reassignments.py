"""Kafka API 46, ListPartitionReassignments, v0 (KIP-455): always empty, because no partition ever moves
between agents.
"""

from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import may_on_cluster
from agent.kafka.context import RequestContext
from sequencer.security.acl import Operation


async def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext[object]
) -> ListPartitionReassignmentsResponse:
    del request
    is_allowed = may_on_cluster(Operation.DESCRIBE, context)
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if is_allowed else ErrorCode.cluster_authorization_failed,
        error_message=None if is_allowed else "Cluster authorization failed.",
        topics=(),
    )
