"""Topic configs: which names are known, what they may say, and what a topic's settings come to (pure).

Promises that an accepted value is one the log honours: what Tidelog does not do (compaction by key, broker-side
recompression) is refused with a message that says so, never accepted and ignored. Sources: Kafka's TopicConfig and its
validators.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024
"""Above the largest segment no batch fits; Kafka itself would allow 2 GiB."""


class InvalidConfig(Exception):
    """The name is unknown or the value not acceptable; the message says what would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    name: str
    kind: Literal["int", "long", "list", "string", "boolean"]
    default: str
    documentation: str
    check: Callable[[str], None]


def _whole_number(name: str, minimum: int, maximum: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = int(value)
        except ValueError:
            raise InvalidConfig(f"Invalid value {value} for configuration {name}: Not a number") from None
        if not minimum <= number <= maximum:
            raise InvalidConfig(
                f"Invalid value {value} for configuration {name}: Value must be between {minimum} and {maximum}"
            )

    return check


def _one_of(name: str, allowed: tuple[str, ...], hint: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise InvalidConfig(
                f"Invalid value {value} for configuration {name}: must be {' or '.join(allowed)}. {hint}"
            )

    return check


_LONGEST = 2**63 - 1

KNOWN_CONFIGS: Mapping[str, ConfigDefinition] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            ConfigDefinition(
                name="retention.ms",
                kind="long",
                default=str(7 * 24 * 60 * 60 * 1000),
                documentation="How long records are kept, by their own timestamps; -1 for ever.",
                check=_whole_number("retention.ms", -1, _LONGEST),
            ),
            ConfigDefinition(
                name="retention.bytes",
                kind="long",
                default="-1",
                documentation="How many bytes of a partition are kept; -1 without limit.",
                check=_whole_number("retention.bytes", -1, _LONGEST),
            ),
            ConfigDefinition(
                name="max.message.bytes",
                kind="int",
                default=str(1024 * 1024 + 12),
                documentation="The largest record batch accepted, compressed as the client sent it.",
                check=_whole_number("max.message.bytes", 0, LARGEST_MESSAGE_BYTES),
            ),
            ConfigDefinition(
                name="message.timestamp.type",
                kind="string",
                default="CreateTime",
                documentation="Whether a record carries its producer's time or that of the agent that took it.",
                check=_one_of("message.timestamp.type", ("CreateTime", "LogAppendTime"), ""),
            ),
            ConfigDefinition(
                name="cleanup.policy",
                kind="list",
                default="delete",
                documentation="Old records are deleted. Compaction by key is not available.",
                check=_one_of("cleanup.policy", ("delete",), "Tidelog does not compact a log by key (yet)."),
            ),
            ConfigDefinition(
                name="compression.type",
                kind="string",
                default="producer",
                documentation="Batches are kept compressed as the producer sent them.",
                check=_one_of(
                    "compression.type",
                    ("producer",),
                    "Tidelog never recompresses: choose the compression in the producer.",
                ),
            ),
        )
    }
)


def validate_config(name: str, value: str) -> None:
    """Raises InvalidConfig unless a topic may set `name` to `value`."""
    definition = KNOWN_CONFIGS.get(name)
    if definition is None:
        raise InvalidConfig(f"Unknown topic config name: {name}. Known: {', '.join(sorted(KNOWN_CONFIGS))}")
    definition.check(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings, defaults applied. Negative retention means without limit."""

    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    cleanup_policy: Literal["delete"]
    compression_type: Literal["producer"]

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "TopicConfig":
        """The typed view of what a topic has set (`Topic.config`), all of it validated when it was set."""

        def value(name: str) -> str:
            return config.get(name, KNOWN_CONFIGS[name].default)

        return cls(
            retention_ms=int(value("retention.ms")),
            retention_bytes=int(value("retention.bytes")),
            max_message_bytes=int(value("max.message.bytes")),
            message_timestamp_type="LogAppendTime"
            if value("message.timestamp.type") == "LogAppendTime"
            else "CreateTime",
            cleanup_policy="delete",
            compression_type="producer",
        )
