"""Kafka API 44, IncrementalAlterConfigs, v0-v1 (KIP-339), for topics.

Set and delete for every config, append and subtract for lists. Refused: unknown names and values (INVALID_CONFIG, with
the known ones), a resource or a name given twice, a value left out (INVALID_REQUEST); every change of a broker, whose
configs are what an agent is started with; the other types of resource.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource, IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.administration import named_twice, topics_of
from agent.kafka.api import NO_THROTTLE
from agent.kafka.apis.describe_configs import broker_configs
from agent.kafka.config_changes import ConfigChange, Operation, changed, check_form, refuse_broker_change
from agent.kafka.config_entries import BROKER_RESOURCE
from agent.kafka.context import RequestContext
from agent.kafka.routing import controller_of
from sequencer.topics import Topic, UnknownTopic


async def handle(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:  # fmt: skip
    responses = await alter_all(request, context, _operations, lambda topic, given: changed(topic.config, given))
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)


def _operations(resource: AlterConfigsResource) -> list[Operation]:
    return [
        Operation(name=config.name, kind=config.config_operation, value=config.value) for config in resource.configs
    ]


async def alter_all(
    request: Any,
    context: RequestContext,
    operations_of: Callable[[Any], Sequence[Operation]],
    change_of: Callable[[Topic, Sequence[Operation]], ConfigChange],
) -> tuple[AlterConfigsResourceResponse, ...]:
    """One answer per resource of a request of this API or of AlterConfigs, which differ in what their resources say."""
    twice = named_twice((resource.resource_type, resource.resource_name) for resource in request.resources)
    try:
        topics = await topics_of(((one.resource_type, one.resource_name) for one in request.resources), context)
    except ADMINISTRATION_ERRORS as error:
        return tuple(_response(resource, administration_code(error), str(error)) for resource in request.resources)
    responses = []
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in twice:
            responses.append(_response(resource, ErrorCode.invalid_request, "Each resource must appear at most once."))
            continue
        try:
            topic, operations = topics.get(resource.resource_name), operations_of(resource)
            change = _checked(resource, topic, operations, change_of, context)
            if topic is not None and change is not None and not request.validate_only:
                await context.parts.topics.alter_config(topic.name, change.set, change.remove)
            responses.append(_response(resource, ErrorCode.none, None))
        except ADMINISTRATION_ERRORS as error:
            responses.append(_response(resource, administration_code(error), str(error)))
    return tuple(responses)


def _checked(
    resource: Any,
    topic: Topic | None,
    operations: Sequence[Operation],
    change_of: Callable[[Topic, Sequence[Operation]], ConfigChange],
    context: RequestContext,
) -> ConfigChange | None:
    """What is to change of a topic; None for a broker, of which nothing does. Raises ADMINISTRATION_ERRORS."""
    check_form(resource.resource_type, operations)
    if resource.resource_type == BROKER_RESOURCE:
        known = broker_configs(resource.resource_name or str(controller_of(context)), context)
        refuse_broker_change(operations, [entry.name for entry in known])
        return None
    if topic is None:
        raise UnknownTopic(f"There is no topic '{resource.resource_name[:300]}'.")
    return change_of(topic, operations)


def _response(resource: Any, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
