"""Kafka API 32, DescribeConfigs, v1-v4 (KIP-226 sources, KIP-569 types and documentation).

Topics have configs; an agent as a broker resource has none that could be changed through Kafka, and answers with an
empty list.
"""

from collections.abc import Collection
from typing import Final

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.context import RequestContext
from sequencer.topic_config import KNOWN_CONFIGS, ConfigDefinition
from sequencer.topics import Topic

TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
TOPIC_CONFIG: Final = i8(1)
DEFAULT_CONFIG: Final = i8(5)
_TYPES: Final = {"boolean": i8(1), "string": i8(2), "int": i8(3), "long": i8(5), "list": i8(7)}


async def handle(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    documented = getattr(request, "include_documentation", False)
    results = [
        await _describe(resource, request.include_synonyms, documented, context) for resource in request.resources
    ]
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


async def _describe(
    resource: DescribeConfigsResource, synonyms: bool, documented: bool, context: RequestContext
) -> DescribeConfigsResult:
    if resource.resource_type == _BROKER_RESOURCE:
        return _result(resource, ErrorCode.none, None)
    if resource.resource_type != TOPIC_RESOURCE:
        message = f"resource type {resource.resource_type} has no configs here"
        return _result(resource, ErrorCode.invalid_request, message)
    name = resource.resource_name
    try:
        topic = (await context.parts.topics.by_name([name])).get(name)
    except ADMINISTRATION_ERRORS as error:
        return _result(resource, administration_code(error), str(error))
    if topic is None:
        return _result(resource, ErrorCode.unknown_topic_or_partition, f"There is no topic '{name}'.")
    configs = tuple(
        _config(definition, topic, synonyms, documented) for definition in _asked(resource.configuration_keys)
    )
    return _result(resource, ErrorCode.none, None, configs)


def _asked(keys: Collection[str] | None) -> list[ConfigDefinition]:
    return [definition for definition in KNOWN_CONFIGS.values() if not keys or definition.name in keys]


def _config(
    definition: ConfigDefinition, topic: Topic, synonyms: bool, documented: bool
) -> DescribeConfigsResourceResult:
    name = definition.name
    steps = [DescribeConfigsSynonym(name=name, value=definition.default, source=DEFAULT_CONFIG)]
    if name in topic.config:
        steps.insert(0, DescribeConfigsSynonym(name=name, value=topic.config[name], source=TOPIC_CONFIG))
    return DescribeConfigsResourceResult(
        name=name,
        value=steps[0].value,
        read_only=False,
        config_source=steps[0].source,
        is_sensitive=False,
        synonyms=tuple(steps) if synonyms else (),
        config_type=_TYPES[definition.kind],
        documentation=definition.documentation if documented else None,
    )


def _result(
    resource: DescribeConfigsResource,
    code: ErrorCode,
    message: str | None,
    configs: tuple[DescribeConfigsResourceResult, ...] = (),
) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


API = Api(key=32, name="DescribeConfigs", versions=range(1, 5), handle=handle)
