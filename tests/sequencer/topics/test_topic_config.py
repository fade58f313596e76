"""Topic configs: what is accepted is honoured."""

import pytest

from sequencer.topics.topic_config import (
    KNOWN_CONFIGS,
    REFUSED_CONFIGS,
    InvalidConfig,
    TopicConfig,
    check_together,
    validate_config,
)


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
        ("cleanup.policy", "compact"),
        ("cleanup.policy", " compact ,delete"),
        ("cleanup.policy", ""),
        ("compression.type", "uncompressed"),
        ("compression.type", "zstd"),
        ("min.insync.replicas", "2"),
        ("unclean.leader.election.enable", "False"),
        ("segment.bytes", "52428800"),
        ("segment.ms", "600000"),
        ("flush.messages", "1"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("tidelog.value.format", "json-schema"),
        ("tidelog.key.format", "string"),
        ("tidelog.value.schema", '{"type": "object"}'),
        ("tidelog.value.schema", '"string"'),
        ("tidelog.value.schema", "CgphLnByb3Rv"),
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
        ("cleanup.policy", "Compact"),
        ("cleanup.policy", "compact,delete,squash"),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", ","),
        ("compression.type", "none"),
        ("compression.gzip.level", "9"),
        ("message.timestamp.type", "Whenever"),
        ("segment.bytes", "1"),
        ("segment.ms", "100"),
        ("retention.ms", "1_000"),
        ("max.compaction.lag.ms", "0"),
        ("message.timestamp.after.max.ms", "-1"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "true"),
        ("unclean.leader.election.enable", "maybe"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "often"),
        ("remote.storage.enable", "maybe"),
        ("remote.log.copy.disable", "true"),
        ("follower.replication.throttled.replicas", "*"),
        ("tidelog.value.format", "xml"),
        ("tidelog.key.schema", '{"type": '),
        ("tidelog.key.schema", "not base64!"),
        ("tidelog.value.schema", '"' + "x" * 32_767 + '"'),
        ("tidelog.value.schema", "[" * 20_000),
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
    assert (config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms) == (
        2**63 - 1,
        3_600_000,
    )


@pytest.mark.parametrize(
    ("value", "is_compacted", "is_deleted"),
    [
        (None, False, True),
        ("delete", False, True),
        ("compact", True, False),
        ("delete, compact", True, True),
        ("compact,delete,compact", True, True),
        ("", False, False),
    ],
)
def test_retention_applies_where_the_policy_has_delete(
    value: str | None, is_compacted: bool, is_deleted: bool
) -> None:
    """What Kafka 4.1 makes of these values (its LogConfig.compact and LogConfig.delete)."""
    limits = {"retention.ms": "5", "retention.bytes": "7"}

    config = TopicConfig.of(limits if value is None else {**limits, "cleanup.policy": value})

    assert (config.is_compacted, config.is_deleted_by_retention) == (is_compacted, is_deleted)
    assert (config.retention_ms, config.retention_bytes) == ((5, 7) if is_deleted else (-1, -1))


def test_what_compaction_by_key_goes_by_is_typed() -> None:
    config = TopicConfig.of({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.25"})

    assert config.cleanup_policy == {"compact"}
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (0, 2**63 - 1)
    assert (config.delete_retention_ms, config.min_cleanable_dirty_ratio) == (86_400_000, 0.25)


@pytest.mark.parametrize("history", ["off", "table", None])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_has_a_table_unless_that_is_off(policy: str, history: str | None) -> None:
    config = {"cleanup.policy": policy} | ({} if history is None else {"tidelog.history": history})

    check_together(config)

    assert TopicConfig.of(config).history == (history or "table")


def test_what_a_table_had_before_its_topic_was_compacted_stays_as_long_as_the_log() -> None:
    """The log may begin in the table: records below the local start are read from there."""
    limits = {"tidelog.history.retention.ms": "5", "retention.ms": "9"}

    kept = {policy: TopicConfig.of({**limits, "cleanup.policy": policy}) for policy in _POLICIES}

    assert {policy: config.history_retention_ms for policy, config in kept.items()} == {
        "delete": 5, "compact": -1, "compact,delete": 9, "": 5,
    }  # fmt: skip


_POLICIES = ("delete", "compact", "compact,delete", "")


@pytest.mark.parametrize(
    "config",
    [
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
        {"cleanup.policy": "compact", "tidelog.history": "log"},
        {"cleanup.policy": "delete , compact", "remote.storage.enable": "true"},
        {"cleanup.policy": "compact", "remote.storage.enable": "true", "tidelog.history": "off"},
    ],
)
def test_configs_that_contradict_each_other_are_refused(config: dict[str, str]) -> None:
    for name, value in config.items():
        validate_config(name, value)

    with pytest.raises(InvalidConfig):
        check_together(config)


@pytest.mark.parametrize(
    "config",
    [
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
        {"cleanup.policy": "", "tidelog.history": "log"},
        {"cleanup.policy": "delete", "remote.storage.enable": "true"},
        {"cleanup.policy": "compact", "tidelog.value.format": "json"},
        {"cleanup.policy": "compact", "tidelog.encryption": "on"},
    ],
)
def test_configs_that_fit_each_other_are_accepted(config: dict[str, str]) -> None:
    check_together(config)
