"""An agent's settings as a broker's configs."""

from typing import Any

from agent.groups.settings import GroupSettings
from agent.kafka.configs.config_entries import (
    DEFAULT_SOURCE,
    KAFKA_NAMES,
    STATIC_BROKER_SOURCE,
    TYPES,
    ConfigEntry,
    broker_entries,
)
from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from storage.identifiers import NodeId


def entries(**given: Any) -> dict[str, ConfigEntry]:
    parts = (AgentSettings(**given), ReadPathSettings(), GroupSettings())
    found = broker_entries(NodeId(7), "0.0.0.0:9092", "agent.internal:9092", parts)
    assert len({entry.name for entry in found}) == len(found)
    return {entry.name: entry for entry in found}


def test_every_name_of_kafka_stands_for_a_setting_that_there_is() -> None:
    fields = AgentSettings.model_fields | ReadPathSettings.model_fields | GroupSettings.model_fields

    assert KAFKA_NAMES.keys() <= fields.keys()


def test_a_setting_that_was_given_has_two_steps_and_a_default_one() -> None:
    found = entries(default_partitions=6, idle_timeout_s=30.0)

    given, factor, default = (
        found["num.partitions"],
        found["connections.max.idle.ms"],
        found["max.connections"],
    )
    assert [(step.value, step.source) for step in given.steps] == [
        ("6", STATIC_BROKER_SOURCE),
        ("1", DEFAULT_SOURCE),
    ]
    assert [step.value for step in factor.steps] == ["30000", "600000"]
    assert [(step.value, step.source) for step in default.steps] == [("4096", DEFAULT_SOURCE)]


def test_no_secret_is_shown() -> None:
    secret = "postgresql://tidelog:secret@db/tidelog"

    found = entries(database_url=secret)

    assert found["tidelog.database.url"].is_sensitive
    assert not any(secret in (step.value or "") for entry in found.values() for step in entry.steps)


def test_every_config_is_read_only_documented_and_of_a_known_type() -> None:
    for entry in entries().values():
        assert entry.is_read_only
        assert entry.documentation, entry.name
        assert entry.kind in TYPES
