"""Kafka API 44, IncrementalAlterConfigs, v0-v1 (KIP-339), for topics.

Set and delete for every config, append and subtract for lists. Refused: unknown names and values (INVALID_CONFIG, with
the known ones), a resource or a name given twice, a value left out (INVALID_REQUEST); every change of a broker, whose
configs are what an agent is started with; the other types of resource.
"""

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource, IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.administration import named_twice, topics_of
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.apis.describe_configs import broker_configs
from agent.kafka.config_changes import Operation, changed, check_form, refuse_broker_change
from agent.kafka.config_entries import BROKER_RESOURCE
from agent.kafka.context import RequestContext
from agent.kafka.routing import controller_of
from sequencer.topics import Topic, UnknownTopic


async def handle(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:  # fmt: skip
    twice = named_twice((resource.resource_type, resource.resource_name) for resource in request.resources)
    try:
        topics = await topics_of(((one.resource_type, one.resource_name) for one in request.resources), context)
    except ADMINISTRATION_ERRORS as error:
        failed = [_response(resource, administration_code(error), str(error)) for resource in request.resources]
        return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(failed))
    responses = []
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in twice:
            responses.append(_response(resource, ErrorCode.invalid_request, "Each resource must appear at most once."))
        else:
            topic = topics.get(resource.resource_name)
            responses.append(await _alter(resource, topic, request.validate_only, context))
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(responses))


async def _alter(
    resource: AlterConfigsResource, topic: Topic | None, validate_only: bool, context: RequestContext
) -> AlterConfigsResourceResponse:
    operations = [
        Operation(name=config.name, kind=config.config_operation, value=config.value) for config in resource.configs
    ]
    try:
        check_form(resource.resource_type, operations)
        if resource.resource_type == BROKER_RESOURCE:
            known = broker_configs(resource.resource_name or str(controller_of(context)), context)
            refuse_broker_change(operations, [entry.name for entry in known])
        else:
            if topic is None:
                raise UnknownTopic(f"There is no topic '{resource.resource_name[:300]}'.")
            change = changed(topic.config, operations)
            if not validate_only:
                await context.parts.topics.alter_config(topic.name, change.set, change.remove)
    except ADMINISTRATION_ERRORS as error:
        return _response(resource, administration_code(error), str(error))
    return _response(resource, ErrorCode.none, None)


def _response(resource: AlterConfigsResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


API = Api(key=44, name="IncrementalAlterConfigs", versions=range(2), handle=handle)
