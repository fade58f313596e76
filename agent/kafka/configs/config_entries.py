"""Configs as DescribeConfigs shows them, each with the places that name its value (pure; KIP-226 sources and synonyms,
KIP-569 types).

Promises that a secret's value is never in an entry, that an entry's value is its first step's, and that entries come in
Kafka's order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kio.static.primitive import i8

from agent.groups.group_configs import GROUP_CONFIGS, GroupConfigDefinition
from agent.groups.settings import GroupSettings
from sequencer.topics.topic_config import KNOWN_CONFIGS, ConfigDefinition

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32

TOPIC_SOURCE: Final = i8(1)
STATIC_BROKER_SOURCE: Final = i8(4)
DEFAULT_SOURCE: Final = i8(5)
GROUP_SOURCE: Final = i8(8)

_TOPIC_BUCKETS: Final = 64
_BROKER_BUCKETS: Final = 512
_GROUP_BUCKETS: Final = 16

TYPES: Final = {
    "boolean": i8(1),
    "string": i8(2),
    "int": i8(3),
    "long": i8(5),
    "double": i8(6),
    "list": i8(7),
    "password": i8(9),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStep:
    """One of the places that name the value; the first that does decides."""

    name: str
    value: str | None
    source: i8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    name: str
    kind: str
    documentation: str
    steps: tuple[ConfigStep, ...]
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def value(self) -> str | None:
        return self.steps[0].value

    @property
    def source(self) -> i8:
        return self.steps[0].source


def topic_entries(config: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
    """Every config of a topic that has set `config`."""
    entries = [_topic_entry(definition, config) for definition in KNOWN_CONFIGS.values()]
    return _ordered(entries, _TOPIC_BUCKETS)


def group_entries(config: Mapping[str, str], settings: GroupSettings) -> tuple[ConfigEntry, ...]:
    """Every config of a group that has set `config`, coordinated by an agent with these settings."""
    return _ordered(
        [_group_entry(definition, config, settings) for definition in GROUP_CONFIGS.values()], _GROUP_BUCKETS
    )


def broker_ordered(entries: Iterable[ConfigEntry]) -> tuple[ConfigEntry, ...]:
    """As Kafka shows a broker's configs."""
    return _ordered(entries, _BROKER_BUCKETS)


def _ordered(entries: Iterable[ConfigEntry], buckets: int) -> tuple[ConfigEntry, ...]:
    """In the order in which Kafka's hash table of so many buckets, made for all configs of the type, gives them out.
    Configs that Kafka does not have come last.
    """
    return tuple(sorted(entries, key=lambda entry: (entry.name.startswith("tidelog."), _place(entry.name, buckets))))


@lru_cache(maxsize=1024)
def _place(name: str, buckets: int) -> tuple[int, int]:
    """Its bucket and its place there, in Scala's mutable.HashMap of strings."""
    hashed = 0
    for character in name:
        hashed = (31 * hashed + ord(character)) & 0xFFFF_FFFF
    hashed ^= hashed >> 16
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return hashed & (buckets - 1), signed


def _topic_entry(definition: ConfigDefinition, config: Mapping[str, str]) -> ConfigEntry:
    steps = [ConfigStep(name=definition.broker_name, value=definition.default, source=DEFAULT_SOURCE)]
    if definition.name in config:
        steps.insert(0, ConfigStep(name=definition.name, value=config[definition.name], source=TOPIC_SOURCE))
    return ConfigEntry(
        name=definition.name, kind=definition.kind, documentation=definition.documentation, steps=tuple(steps)
    )


def _group_entry(definition: GroupConfigDefinition, config: Mapping[str, str], settings: GroupSettings) -> ConfigEntry:
    source = STATIC_BROKER_SOURCE if definition.setting in settings.model_fields_set else DEFAULT_SOURCE
    value = str(getattr(settings, definition.setting))
    steps = [ConfigStep(name=definition.name, value=value, source=source)]
    if definition.name in config:
        steps.insert(0, ConfigStep(name=definition.name, value=config[definition.name], source=GROUP_SOURCE))
    return ConfigEntry(name=definition.name, kind="int", documentation=definition.documentation, steps=tuple(steps))
