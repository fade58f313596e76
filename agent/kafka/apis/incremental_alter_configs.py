"""Kafka API 44, IncrementalAlterConfigs, v0-v1 (KIP-339), for topics and for groups of the new protocol
(KIP-848).

Set and delete for every config, append and subtract for lists. A group need not exist to have configs. Its
coordinator uses them within TIDELOG_GROUP_LEASE_RENEW_S. Refused: unknown names and values (INVALID_CONFIG,
with the known ones); a resource or a name given twice, a missing value (INVALID_REQUEST); every change of a
broker, because its configs are the settings that an agent starts with; the other resource types.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kio.static.primitive import i8

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.groups.group_configs import GROUP_CONFIGS
from agent.kafka.api import NO_THROTTLE
from agent.kafka.apis.describe_configs import UsesBrokerConfigs, broker_configs
from agent.kafka.configs.administration import check_config_access, check_group_name, configs_of, named_twice
from agent.kafka.configs.config_changes import (
    TOPIC_RULES,
    ConfigChange,
    ConfigRules,
    Operation,
    changed,
    check_form,
    group_rules,
    refuse_broker_change,
)
from agent.kafka.configs.config_entries import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import controller_of
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.security.acl import Operation as AclOperation
from sequencer.topics.topics import UnknownTopic


class UsesConfigs(UsesBrokerConfigs, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API and AlterConfigs use."""


class NamedResource(Protocol):
    @property
    def resource_type(self) -> i8: ...

    @property
    def resource_name(self) -> str: ...


Resource = TypeVar("Resource", bound=NamedResource)
ResourceOut = TypeVar("ResourceOut", bound=NamedResource, covariant=True)


class AlteringRequest(Protocol[ResourceOut]):
    """A request of this API or of AlterConfigs."""

    @property
    def resources(self) -> Sequence[ResourceOut]: ...

    @property
    def validate_only(self) -> bool: ...


ChangeOf: TypeAlias = Callable[[Mapping[str, str], Sequence[Operation], ConfigRules], ConfigChange]
"""Takes what a resource has set, the requested change, and the rules. Returns the change to make."""


async def handle(
    request: IncrementalAlterConfigsRequest, context: RequestContext[UsesConfigs]
) -> IncrementalAlterConfigsResponse:  # fmt: skip
    responses = await alter_all(request, context, _operations, changed)
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)


def _operations(resource: AlterConfigsResource) -> list[Operation]:
    return [
        Operation(name=config.name, kind=config.config_operation, value=config.value)
        for config in resource.configs
    ]


async def alter_all(
    request: AlteringRequest[Resource],
    context: RequestContext[UsesConfigs],
    operations_of: Callable[[Resource], Sequence[Operation]],
    change_of: ChangeOf,
) -> tuple[AlterConfigsResourceResponse, ...]:
    """Returns one answer per resource. This API and AlterConfigs differ only in what their resources say."""
    twice = named_twice((resource.resource_type, resource.resource_name) for resource in request.resources)
    try:
        configs = await configs_of(
            [(one.resource_type, one.resource_name) for one in request.resources], context
        )
    except ADMINISTRATION_ERRORS as error:
        return tuple(
            _response(resource, administration_code(error), str(error)) for resource in request.resources
        )
    responses = []
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in twice:
            responses.append(
                _response(resource, ErrorCode.invalid_request, "Each resource must appear at most once.")
            )
            continue
        try:
            current = configs.get((resource.resource_type, resource.resource_name))
            change = _checked(resource, current, operations_of(resource), change_of, context)
            if change is not None and request.validate_only:
                await _check_limits(resource, change, context)
            elif change is not None:
                await _apply(resource, change, context)
            responses.append(_response(resource, ErrorCode.none, None))
        except ADMINISTRATION_ERRORS as error:
            responses.append(_response(resource, administration_code(error), str(error)))
    return tuple(responses)


def _checked(
    resource: NamedResource,
    current: Mapping[str, str] | None,
    operations: Sequence[Operation],
    change_of: ChangeOf,
    context: RequestContext[UsesConfigs],
) -> ConfigChange | None:
    """Returns what to change of a topic or a group; None for a broker, which has no changes.

    Raises one of ADMINISTRATION_ERRORS.
    """
    check_form(resource.resource_type, operations)
    check_config_access(AclOperation.ALTER_CONFIGS, resource.resource_type, resource.resource_name, context)
    if resource.resource_type == BROKER_RESOURCE:
        known = broker_configs(resource.resource_name or str(controller_of(context)), context)
        refuse_broker_change(operations, [entry.name for entry in known])
        return None
    if resource.resource_type == GROUP_RESOURCE:
        check_group_name(resource.resource_name)
        return change_of(current or {}, operations, group_rules(context.parts.group_settings))
    if current is None:
        raise UnknownTopic(f"There is no topic '{resource.resource_name[:300]}'.")
    return change_of(current, operations, TOPIC_RULES)


async def _check_limits(
    resource: NamedResource, change: ConfigChange, context: RequestContext[UsesConfigs]
) -> None:
    """Raises one of ADMINISTRATION_ERRORS if a limit of the tenant refuses the change."""
    if resource.resource_type == GROUP_RESOURCE and change.set:
        await context.parts.sequencer.group_configs.check_limit(resource.resource_name)
    if resource.resource_type == TOPIC_RESOURCE:
        topics = context.parts.topics
        found = await topics.by_name([resource.resource_name])
        if resource.resource_name in found:
            await topics.check_alteration(found[resource.resource_name], change.set, change.remove)


async def _apply(resource: NamedResource, change: ConfigChange, context: RequestContext[UsesConfigs]) -> None:
    """Raises one of ADMINISTRATION_ERRORS."""
    if resource.resource_type == GROUP_RESOURCE:
        known = [name for name in change.remove if name in GROUP_CONFIGS]  # no other config was ever set
        await context.parts.sequencer.group_configs.alter(resource.resource_name, change.set, known)
    else:
        await context.parts.topics.alter_config(resource.resource_name, change.set, change.remove)


def _response(resource: NamedResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
