"""Configs of single groups: their names, their bounds, and the settings that a group runs by (KIP-848). Pure.

A group's config overrides the agent's setting. Promise: a group honours every accepted value. Configs of
share and streams groups are refused, because there are no such groups. Source: Kafka's GroupConfig.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agent.groups.settings import GroupSettings
from sequencer.topics.config_checks import InvalidConfig, whole_number

_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigDefinition:
    """`setting` names the agent's setting that it overrides. `least` and `most` name the settings that bound
    it.
    """

    name: str
    setting: str
    least: str
    most: str
    documentation: str

    def check(self, value: str, settings: GroupSettings) -> None:
        """Raises InvalidConfig."""
        whole_number(self.name, 1, _INT)(value)
        for bound, is_within, relation in (
            (self.least, int(value) >= getattr(settings, self.least), "greater"),
            (self.most, int(value) <= getattr(settings, self.most), "less"),
        ):
            if not is_within:
                raise InvalidConfig(
                    f"{self.name} must be {relation} than or equal to TIDELOG_{bound.upper()}, which is "
                    f"{getattr(settings, bound)}"
                )


GROUP_CONFIGS: Final[Mapping[str, GroupConfigDefinition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            GroupConfigDefinition(
                name=_HEARTBEAT,
                setting="group_consumer_heartbeat_interval_ms",
                least="group_consumer_min_heartbeat_interval_ms",
                most="group_consumer_max_heartbeat_interval_ms",
                documentation="How often members of the new protocol should send heartbeats.",
            ),
            GroupConfigDefinition(
                name=_SESSION,
                setting="group_consumer_session_timeout_ms",
                least="group_consumer_min_session_timeout_ms",
                most="group_consumer_max_session_timeout_ms",
                documentation="A member of the new protocol is removed after this silence.",
            ),
        )
    }
)

_NOT_THERE: Final = {
    "share.": "there are no share groups (KIP-932)",
    "streams.": "there are no streams groups (KIP-1071)",
}


def validate_group_config(name: str, value: str, settings: GroupSettings) -> None:
    """Raises InvalidConfig unless a group may set `name` to `value`."""
    definition = GROUP_CONFIGS.get(name)
    if definition is not None:
        definition.check(value, settings)
        return
    for prefix, why in _NOT_THERE.items():
        if name.startswith(prefix):
            raise InvalidConfig(f"Group config {name[:300]} is not available: {why}.")
    raise InvalidConfig(f"Unknown group config name: {name[:300]}. Known: {', '.join(sorted(GROUP_CONFIGS))}")


def settings_of_group(config: Mapping[str, str], settings: GroupSettings) -> GroupSettings:
    """Returns the settings of a group that has set `config`. A value outside this agent's bounds, which
    another agent allowed, is brought within them.
    """
    values = {
        definition.setting: min(
            max(int(config[name]), getattr(settings, definition.least)), getattr(settings, definition.most)
        )
        for name, definition in GROUP_CONFIGS.items()
        if name in config
    }
    return settings.model_copy(update=values) if values else settings


def check_fit(config: Mapping[str, str], settings: GroupSettings) -> None:
    """Raises InvalidConfig unless the group's configs would fit together."""
    runs_by = settings_of_group(config, settings)
    if runs_by.group_consumer_session_timeout_ms <= runs_by.group_consumer_heartbeat_interval_ms:
        raise InvalidConfig(f"{_SESSION} must be greater than {_HEARTBEAT}")
