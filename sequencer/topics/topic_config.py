"""Topic configs: the known names, their possible values, and a topic's effective settings (pure).

Promise: an accepted value is one that the log honours. What Tidelog does not do (levels of codecs, for
example) is refused with a message that says so, never accepted and ignored. The table is in
`known_configs.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

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
    "check_together",
    "validate_config",
]

CleanupPolicy: TypeAlias = frozenset[Literal["delete", "compact"]]
_POLICIES: Final[tuple[Literal["delete", "compact"], ...]] = ("delete", "compact")
_MAX_LAG: Final = "max.compaction.lag.ms"
_AS_RETENTION: Final = -2


def validate_config(name: str, value: str) -> None:
    """Raises InvalidConfig unless a topic may set `name` to `value`."""
    definition = KNOWN_CONFIGS.get(name)
    if definition is not None:
        definition.check(value)
    elif name in REFUSED_CONFIGS:
        raise InvalidConfig(f"Topic config {name} is not available: {REFUSED_CONFIGS[name]}.")
    else:
        raise InvalidConfig(
            f"Unknown topic config name: {name[:300]}. Known: {', '.join(sorted(KNOWN_CONFIGS))}"
        )


def check_together(config: Mapping[str, str]) -> None:
    """Raises InvalidConfig if a topic that sets `config` would have configs that contradict each other, by
    Kafka's rules. Each alone is valid.
    """
    least_ms, most_ms = int(_value(config, "min.compaction.lag.ms")), int(_value(config, _MAX_LAG))
    if least_ms > most_ms:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({least_ms}) > {_MAX_LAG} ({most_ms})"
        )
    is_log = _value(config, "tidelog.history") == "log" or _value(config, "remote.storage.enable") == "true"
    if is_log and "compact" in _cleanup_policy(config):
        raise InvalidConfig(
            "Remote log storage only supports topics with cleanup.policy=delete: a topic that is compacted "
            "by key has neither tidelog.history=log nor remote.storage.enable=true"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings with defaults applied, as they take effect: what the cleanup policy rules out is
    off. Negative retention means no limit."""

    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    cleanup_policy: CleanupPolicy
    """Empty: all records are kept."""
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    """How long a compacted topic keeps tombstones."""
    min_cleanable_dirty_ratio: float
    compression: Compression | None
    """What batches are kept in; None: as their producers sent them."""
    history: Literal["off", "table", "log"]
    local_retention_ms: int
    local_retention_bytes: int
    """Of what is in history too, where that is the log. Negative: without limit."""
    history_freshness_ms: int
    history_retention_ms: int
    key_format: str
    """One of `VALUE_FORMATS`; empty: none."""
    key_schema: str
    value_format: str
    value_schema: str

    @property
    def is_compacted(self) -> bool:
        """True if only the last record of each key has to be kept."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        """True if old records go, by retention or by DeleteRecords."""
        return "delete" in self.cleanup_policy

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "TopicConfig":
        """The typed view of what a topic has set (`Topic.config`), which was validated when it was set."""

        def value(name: str) -> str:
            return _value(config, name)

        cleanup_policy = _cleanup_policy(config)
        is_compacted = "compact" in cleanup_policy
        history = _history(
            value("tidelog.history"), value("remote.storage.enable"), is_compacted=is_compacted
        )
        has_retention = "delete" in cleanup_policy
        retention_ms = int(value("retention.ms")) if has_retention else -1
        retention_bytes = int(value("retention.bytes")) if has_retention else -1
        return cls(
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            max_message_bytes=int(value("max.message.bytes")),
            message_timestamp_type="LogAppendTime"
            if value("message.timestamp.type") == "LogAppendTime"
            else "CreateTime",
            message_timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            message_timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            cleanup_policy=cleanup_policy,
            min_compaction_lag_ms=int(value("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(value(_MAX_LAG)),
            delete_retention_ms=int(value("delete.retention.ms")),
            min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
            compression=COMPRESSIONS[value("compression.type")],
            key_format=value("tidelog.key.format"),
            key_schema=value("tidelog.key.schema"),
            value_format=value("tidelog.value.format"),
            value_schema=value("tidelog.value.schema"),
            history_freshness_ms=int(value("tidelog.history.freshness.ms")),
            history_retention_ms=_of_history(
                int(value("tidelog.history.retention.ms")),
                retention_ms,
                # What a topic had before it was compacted may still be read from its table.
                holds_log=history == "log" or is_compacted,
            ),
            history=history,
            local_retention_ms=_local(int(value("local.retention.ms")), retention_ms),
            local_retention_bytes=_local(int(value("local.retention.bytes")), retention_bytes),
        )


def _value(config: Mapping[str, str], name: str) -> str:
    return config.get(name, KNOWN_CONFIGS[name].default).strip()


def _cleanup_policy(config: Mapping[str, str]) -> CleanupPolicy:
    named = {item.strip() for item in _value(config, "cleanup.policy").split(",")}
    return frozenset(policy for policy in _POLICIES if policy in named)


def _history(history: str, remote_storage: str, *, is_compacted: bool) -> Literal["off", "table", "log"]:
    if history == "off":
        return "off"
    is_log = history == "log" or remote_storage == "true"
    return "log" if is_log and not is_compacted else "table"


def _of_history(history: int, whole: int, *, holds_log: bool) -> int:
    if history == _AS_RETENTION:
        return whole
    is_less = history >= 0 and (whole < 0 or history < whole)
    return whole if holds_log and is_less else history


def _local(local: int, whole: int) -> int:
    """Never more than the whole, in a scale where a negative number is without limit."""
    if local == _AS_RETENTION or whole >= 0 > local:
        return whole
    return local if whole < 0 else min(local, whole)
