"""Kafka API 74, ListConfigResources, v0-v1 (KIP-1142; until v0 ListClientMetricsResources, KIP-1000).

Topics and brokers have configs and are listed by name, and so are groups for which some were set. Loggers and
client metrics have no configs, so their lists are empty. Refused: types that Kafka does not know
(UNSUPPORTED_VERSION).
"""

from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import ConfigResource, ListConfigResourcesResponse
from kio.static.primitive import i8

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import may_on_cluster
from agent.kafka.configs.config_entries import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, endpoints_of
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.security.acl import Operation


class _Uses(UsesRouting, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_TYPES: Final = (
    TOPIC_RESOURCE,
    BROKER_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
)
_FIRST_VERSION_WITH_TYPES: Final = 1


async def handle(
    request: ListConfigResourcesRequest, context: RequestContext[_Uses]
) -> ListConfigResourcesResponse:
    if not may_on_cluster(Operation.DESCRIBE_CONFIGS, context):
        return _response(ErrorCode.cluster_authorization_failed)
    asked: tuple[int, ...] = (CLIENT_METRICS_RESOURCE,)
    if context.api_version >= _FIRST_VERSION_WITH_TYPES:
        asked = tuple(request.resource_types) or _TYPES
    if not set(asked) <= set(_TYPES):
        return _response(ErrorCode.unsupported_version)
    found: list[tuple[int, str]] = []
    try:
        if TOPIC_RESOURCE in asked:
            found += [(TOPIC_RESOURCE, topic.name) for topic in await context.parts.topics.all()]
        if GROUP_RESOURCE in asked:
            group_ids = await context.parts.sequencer.group_configs.list(context.prefix)
            found += [(GROUP_RESOURCE, group_id) for group_id in group_ids]
    except ADMINISTRATION_ERRORS as error:
        return _response(administration_code(error))
    found = [one for one in found if context.connection.rights.reaches(one[1])]
    if BROKER_RESOURCE in asked:
        found += [(BROKER_RESOURCE, str(endpoint.node_id)) for endpoint in endpoints_of(context)]
    return _response(ErrorCode.none, found)


def _response(code: ErrorCode, found: list[tuple[int, str]] | None = None) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        config_resources=tuple(
            ConfigResource(resource_type=i8(kind), resource_name=name) for kind, name in found or ()
        ),
    )
