"""Kafka API 33, AlterConfigs, v0-v2 (KIP-133), for topics and groups: sets the named configs and resets all
others to their defaults.

Deprecated in Kafka, because it overwrites what others set. IncrementalAlterConfigs does not. Refused:
everything that IncrementalAlterConfigs refuses.
"""

from collections.abc import Mapping, Sequence

from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
from kio.schema.alter_configs.v2.response import AlterConfigsResponse

from agent.kafka.api import NO_THROTTLE
from agent.kafka.apis.incremental_alter_configs import UsesConfigs, alter_all
from agent.kafka.configs.config_changes import SET, ConfigChange, ConfigRules, Operation, replaced
from agent.kafka.context import RequestContext


async def handle(request: AlterConfigsRequest, context: RequestContext[UsesConfigs]) -> AlterConfigsResponse:
    responses = await alter_all(request, context, _operations, _replacement)
    # These responses have the same fields.
    return AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)  # type: ignore[arg-type]


def _operations(resource: AlterConfigsResource) -> list[Operation]:
    return [Operation(name=config.name, kind=SET, value=config.value) for config in resource.configs]


def _replacement(
    current: Mapping[str, str], operations: Sequence[Operation], rules: ConfigRules
) -> ConfigChange:
    del current  # every config that is set is replaced
    return replaced(
        {operation.name: operation.value for operation in operations if operation.value is not None}, rules
    )
