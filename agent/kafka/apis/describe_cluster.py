"""Kafka API 60, DescribeCluster, v0-v2 (KIP-700, KIP-919). Refused: controllers, because there are none."""

from typing import Protocol

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i8

from agent.kafka.api import NO_THROTTLE
from agent.kafka.apis.metadata import brokers
from agent.kafka.configs.authorized_operations import cluster_operations
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, controller_of
from agent.kafka.uses import UsesClusterId


class _Uses(UsesRouting, UsesClusterId, Protocol):
    """The parts that this API uses."""


_BROKERS = i8(1)
_CONTROLLERS = i8(2)


async def handle(request: DescribeClusterRequest, context: RequestContext[_Uses]) -> DescribeClusterResponse:
    endpoint_type = request.endpoint_type
    is_brokers = endpoint_type == _BROKERS
    code, message = _refusal(endpoint_type)
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        endpoint_type=_BROKERS,
        cluster_id=context.parts.cluster_id,
        controller_id=BrokerId(controller_of(context)),
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=broker.node_id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_fenced=False,
            )
            for broker in (brokers(context) if is_brokers else ())
        ),
        cluster_authorized_operations=cluster_operations(
            context, asked=request.include_cluster_authorized_operations
        ),
    )


def _refusal(endpoint_type: i8) -> tuple[ErrorCode, str | None]:
    if endpoint_type == _BROKERS:
        return ErrorCode.none, None
    if endpoint_type == _CONTROLLERS:
        return (
            ErrorCode.mismatched_endpoint_type,
            "This cluster has no controllers to describe: ask for its brokers.",
        )
    return ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
