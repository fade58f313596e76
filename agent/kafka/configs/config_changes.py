"""Decides what a request to alter configs changes: which configs are set and which return to their defaults
(KIP-133 whole replacement, KIP-339 single operations). Pure.

Raises AdministrationRefused or InvalidConfig with Kafka's codes and a message that says what is accepted.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused
from agent.groups.group_configs import GROUP_CONFIGS, check_fit, validate_group_config
from agent.groups.settings import GroupSettings
from agent.kafka.configs.administration import named_twice
from agent.kafka.configs.config_entries import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from sequencer.topics.topic_config import KNOWN_CONFIGS, InvalidConfig, check_together, validate_config

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
_NAMES: Final = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The requested change of one config."""

    name: str
    kind: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """The configs to set, and those that return to their defaults."""

    set: Mapping[str, str]
    remove: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRules:
    """The rules for the configs of one type of resource."""

    names: Collection[str]
    lists: Mapping[str, str]
    """The configs that are lists, with their defaults."""
    check: Callable[[str, str], None]
    """Raises InvalidConfig for a name and its value."""
    check_together: Callable[[Mapping[str, str]], None]
    """Raises InvalidConfig if the configs of a resource would not fit together."""


TOPIC_RULES: Final = ConfigRules(
    names=KNOWN_CONFIGS,
    lists={
        name: definition.default for name, definition in KNOWN_CONFIGS.items() if definition.kind == "list"
    },
    check=validate_config,
    check_together=check_together,
)


def group_rules(settings: GroupSettings) -> ConfigRules:
    return ConfigRules(
        names=GROUP_CONFIGS,
        lists={},
        check=lambda name, value: validate_group_config(name, value, settings),
        check_together=lambda config: check_fit(config, settings),
    )


def check_form(resource_type: int, operations: Sequence[Operation]) -> None:
    """Refuses what is wrong whatever the resource has set. Raises AdministrationRefused."""
    if resource_type not in (TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE):
        raise unknown_resource(resource_type)
    if named_twice(operation.name for operation in operations):
        raise AdministrationRefused(ErrorCode.invalid_request, "Error due to duplicate config keys")
    nulls = [
        operation.name for operation in operations if operation.value is None and operation.kind != DELETE
    ]
    if nulls:
        raise AdministrationRefused(
            ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}"
        )


def unknown_resource(resource_type: int) -> AdministrationRefused:
    return AdministrationRefused(
        ErrorCode.invalid_request,
        f"Resource type {resource_type} has no configs here: topics ({TOPIC_RESOURCE}), brokers "
        f"({BROKER_RESOURCE}) and groups ({GROUP_RESOURCE}) have",
    )


def replaced(values: Mapping[str, str], rules: ConfigRules = TOPIC_RULES) -> ConfigChange:
    """Sets `values`. All other configs return to their defaults. Raises InvalidConfig."""
    for name, value in values.items():
        rules.check(name, value)
    rules.check_together(values)
    return ConfigChange(set=dict(values), remove=[name for name in rules.names if name not in values])


def changed(
    current: Mapping[str, str], operations: Sequence[Operation], rules: ConfigRules = TOPIC_RULES
) -> ConfigChange:
    """Applies `operations` to a resource that has set `current`. Raises AdministrationRefused,
    InvalidConfig.
    """
    to_set: dict[str, str] = {}
    remove = []
    for operation in operations:
        if operation.kind == DELETE:
            remove.append(operation.name)
            continue
        value = operation.value or ""
        if operation.kind in _NAMES:
            value = _amended(current, operation, rules)
        elif operation.kind != SET:
            raise AdministrationRefused(
                ErrorCode.invalid_request, f"Unknown operations type {operation.kind}"
            )
        rules.check(operation.name, value)
        to_set[operation.name] = value
    kept = {name: value for name, value in current.items() if name not in remove}
    rules.check_together({**kept, **to_set})
    return ConfigChange(set=to_set, remove=remove)


def _amended(current: Mapping[str, str], operation: Operation, rules: ConfigRules) -> str:
    """Returns the list with items added or removed. A default is changed as if it had been set."""
    if operation.name in rules.names and operation.name not in rules.lists:
        raise InvalidConfig(
            f"Can't {_NAMES[operation.kind]} to key {operation.name} because its type is not LIST."
        )
    present = _items(current.get(operation.name, rules.lists.get(operation.name, "")))
    given = _items(operation.value or "")
    if operation.kind == APPEND:
        return ",".join([*present, *(item for item in given if item not in present)])
    return ",".join(item for item in present if item not in given)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def refuse_broker_change(operations: Sequence[Operation], known: Collection[str]) -> None:
    """Raises AdministrationRefused if any config would change: a broker's configs cannot change while the
    agent runs.

    Deleting one is no change, because none was ever set. Some tools delete configs as a cleanup.
    """
    operations = [operation for operation in operations if operation.kind != DELETE]
    unknown = [operation.name for operation in operations if operation.name not in known]
    if unknown:
        raise AdministrationRefused(
            ErrorCode.invalid_config,
            f"Unknown broker config name: {unknown[0][:300]}. Known: {', '.join(sorted(known))}",
        )
    if operations:
        names = ", ".join(operation.name for operation in operations)
        raise AdministrationRefused(
            ErrorCode.invalid_request,
            (
                f"Cannot update these configs dynamically: {names}. They are settings that an agent is "
                "started with."
            ),
        )
