"""Configs as DescribeConfigs shows them, each with the places that name its value (KIP-226 sources and
synonyms, KIP-569 types). Pure.

Promises:
- No entry has a secret's value. A secret is named.
- An entry's value is that of its first step.
- Entries come in Kafka's order.

A broker's configs are the settings of its agent, under Kafka's name where one exists, else as
`tidelog.<setting>`. They are read-only, because a process gets its settings at its start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from kio.static.primitive import i8
from pydantic import SecretStr

from agent.groups.group_configs import GROUP_CONFIGS, GroupConfigDefinition
from agent.groups.settings import GroupSettings
from sequencer.topics.topic_config import KNOWN_CONFIGS, ConfigDefinition
from storage.identifiers import NodeId
from storage.settings import Settings, described

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
    """One of the places that name the value. The first one decides."""

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
    """Returns every config of a topic that has set `config`."""
    entries = [_topic_entry(definition, config) for definition in KNOWN_CONFIGS.values()]
    return _ordered(entries, _TOPIC_BUCKETS)


def group_entries(config: Mapping[str, str], settings: GroupSettings) -> tuple[ConfigEntry, ...]:
    """Returns every config of a group that has set `config`, coordinated by an agent with these settings."""
    return _ordered(
        [_group_entry(definition, config, settings) for definition in GROUP_CONFIGS.values()], _GROUP_BUCKETS
    )


def broker_ordered(entries: Iterable[ConfigEntry]) -> tuple[ConfigEntry, ...]:
    """Returns the entries in the order in which Kafka shows a broker's configs."""
    return _ordered(entries, _BROKER_BUCKETS)


def _ordered(entries: Iterable[ConfigEntry], buckets: int) -> tuple[ConfigEntry, ...]:
    """Returns the entries in the order of Kafka's hash table, which has this many buckets and all configs of
    the type. Configs that Kafka does not have come last.
    """
    return tuple(
        sorted(entries, key=lambda entry: (entry.name.startswith("tidelog."), _place(entry.name, buckets)))
    )


@lru_cache(maxsize=1024)
def _place(name: str, buckets: int) -> tuple[int, int]:
    """Returns the bucket and the place within it, in Scala's mutable.HashMap of strings."""
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


def _group_entry(
    definition: GroupConfigDefinition, config: Mapping[str, str], settings: GroupSettings
) -> ConfigEntry:
    source = STATIC_BROKER_SOURCE if definition.setting in settings.model_fields_set else DEFAULT_SOURCE
    value = str(getattr(settings, definition.setting))
    steps = [ConfigStep(name=definition.name, value=value, source=source)]
    if definition.name in config:
        steps.insert(0, ConfigStep(name=definition.name, value=config[definition.name], source=GROUP_SOURCE))
    return ConfigEntry(
        name=definition.name, kind="int", documentation=definition.documentation, steps=tuple(steps)
    )


_IN_MS: Final = 1000

KAFKA_NAMES: Final[Mapping[str, tuple[str, int]]] = {
    # setting: (Kafka's name, factor from the setting's unit to Kafka's)
    "zone": ("broker.rack", 1),
    "max_request_bytes": ("socket.request.max.bytes", 1),
    "request_memory_bytes": ("queued.max.request.bytes", 1),
    "max_connections": ("max.connections", 1),
    "idle_timeout_s": ("connections.max.idle.ms", _IN_MS),
    "auto_create_topics": ("auto.create.topics.enable", 1),
    "default_partitions": ("num.partitions", 1),
    "describe_partitions_limit": ("max.request.partition.size.limit", 1),
    "telemetry_max_bytes": ("telemetry.max.bytes", 1),
    "drain_timeout_s": ("controlled.shutdown.timeout.ms", _IN_MS),
    "fetch_max_bytes": ("fetch.max.bytes", 1),
    "group_initial_rebalance_delay_ms": ("group.initial.rebalance.delay.ms", 1),
    "group_min_session_timeout_ms": ("group.min.session.timeout.ms", 1),
    "group_max_session_timeout_ms": ("group.max.session.timeout.ms", 1),
    "group_max_size": ("group.max.size", 1),
    "group_consumer_session_timeout_ms": ("group.consumer.session.timeout.ms", 1),
    "group_consumer_heartbeat_interval_ms": ("group.consumer.heartbeat.interval.ms", 1),
    "group_consumer_min_session_timeout_ms": ("group.consumer.min.session.timeout.ms", 1),
    "group_consumer_max_session_timeout_ms": ("group.consumer.max.session.timeout.ms", 1),
    "group_consumer_min_heartbeat_interval_ms": ("group.consumer.min.heartbeat.interval.ms", 1),
    "group_consumer_max_heartbeat_interval_ms": ("group.consumer.max.heartbeat.interval.ms", 1),
    "offset_metadata_max_bytes": ("offset.metadata.max.bytes", 1),
}


def broker_entries(
    node_id: NodeId, listener: str, advertised: str, settings: Iterable[Settings]
) -> tuple[ConfigEntry, ...]:
    """Returns every config of the agent `node_id`. `listener` and `advertised` are `host:port`."""
    entries = {entry.name: entry for part in settings for entry in _entries_of(part)}
    for definition in KNOWN_CONFIGS.values():
        entries[definition.broker_name] = ConfigEntry(
            name=definition.broker_name,
            kind=definition.kind,
            documentation=f"The default of the topic config {definition.name}. {definition.documentation}",
            steps=(ConfigStep(name=definition.broker_name, value=definition.default, source=DEFAULT_SOURCE),),
            is_read_only=True,
        )
    for entry in (
        _fact("node.id", "int", str(node_id), "Given to an agent's address when it first joins."),
        _fact("broker.id", "int", str(node_id), "The same as node.id."),
        _fact("listeners", "list", f"PLAINTEXT://{listener}", "Where this agent listens for Kafka clients."),
        _fact(
            "advertised.listeners",
            "list",
            f"PLAINTEXT://{advertised}",
            "The address of this agent that clients get.",
        ),
        _fact("process.roles", "list", "broker", "There are no controllers: any agent takes any request."),
        _fact("delete.topic.enable", "boolean", "true", "Topics can be deleted."),
        _fact("default.replication.factor", "int", "1", "Says nothing: the object store replicates."),
    ):
        entries[entry.name] = entry
    return broker_ordered(entries.values())


def _fact(name: str, kind: str, value: str, documentation: str) -> ConfigEntry:
    step = ConfigStep(name=name, value=value, source=STATIC_BROKER_SOURCE)
    return ConfigEntry(name=name, kind=kind, documentation=documentation, steps=(step,), is_read_only=True)


def _entries_of(settings: Settings) -> Iterable[ConfigEntry]:
    texts = described(type(settings))
    for field, definition in type(settings).model_fields.items():
        name, factor = KAFKA_NAMES.get(field, (f"tidelog.{field.replace('_', '.')}", 1))
        default = definition.get_default(call_default_factory=True, validated_data={})
        value = getattr(settings, field)
        is_sensitive = isinstance(value, SecretStr) or isinstance(default, SecretStr)
        steps = [ConfigStep(name=name, value=_text(default, factor), source=DEFAULT_SOURCE)]
        if field in settings.model_fields_set:
            steps.insert(0, ConfigStep(name=name, value=_text(value, factor), source=STATIC_BROKER_SOURCE))
        yield ConfigEntry(
            name=name,
            kind="password" if is_sensitive else _kind(default, factor),
            documentation=texts.get(field, ""),
            steps=tuple(steps),
            is_read_only=True,
            is_sensitive=is_sensitive,
        )


def _text(value: Any, factor: int) -> str | None:
    if value is None or isinstance(value, SecretStr):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if factor != 1:
        return str(int(value * factor))
    return str(value)


def _kind(default: Any, factor: int) -> str:
    if isinstance(default, bool):
        return "boolean"
    if isinstance(default, int) or factor != 1:
        return "long"
    return "double" if isinstance(default, float) else "string"
