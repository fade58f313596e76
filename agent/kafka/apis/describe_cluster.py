"""Kafka API 60, DescribeCluster, v0-v2 (KIP-700, KIP-919). Controllers cannot be described: there are none."""

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i8

from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.apis.metadata import brokers
from agent.kafka.context import RequestContext
from agent.kafka.routing import controller_of

_BROKERS = i8(1)


async def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    is_brokers = endpoint_type == _BROKERS
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if is_brokers else ErrorCode.unsupported_endpoint_type,
        error_message=None if is_brokers else "this cluster has no controllers to describe",
        endpoint_type=endpoint_type,
        cluster_id=context.parts.cluster_id,
        controller_id=BrokerId(controller_of(context)),
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack, is_fenced=False
            )
            for broker in (brokers(context) if is_brokers else ())
        ),
    )


API = Api(key=60, name="DescribeCluster", versions=range(3), handle=handle)
