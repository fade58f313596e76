"""The operations that a client may carry out on a resource, as bit fields (KIP-430). Pure.

Without an authorizer, all operations of the resource are allowed, as in Kafka. Sources: Kafka's AclOperation
(the bits) and AclEntry.supportedOperations.
"""

from enum import IntEnum
from typing import Final

from kio.static.primitive import i32


class _Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: _Operation) -> i32:
    return i32(sum(1 << operation for operation in operations))


UNKNOWN_OPERATIONS: Final = i32(-(2**31))
"""The client did not ask."""

TOPIC_OPERATIONS: Final = _bits(
    _Operation.READ,
    _Operation.WRITE,
    _Operation.CREATE,
    _Operation.DELETE,
    _Operation.ALTER,
    _Operation.DESCRIBE,
    _Operation.DESCRIBE_CONFIGS,
    _Operation.ALTER_CONFIGS,
)
GROUP_OPERATIONS: Final = _bits(
    _Operation.READ,
    _Operation.DELETE,
    _Operation.DESCRIBE,
    _Operation.DESCRIBE_CONFIGS,
    _Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = _bits(
    _Operation.CREATE,
    _Operation.ALTER,
    _Operation.DESCRIBE,
    _Operation.CLUSTER_ACTION,
    _Operation.DESCRIBE_CONFIGS,
    _Operation.ALTER_CONFIGS,
    _Operation.IDEMPOTENT_WRITE,
)


def reported_operations(operations: i32, *, asked: bool) -> i32:
    return operations if asked else UNKNOWN_OPERATIONS
