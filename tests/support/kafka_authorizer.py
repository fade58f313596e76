"""Kafka's own StandardAuthorizer, asked through a small Java program, and random ACLs for it."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from sequencer.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tests.support import apache_kafka
from tests.support.java import Java

_SOURCE = Path(__file__).parents[1] / "agent" / "security" / "acls" / "StandardAuthorizerDecisions.java"
_Value = TypeVar("_Value")

_ANY: Final = 1
_MATCH: Final = 2

HOSTS = ("10.0.0.1", "10.0.0.2", "127.0.0.1")
PRINCIPALS = ("User:alice", "User:bob", "User:a:b", "Group:alice", "User:ANONYMOUS")
RESOURCE_TYPES = tuple(ResourceType)
_NAMES = (
    "a",
    "ab",
    "abc",
    "abcd",
    "b",
    "ba",
    "hard",
    "hardcode",
    "h",
    "*",
    "é",
    "abé",
    "kafka-cluster",
    "aé",
)


def authorizer_program(java: Java) -> Java:
    """The program with Kafka's broker on its class path."""
    broker = Java(
        folder=java.folder,
        classpath=apache_kafka.jars(),
        tool_classes=java.tool_classes,
        client_classes=java.client_classes,
    )
    return broker.compiled(_SOURCE)


def answers(program: Java, commands: Sequence[str]) -> Sequence[str]:
    """What the program answers to its commands (see its documentation)."""
    said = program.run("StandardAuthorizerDecisions", (), stdin="\n".join(commands) + "\n", timeout_s=120)
    return said.splitlines()


def random_acl(chosen: random.Random) -> Acl:
    """ACLs of a few names, so that many overlap."""
    return Acl(
        resource_type=chosen.choice(RESOURCE_TYPES[:3]),
        pattern_type=chosen.choice(tuple(PatternType)),
        name=chosen.choice(_NAMES),
        principal=chosen.choice((*PRINCIPALS, "User:*", "Group:*")),
        host=chosen.choice((*HOSTS, "*")),
        operation=chosen.choice(tuple(Operation)),
        permission=Permission.DENY if chosen.random() < 0.3 else Permission.ALLOW,
    )


def random_name(chosen: random.Random) -> str:
    return chosen.choice((*_NAMES, "abcde", "c", "hardcoded", "abéx"))


def added(number: int, acl: Acl) -> str:
    return _line("add", number, *fields(acl))


def fields(acl: Acl) -> tuple[object, ...]:
    return (
        acl.resource_type.value,
        acl.pattern_type.value,
        acl.name,
        acl.principal,
        acl.host,
        acl.operation.value,
        acl.permission.value,
    )


def checked(
    principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str | None
) -> str:
    """`name` None: on any resource of the type."""
    kind, _, user = principal.partition(":")
    asked = (kind, user, host, operation.value, resource_type.value)
    return _line("some", *asked) if name is None else _line("check", *asked, name)


def listed(asked: AclFilter) -> str:
    pattern = _MATCH if asked.matches_name else asked.pattern_type or _ANY
    return _line(
        "list",
        int(asked.resource_type or _ANY),
        int(pattern),
        asked.name or "",
        asked.principal or "",
        asked.host or "",
        int(asked.operation or _ANY),
        int(asked.permission or _ANY),
    )


def random_filter(chosen: random.Random, acls: Sequence[Acl]) -> AclFilter:
    """A filter that some of these match, mostly."""
    model = chosen.choice(acls)

    def maybe(value: _Value) -> _Value | None:
        return value if chosen.random() < 0.3 else None

    matches_name = chosen.random() < 0.4
    return AclFilter(
        resource_type=maybe(model.resource_type),
        pattern_type=None if matches_name else maybe(model.pattern_type),
        matches_name=matches_name,
        name=random_name(chosen) if chosen.random() < 0.5 else maybe(model.name),
        principal=maybe(model.principal),
        host=maybe(model.host),
        operation=maybe(model.operation),
        permission=maybe(model.permission),
    )


def started(super_users: Iterable[str], *, allow_everyone: bool) -> str:
    return _line("new", ";".join(super_users), str(allow_everyone).lower())


def removed(number: int) -> str:
    return _line("remove", number)


def _line(*values: object) -> str:
    return "\t".join(map(str, values))
