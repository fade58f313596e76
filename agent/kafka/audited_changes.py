"""What a request changes, for the audit trail (docs/audit.md): each resource with what was asked for and what
came of it. Pure.

`CHANGES` has every API that changes more than records, group membership and transactions of the client
itself. Passwords, salts and keys are not among what is returned, nor are values of configs that Tidelog does
not know: a client may send a secret under any name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, Final

from kio.schema.errors import ErrorCode

from agent.groups.group_configs import GROUP_CONFIGS
from agent.kafka.apis.describe_user_scram_credentials import MECHANISM_NUMBERS
from agent.kafka.configs.config_entries import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from agent.security.audit.events import NO_ERROR, UNKNOWN, Resource, bounded
from sequencer.security.acl import Operation, PatternType, Permission, ResourceType
from sequencer.topics.topic_config import KNOWN_CONFIGS

ChangesOf = Callable[[Any, Any], list[Resource]]
"""Takes a request and its response, both with the cluster's names. The response is None if the request ended
without one.
"""

HIDDEN: Final = "(hidden)"
OFFSET_COMMIT: Final = 8
_SECRET: Final = re.compile(r"password|secret|token|credential|jaas|private", re.IGNORECASE)
_RESOURCES: Final = {
    TOPIC_RESOURCE: "TOPIC",
    BROKER_RESOURCE: "BROKER",
    BROKER_LOGGER_RESOURCE: "BROKER_LOGGER",
    CLIENT_METRICS_RESOURCE: "CLIENT_METRICS",
    GROUP_RESOURCE: "GROUP",
}
_OPERATIONS: Final = {0: "set", 1: "delete", 2: "append", 3: "subtract"}
_MECHANISMS: Final = {number: mechanism.value for mechanism, number in MECHANISM_NUMBERS.items()}


def shown_config(name: str, value: str | None) -> str | None:
    """Returns the value, unless it may be a secret."""
    known = name in KNOWN_CONFIGS or name in GROUP_CONFIGS
    return value if value is None or (known and not _SECRET.search(name)) else HIDDEN


def _code(found: Any) -> str:
    """Returns Kafka's name of a code."""
    try:
        return ErrorCode(found).name.upper() if found else NO_ERROR
    except ValueError:
        return str(found)


def _name(kind: Any, code: int) -> str:
    """Returns the name of a code of an ACL."""
    try:
        return str(kind(code).name)
    except ValueError:
        return str(code)


def _codes(response: Any, entries: str, key: Callable[[Any], Any]) -> Mapping[Any, str]:
    """Returns the outcomes of a response's entries by what `key` takes from each."""
    found: dict[Any, str] = {}
    for entry in () if response is None else getattr(response, entries):
        _note(found, key(entry), _code(entry.error_code))
    return found


def _note(codes: dict[Any, str], key: Any, code: str) -> None:
    """What a request names twice was done if it was done once: a later refusal hides no change."""
    if codes.get(key) != NO_ERROR:
        codes[key] = code


def _in_order(response: Any, entries: str) -> Iterator[str]:
    """Returns the outcomes of a response's entries, which are in the order of the request's."""
    found = () if response is None else getattr(response, entries)
    return chain((_code(one.error_code) for one in found), repeat(UNKNOWN))


def _create_topics(request: Any, response: Any) -> list[Resource]:
    codes = _codes(response, "topics", lambda one: one.name)
    return [
        Resource(
            type="TOPIC",
            name=topic.name,
            outcome=codes.get(topic.name, UNKNOWN),
            change={
                "partitions": str(len(topic.assignments) or topic.num_partitions),
                **{one.name: shown_config(one.name, one.value) for one in topic.configs},
            },
        )
        for topic in request.topics
    ]


def _delete_topics(request: Any, response: Any) -> list[Resource]:
    if response is not None:
        return [
            Resource(type="TOPIC", name=_topic_name(one), outcome=_code(one.error_code))
            for one in response.responses
        ]
    named = getattr(request, "topics", ()) or ()
    names = [*(_topic_name(one) for one in named), *(getattr(request, "topic_names", ()) or ())]
    return [Resource(type="TOPIC", name=name, outcome=UNKNOWN) for name in names]


def _topic_name(one: Any) -> str:
    return one.name if one.name is not None else str(one.topic_id)


def _delete_records(request: Any, response: Any) -> list[Resource]:
    return _of_partitions(request, response, "PARTITION", lambda one: {"before_offset": str(one.offset)})


def _of_partitions(
    request: Any,
    response: Any,
    kind: str,
    change_of: Callable[[Any], Mapping[str, str | None]],
    group: str = "",
) -> list[Resource]:
    codes: dict[tuple[str, int], str] = {}
    for topic in () if response is None else response.topics:
        for partition in topic.partitions:
            _note(codes, (_topic_name(topic), partition.partition_index), _code(partition.error_code))
    whole = NO_ERROR if response is None else _code(getattr(response, "error_code", 0))
    found = []
    for topic in request.topics:
        for one in topic.partitions:
            key = (_topic_name(topic), one.partition_index)
            outcome = whole if whole != NO_ERROR else codes.get(key, UNKNOWN)
            name = f"{group}{key[0]}-{key[1]}"
            found.append(Resource(type=kind, name=name, outcome=outcome, change=change_of(one)))
    return found


def _write_txn_markers(request: Any, response: Any) -> list[Resource]:
    codes: dict[int, str] = {}
    for marker in () if response is None else response.markers:
        for partition in (one for topic in marker.topics for one in topic.partitions):
            _note(codes, marker.producer_id, _code(partition.error_code))
    return [
        Resource(
            type="PRODUCER_ID",
            name=str(marker.producer_id),
            outcome=UNKNOWN if response is None else codes.get(marker.producer_id, NO_ERROR),
            change={
                "transaction": "commit" if marker.transaction_result else "abort",
                "producer_epoch": str(marker.producer_epoch),
                "topics": ",".join(topic.name for topic in marker.topics),
            },
        )
        for marker in request.markers
    ]


def _create_acls(request: Any, response: Any) -> list[Resource]:
    return [
        _of_acl(one.resource_type, one.resource_name, outcome, _acl(one, one.resource_pattern_type))
        for one, outcome in zip(request.creations, _in_order(response, "results"), strict=False)
    ]


def _of_acl(resource_type: int, name: str, outcome: str, change: Mapping[str, str | None]) -> Resource:
    return Resource(
        type="ACL",
        name=name,
        outcome=outcome,
        change={"resource_type": _name(ResourceType, resource_type), **change},
    )


def _acl(one: Any, pattern: int) -> dict[str, str | None]:
    return {
        "pattern": _name(PatternType, pattern),
        "principal": one.principal,
        "host": one.host,
        "operation": _name(Operation, one.operation),
        "permission": _name(Permission, one.permission_type),
    }


def _delete_acls(request: Any, response: Any) -> list[Resource]:
    """Returns the ACLs that were removed, and the filters that were refused or found none."""
    found: list[Resource] = []
    for place, asked in enumerate(request.filters):
        result = None if response is None else response.filter_results[place]
        if result is None or result.error_code or not result.matching_acls:
            filter_ = {
                "pattern": _name(PatternType, asked.pattern_type_filter),
                "principal": asked.principal_filter,
                "host": asked.host_filter,
                "operation": _name(Operation, asked.operation),
                "permission": _name(Permission, asked.permission_type),
                "removed": "0",
            }
            outcome = UNKNOWN if result is None else _code(result.error_code)
            name = asked.resource_name_filter or ""
            found.append(_of_acl(asked.resource_type_filter, name, outcome, filter_))
            continue
        found.extend(
            _of_acl(
                acl.resource_type,
                acl.resource_name,
                _code(acl.error_code),
                {**_acl(acl, acl.pattern_type), "removed": "1"},
            )
            for acl in result.matching_acls
        )
    return found


def _alter_configs(request: Any, response: Any) -> list[Resource]:
    codes = _codes(response, "responses", lambda one: (one.resource_type, one.resource_name))
    return [
        Resource(
            type=_RESOURCES.get(one.resource_type, str(one.resource_type)),
            name=one.resource_name,
            outcome=codes.get((one.resource_type, one.resource_name), UNKNOWN),
            change=dict(map(_config_change, one.configs)),
        )
        for one in request.resources
    ]


def _config_change(config: Any) -> tuple[str, str | None]:
    operation = _OPERATIONS.get(getattr(config, "config_operation", 0), "")
    if operation == "delete":
        return config.name, None
    value = shown_config(config.name, config.value)
    return config.name, value if operation in ("set", "") or value is None else f"{operation} {value}"


def _create_partitions(request: Any, response: Any) -> list[Resource]:
    codes = _codes(response, "results", lambda one: one.name)
    return [
        Resource(
            type="TOPIC",
            name=one.name,
            outcome=codes.get(one.name, UNKNOWN),
            change={"partitions": str(one.count)},
        )
        for one in request.topics
    ]


def _delete_groups(request: Any, response: Any) -> list[Resource]:
    codes = _codes(response, "results", lambda one: one.group_id)
    return [
        Resource(type="GROUP", name=name, outcome=codes.get(name, UNKNOWN)) for name in request.groups_names
    ]


def _offset_delete(request: Any, response: Any) -> list[Resource]:
    return _of_partitions(
        request, response, "GROUP_OFFSET", lambda _: {"offset": None}, f"{request.group_id}/"
    )


def _offset_commit(request: Any, response: Any) -> list[Resource]:
    """Only what no member of the group commits: see Event.OFFSETS."""
    if request.member_id or request.generation_id_or_member_epoch >= 0:
        return []
    return _of_partitions(
        request,
        response,
        "GROUP_OFFSET",
        lambda one: {"offset": str(one.committed_offset)},
        f"{request.group_id}/",
    )


def _alter_quotas(request: Any, response: Any) -> list[Resource]:
    return [
        Resource(
            type="QUOTA",
            name=",".join(map(_quota_part, one.entity)),
            outcome=outcome,
            change={op.key: None if op.remove else str(op.value) for op in one.ops},
        )
        for one, outcome in zip(request.entries, _in_order(response, "entries"), strict=False)
    ]


def _quota_part(part: Any) -> str:
    """A long name of one part leaves the others to be read."""
    name = part.entity_name
    return f"{part.entity_type}=" + ("<default>" if name is None else bounded(name))


def _alter_users(request: Any, response: Any) -> list[Resource]:
    codes = _codes(response, "results", lambda one: one.user)
    changes: Iterable[tuple[Any, Mapping[str, str | None]]] = (
        *((one, {_mechanism(one): None}) for one in request.deletions),
        *((one, {_mechanism(one): f"iterations={one.iterations}"}) for one in request.upsertions),
    )
    return [
        Resource(type="USER", name=one.name, outcome=codes.get(one.name, UNKNOWN), change=change)
        for one, change in changes
    ]


def _mechanism(one: Any) -> str:
    return _MECHANISMS.get(one.mechanism, str(one.mechanism))


CHANGES: Final[Mapping[int, ChangesOf]] = MappingProxyType(
    {
        OFFSET_COMMIT: _offset_commit,
        19: _create_topics,
        20: _delete_topics,
        21: _delete_records,
        27: _write_txn_markers,
        30: _create_acls,
        31: _delete_acls,
        33: _alter_configs,
        37: _create_partitions,
        42: _delete_groups,
        44: _alter_configs,
        47: _offset_delete,
        49: _alter_quotas,
        51: _alter_users,
    }
)
"""By API key."""


def changes_of(api_key: int, request: Any, response: Any) -> list[Resource]:
    """Returns what the request changed. Nothing, if it was only to be checked."""
    return [] if getattr(request, "validate_only", False) else CHANGES[api_key](request, response)
