"""Configs of single groups: their names, their bounds, and the settings that a group runs by (KIP-848,
KIP-1071). Pure.

A group's config overrides the agent's setting. Promise: a group honours every accepted value. Configs of
share groups are refused, because there are no such groups. Source: Kafka's GroupConfig.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agent.groups.settings import GroupSettings
from sequencer.topics.config_checks import InvalidConfig, whole_number

_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
_STREAMS_SESSION: Final = "streams.session.timeout.ms"
_STREAMS_HEARTBEAT: Final = "streams.heartbeat.interval.ms"
_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigDefinition:
    """`setting` names the agent's setting that it overrides. `least` and `most` name the settings that bound
    it. Without `least`, 0 is the least.
    """

    name: str
    setting: str
    least: str | None = None
    most: str
    documentation: str

    def bounds(self, settings: GroupSettings) -> tuple[int, int]:
        return 0 if self.least is None else getattr(settings, self.least), getattr(settings, self.most)

    def check(self, value: str, settings: GroupSettings) -> None:
        """Raises InvalidConfig."""
        least, most = self.bounds(settings)
        whole_number(self.name, 0 if self.least is None else 1, _INT)(value)
        if self.least is not None and int(value) < least:
            raise self._refusal("greater", self.least, least)
        if int(value) > most:
            raise self._refusal("less", self.most, most)

    def _refusal(self, relation: str, setting: str, bound: int) -> InvalidConfig:
        return InvalidConfig(
            f"{self.name} must be {relation} than or equal to TIDELOG_{setting.upper()}, which is {bound}"
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
            GroupConfigDefinition(
                name=_STREAMS_HEARTBEAT,
                setting="group_streams_heartbeat_interval_ms",
                least="group_streams_min_heartbeat_interval_ms",
                most="group_streams_max_heartbeat_interval_ms",
                documentation="How often members of a streams group should send heartbeats.",
            ),
            GroupConfigDefinition(
                name=_STREAMS_SESSION,
                setting="group_streams_session_timeout_ms",
                least="group_streams_min_session_timeout_ms",
                most="group_streams_max_session_timeout_ms",
                documentation="A member of a streams group is removed after this silence.",
            ),
            GroupConfigDefinition(
                name="streams.num.standby.replicas",
                setting="group_streams_num_standby_replicas",
                most="group_streams_max_standby_replicas",
                documentation="How many standby copies of its state a streams group keeps for each task.",
            ),
            GroupConfigDefinition(
                name="streams.initial.rebalance.delay.ms",
                setting="group_streams_initial_rebalance_delay_ms",
                most="group_streams_max_initial_rebalance_delay_ms",
                documentation="How long an empty streams group waits for members before it assigns tasks.",
            ),
        )
    }
)

_NOT_THERE: Final = {"share.": "there are no share groups (KIP-932)"}


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
    values: dict[str, int] = {}
    for name, definition in GROUP_CONFIGS.items():
        if name in config:
            least, most = definition.bounds(settings)
            values[definition.setting] = min(max(int(config[name]), least), most)
    return settings.model_copy(update=values) if values else settings


def check_fit(config: Mapping[str, str], settings: GroupSettings) -> None:
    """Raises InvalidConfig unless the group's configs would fit together."""
    runs_by = settings_of_group(config, settings)
    if runs_by.group_consumer_session_timeout_ms <= runs_by.group_consumer_heartbeat_interval_ms:
        raise InvalidConfig(f"{_SESSION} must be greater than {_HEARTBEAT}")
    if runs_by.group_streams_session_timeout_ms <= runs_by.group_streams_heartbeat_interval_ms:
        raise InvalidConfig(f"{_STREAMS_SESSION} must be greater than {_STREAMS_HEARTBEAT}")
