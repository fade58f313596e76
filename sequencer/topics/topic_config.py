"""Topic configs: the known names, their possible values, and a topic's effective settings (pure).

Promise: an accepted value is one that the log honours. What Tidelog does not do (compaction by key, for
example) is refused with a message that says so, never accepted and ignored. The table is in
`known_configs.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sequencer.topics.config_checks import InvalidConfig
from sequencer.topics.known_configs import (
    COMPRESSIONS,
    KNOWN_CONFIGS,
    LARGEST_MESSAGE_BYTES,
    REFUSED_CONFIGS,
    ConfigDefinition,
)
from storage.batches.record_batch import Compression

__all__ = [
    "KNOWN_CONFIGS",
    "LARGEST_MESSAGE_BYTES",
    "REFUSED_CONFIGS",
    "ConfigDefinition",
    "InvalidConfig",
    "TopicConfig",
    "validate_config",
]


def validate_config(name: str, value: str) -> None:
    """Raises InvalidConfig unless a topic may set `name` to `value`."""
    definition = KNOWN_CONFIGS.get(name)
    if definition is not None:
        definition.check(value)
    elif name in REFUSED_CONFIGS:
        raise InvalidConfig(f"Topic config {name} is not available: {REFUSED_CONFIGS[name]}.")
    else:
        raise InvalidConfig(f"Unknown topic config name: {name[:300]}. Known: {', '.join(sorted(KNOWN_CONFIGS))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings with defaults applied. Negative retention means no limit."""

    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    cleanup_policy: Literal["delete"]
    compression: Compression | None
    """What batches are kept in; None: as their producers sent them."""
    history: Literal["off", "table"]
    history_freshness_ms: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "TopicConfig":
        """The typed view of what a topic has set (`Topic.config`), which was validated when it was set."""

        def value(name: str) -> str:
            return config.get(name, KNOWN_CONFIGS[name].default)

        return cls(
            retention_ms=int(value("retention.ms")),
            retention_bytes=int(value("retention.bytes")),
            max_message_bytes=int(value("max.message.bytes")),
            message_timestamp_type="LogAppendTime"
            if value("message.timestamp.type").strip() == "LogAppendTime"
            else "CreateTime",
            message_timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            message_timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            cleanup_policy="delete",
            compression=COMPRESSIONS[value("compression.type").strip()],
            history_freshness_ms=int(value("tidelog.history.freshness.ms")),
            history="off" if value("tidelog.history").strip() == "off" else "table",
        )
