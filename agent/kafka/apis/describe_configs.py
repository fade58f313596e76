"""Kafka API 32, DescribeConfigs, v1-v4 (KIP-226 sources and synonyms, KIP-569 types and documentation).

Resources: topics, groups (KIP-848), and this agent as a broker. Its settings are read-only and have Kafka's
names where they exist. A broker without a name, Kafka's cluster-wide default, has no configs. A resource
named twice is described once. Configs come in Kafka's order. Refused, per resource: the id of another agent,
and the other resource types (loggers, client metrics).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.configs.administration import check_config_access, check_group_name, configs_of
from agent.kafka.configs.config_changes import unknown_resource
from agent.kafka.configs.config_entries import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    TYPES,
    ConfigEntry,
    broker_entries,
    group_entries,
    topic_entries,
)
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, controller_of, endpoints_of
from agent.kafka.uses import UsesGroupSettings, UsesReads, UsesSequencer, UsesTopics
from sequencer.security.acl import Operation
from sequencer.topics.topics import validate_topic_name


class UsesBrokerConfigs(UsesRouting, UsesGroupSettings, UsesReads, Protocol):
    """The parts whose settings are shown as those of a broker."""


class _Uses(UsesBrokerConfigs, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_Configs: TypeAlias = Mapping[tuple[int, str], Mapping[str, str]]
"""The configs that are set, by the resource's type and name."""


async def handle(request: DescribeConfigsRequest, context: RequestContext[_Uses]) -> DescribeConfigsResponse:
    asked = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    configs: _Configs | Exception
    try:
        configs = await configs_of(asked, context)
    except ADMINISTRATION_ERRORS as error:
        configs = error
    results = [
        _describe(resource, configs, request.include_synonyms, request.include_documentation, context)
        for resource in asked.values()
    ]
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _describe(
    resource: DescribeConfigsResource,
    configs: _Configs | Exception,
    synonyms: bool,
    documented: bool,
    context: RequestContext[_Uses],
) -> DescribeConfigsResult:
    try:
        entries = _entries(resource.resource_type, resource.resource_name, configs, context)
    except ADMINISTRATION_ERRORS as error:
        return _result(resource, administration_code(error), str(error))
    shown = tuple(
        _config(entry, synonyms, documented) for entry in _asked(entries, resource.configuration_keys)
    )
    return _result(resource, ErrorCode.none, None, shown)


def _entries(
    resource_type: int, name: str, configs: _Configs | Exception, context: RequestContext[_Uses]
) -> Sequence[ConfigEntry]:
    """Raises one of ADMINISTRATION_ERRORS."""
    check_config_access(Operation.DESCRIBE_CONFIGS, resource_type, name, context)
    if resource_type == BROKER_RESOURCE:
        return broker_configs(name, context)
    if resource_type not in (TOPIC_RESOURCE, GROUP_RESOURCE):
        raise unknown_resource(resource_type)
    if isinstance(configs, Exception):
        raise configs
    config = configs.get((resource_type, name))
    if resource_type == GROUP_RESOURCE:
        check_group_name(name)
        return group_entries(config or {}, context.parts.group_settings)
    validate_topic_name(name)
    if config is None:
        raise AdministrationRefused(ErrorCode.unknown_topic_or_partition, f"There is no topic '{name}'.")
    return topic_entries(config)


def broker_configs(name: str, context: RequestContext[UsesBrokerConfigs]) -> Sequence[ConfigEntry]:
    """Returns the configs of this agent, or none for the cluster-wide default, whose name is empty. Raises
    AdministrationRefused if this is the name of another agent.
    """
    if not name:
        return ()
    node_id = controller_of(context)
    if not name.lstrip("-").isdecimal() or not name.isascii():
        raise AdministrationRefused(
            ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name[:100]}"
        )
    if int(name) != node_id:
        raise AdministrationRefused(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {node_id} or empty string, but received {name}",
        )
    settings = context.settings
    own = next((endpoint for endpoint in endpoints_of(context) if endpoint.node_id == node_id), None)
    advertised = "" if own is None else f"{own.host}:{own.port}"
    listener = f"{settings.kafka_host}:{settings.kafka_port or (0 if own is None else own.port)}"
    return broker_entries(
        node_id, listener, advertised, (settings, context.parts.reads.settings, context.parts.group_settings)
    )


def _asked(entries: Sequence[ConfigEntry], keys: Collection[str] | None) -> list[ConfigEntry]:
    return [entry for entry in entries if not keys or entry.name in keys]


def _config(entry: ConfigEntry, synonyms: bool, documented: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(
            DescribeConfigsSynonym(name=step.name, value=step.value, source=step.source)
            for step in entry.steps
        )
        if synonyms
        else (),
        config_type=TYPES[entry.kind],
        documentation=entry.documentation if documented else None,
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
