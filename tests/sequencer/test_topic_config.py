"""Topic configs: what is accepted is honoured."""

import pytest

from sequencer.topics.topic_config import KNOWN_CONFIGS, REFUSED_CONFIGS, InvalidConfig, TopicConfig, validate_config


@pytest.mark.parametrize("name", KNOWN_CONFIGS)
def test_every_default_is_valid(name: str) -> None:
    validate_config(name, KNOWN_CONFIGS[name].default)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.bytes", "123456789012"),
        ("max.message.bytes", "0"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.before.max.ms", "3600000"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
        ("cleanup.policy", " delete , delete"),
        ("compression.type", "uncompressed"),
        ("compression.type", "zstd"),
        ("min.insync.replicas", "2"),
        ("unclean.leader.election.enable", "False"),
        ("segment.bytes", "52428800"),
        ("segment.ms", "600000"),
        ("flush.messages", "1"),
        ("min.cleanable.dirty.ratio", "0.1"),
    ],
)
def test_what_the_log_honours_is_accepted(name: str, value: str) -> None:
    validate_config(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.bytes", str(2**63)),
        ("max.message.bytes", "1e6"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "none"),
        ("compression.gzip.level", "9"),
        ("message.timestamp.type", "Whenever"),
        ("segment.bytes", "1"),
        ("segment.ms", "100"),
        ("retention.ms", "1_000"),
        ("cleanup.policy", ""),
        ("message.timestamp.after.max.ms", "-1"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "true"),
        ("unclean.leader.election.enable", "maybe"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "often"),
        ("remote.storage.enable", "true"),
        ("follower.replication.throttled.replicas", "*"),
        ("no.such.config", "1"),
    ],
)
def test_what_it_does_not_honour_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        validate_config(name, value)


def test_a_name_is_either_known_or_refused_with_a_reason() -> None:
    assert not KNOWN_CONFIGS.keys() & REFUSED_CONFIGS.keys()
    assert all(definition.documentation for definition in KNOWN_CONFIGS.values())


def test_the_typed_view_fills_in_defaults() -> None:
    config = TopicConfig.of({"retention.ms": "5", "message.timestamp.type": "LogAppendTime"})

    assert (config.retention_ms, config.retention_bytes, config.max_message_bytes) == (5, -1, 1048588)
    assert config.message_timestamp_type == "LogAppendTime"
    assert (config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms) == (2**63 - 1, 3_600_000)
