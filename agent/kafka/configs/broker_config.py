"""An agent's settings as a broker's configs: under Kafka's name where one exists, else as `tidelog.<setting>` (pure).

All are read-only: a setting is given to the process that starts. Promises that a secret is named but not shown.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import SecretStr

from agent.kafka.configs.config_entries import (
    DEFAULT_SOURCE,
    STATIC_BROKER_SOURCE,
    ConfigEntry,
    ConfigStep,
    broker_ordered,
)
from agent.setting_texts import described
from sequencer.topics.topic_config import KNOWN_CONFIGS
from storage.identifiers import NodeId
from storage.settings import Settings

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
    """Every config of the agent `node_id`. `listener` and `advertised` are `host:port`."""
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
        _fact("advertised.listeners", "list", f"PLAINTEXT://{advertised}", "What clients are told of this agent."),
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
