"""Kafka API 46, ListPartitionReassignments, v0 (KIP-455): always empty, because no partition ever moves
between agents.
"""

from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext


async def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext[object]
) -> ListPartitionReassignmentsResponse:
    del request, context
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )
