"""Access control lists as values: what one entry allows or denies, and what a filter selects.

The numbers are those of Kafka's protocol, so that stored rows need no translation. Sources: KIP-11 (entries),
KIP-290 (prefixed patterns and filters).
"""

from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Final

ANY_NAME: Final = "*"
"""A literal pattern with this name matches every resource of its type."""
ANY_HOST: Final = "*"
ANY_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One entry: allows or denies a principal an operation on the resources that a pattern matches.

    `principal` is `User:alice`, or ANY_PRINCIPAL. `host` is an IP address, or ANY_HOST.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def key(self) -> bytes:
        """Returns its identity in 32 bytes. The texts may be longer than an index takes."""
        numbers = bytes((self.resource_type, self.pattern_type, self.operation, self.permission))
        texts = (text.encode() for text in (self.name, self.principal, self.host))
        return sha256(numbers + b"".join(len(text).to_bytes(4, "big") + text for text in texts)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Selects entries. None matches anything.

    `matches_name`: selects every pattern that applies to the resource `name`, instead of those with this name
    (KIP-290's MATCH). `pattern_type` is then None.
    """

    resource_type: ResourceType | None = None
    pattern_type: PatternType | None = None
    matches_name: bool = False
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    within: str | None = ""
    """What the names of all selected entries begin with: a tenant's prefix. None: no tenant's prefix."""
