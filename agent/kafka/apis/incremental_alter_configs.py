"""Kafka API 44, IncrementalAlterConfigs, v0-v1 (KIP-339), for topics.

Refused: append and subtract (no config is a list of several values), and every resource but topics.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource, IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.apis.describe_configs import TOPIC_RESOURCE
from agent.kafka.context import RequestContext
from sequencer.topic_config import InvalidConfig, validate_config
from sequencer.topics import UnknownTopic

_SET: Final = 0
_DELETE: Final = 1


async def handle(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:  # fmt: skip
    responses = [await _alter(resource, request.validate_only, context) for resource in request.resources]
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(responses))


async def _alter(
    resource: AlterConfigsResource, validate_only: bool, context: RequestContext
) -> AlterConfigsResourceResponse:
    if resource.resource_type != TOPIC_RESOURCE:
        return _response(resource, ErrorCode.invalid_request, "only the configs of topics can be altered")
    topics = context.parts.topics
    name = resource.resource_name
    try:
        changed, removed = _changes(resource)
        if not validate_only:
            await topics.alter_config(name, changed, removed)
        elif name not in await topics.by_name([name]):
            raise UnknownTopic(f"There is no topic '{name}'.")
    except ADMINISTRATION_ERRORS as error:
        return _response(resource, administration_code(error), str(error))
    return _response(resource, ErrorCode.none, None)


def _changes(resource: AlterConfigsResource) -> tuple[dict[str, str], list[str]]:
    """What to set and what to remove. Raises InvalidConfig."""
    changed: dict[str, str] = {}
    removed = []
    for config in resource.configs:
        if config.config_operation == _SET and config.value is not None:
            validate_config(config.name, config.value)
            changed[config.name] = config.value
        elif config.config_operation == _DELETE:
            removed.append(config.name)
        else:
            raise InvalidConfig(f"{config.name}: a config is set to a value or deleted, nothing else")
    return changed, removed


def _response(resource: AlterConfigsResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


API = Api(key=44, name="IncrementalAlterConfigs", versions=range(2), handle=handle)
