"""Configs as DescribeConfigs shows them, each with the places that name its value (pure; KIP-226 sources and synonyms,
KIP-569 types).

Promises that a secret's value is never in an entry, and that an entry's value is its first step's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kio.static.primitive import i8

from sequencer.topic_config import KNOWN_CONFIGS, ConfigDefinition

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32

TOPIC_SOURCE: Final = i8(1)
STATIC_BROKER_SOURCE: Final = i8(4)
DEFAULT_SOURCE: Final = i8(5)

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
    return tuple(_topic_entry(definition, config) for definition in KNOWN_CONFIGS.values())


def _topic_entry(definition: ConfigDefinition, config: Mapping[str, str]) -> ConfigEntry:
    steps = [ConfigStep(name=definition.broker_name, value=definition.default, source=DEFAULT_SOURCE)]
    if definition.name in config:
        steps.insert(0, ConfigStep(name=definition.name, value=config[definition.name], source=TOPIC_SOURCE))
    return ConfigEntry(
        name=definition.name, kind=definition.kind, documentation=definition.documentation, steps=tuple(steps)
    )
