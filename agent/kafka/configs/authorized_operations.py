"""The operations that a client may carry out on a resource, as bit fields (KIP-430).

Without an authorizer, all operations of the resource are allowed, as in Kafka. Source: Kafka's
AclEntry.supportedOperations.
"""

from collections.abc import Mapping
from typing import Any, Final

from kio.static.primitive import i32

from agent.kafka.authorization import CLUSTER, GROUP, TOPIC, is_silently_allowed
from agent.kafka.context import RequestContext
from sequencer.security.acl import CLUSTER_NAME, Operation, ResourceType


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


UNKNOWN_OPERATIONS: Final = i32(-(2**31))
"""The client did not ask."""
_NONE: Final = i32(0)
_SUPPORTED: Final[Mapping[ResourceType, int]] = {
    TOPIC: _bits(
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    GROUP: _bits(
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    CLUSTER: _bits(
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def authorized_operations(
    resource_type: ResourceType, name: str, context: RequestContext[Any], *, asked: bool = True
) -> i32:
    """Returns the bits of the operations that the client may carry out on this topic or group."""
    if not asked:
        return UNKNOWN_OPERATIONS
    return i32(_SUPPORTED[resource_type] & context.connection.rights.operations(resource_type, name))


def cluster_operations(context: RequestContext[Any], *, asked: bool) -> i32:
    """As `authorized_operations`. None, if the client may not describe the cluster."""
    if asked and not is_silently_allowed(Operation.DESCRIBE, CLUSTER, CLUSTER_NAME, context):
        return _NONE
    return authorized_operations(CLUSTER, CLUSTER_NAME, context, asked=asked)
