"""Kafka API 48, DescribeClientQuotas, v0-v1 (KIP-546): there are no quotas, so none is found. Kafka's
`kafka-configs --describe --entity-type users` asks for them before it asks for credentials.
"""

from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.schema.errors import ErrorCode

from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import may_on_cluster
from agent.kafka.context import RequestContext
from sequencer.security.acl import Operation


async def handle(
    request: DescribeClientQuotasRequest, context: RequestContext[object]
) -> DescribeClientQuotasResponse:
    del request
    if not may_on_cluster(Operation.DESCRIBE_CONFIGS, context):
        return DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.cluster_authorization_failed,
            error_message="Cluster authorization failed.",
            entries=None,
        )
    return DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, entries=()
    )
