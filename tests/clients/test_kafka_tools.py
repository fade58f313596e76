"""The command line tools that come with Apache Kafka, as an operator runs them, against agents in two
zones.
"""

import json
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried
from tests.clients.members.process import members_of, python
from tests.support.java import Java, JavaFailed

_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_CONFIGS = "kafka.admin.ConfigCommand"


def _produce(servers: str, topic: str, records: int, partitions: int = 1) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for number in range(records):
        producer.produce(topic, value=f"value {number}", partition=number % partitions)
    assert producer.flush(30) == 0


def _rows(table: str, *, key: str) -> list[list[str]]:
    """The rows that mention `key`, in words."""
    return [line.split() for line in table.splitlines() if key in line.split()]


def _a_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@tried(
    "kafka-clients",
    "admin: list and describe groups",
    "admin: delete groups",
    "admin: delete offsets of groups",
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_group_command_lists_describes_resets_and_deletes(
    protocol: str, java: Java, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic, group = new_topic(2), _a_group()
    _produce(zone_a, topic, 20, 2)
    by_a, by_b = ("--bootstrap-server", zone_a), ("--bootstrap-server", zone_b)
    given = ("--group", group, "--topics", topic, "--servers", zone_a, "--protocol", protocol)
    with members_of(python("confluent"), *given) as start:
        member = start("member", session_timeout_ms=45_000)
        member.until(lambda one: len(one.records) == 20, "all records")
        assert member.commit() == {(topic, 0): 10, (topic, 1): 10}

        assert [group] in _rows(java.run(_GROUPS, [*by_b, "--list"]), key=group)
        described = java.run(_GROUPS, [*by_b, "--describe", "--group", group])
        for partition in ("0", "1"):
            (row,) = [row for row in _rows(described, key=topic) if row[2] == partition]
            assert row[:6] == [group, topic, partition, "10", "10", "0"], "committed, end, lag"
            assert row[6] != "-", "who owns it"
        (state,) = _rows(java.run(_GROUPS, [*by_a, "--describe", "--group", group, "--state"]), key=group)
        assert "Stable" in state
        (one,) = _rows(java.run(_GROUPS, [*by_b, "--describe", "--group", group, "--members"]), key=group)
        assert one[-1] == "2", "it owns two partitions"

        reset = [*by_a, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"]
        refused = _said_by(java, _GROUPS, reset)
        assert "inactive" in refused or "Stable" in refused, "a group that lives is not reset"
        member.leave()

    _produce(zone_b, topic, 4, 2)
    done = java.run(
        _GROUPS,
        [*by_b, "--reset-offsets", "--group", group, "--topic", topic, "--shift-by", "-3", "--execute"],
    )
    assert {row[3] for row in _rows(done, key=topic)} == {"7"}
    described = java.run(_GROUPS, [*by_a, "--describe", "--group", group])
    assert {tuple(row[3:6]) for row in _rows(described, key=topic)} == {("7", "12", "5")}

    dropped = java.run(_GROUPS, [*by_b, "--delete-offsets", "--group", group, "--topic", f"{topic}:1"])
    assert "Successful" in dropped
    assert "successful" in java.run(_GROUPS, [*by_a, "--delete", "--group", group])
    assert not _rows(java.run(_GROUPS, [*by_b, "--list"]), key=group)


def _said_by(java: Java, main: str, arguments: Sequence[str]) -> str:
    """What a tool says, whether it fails or not."""
    try:
        return java.run(main, arguments)
    except JavaFailed as failed:
        return str(failed)


@tried("kafka-clients", "admin: configs")
def test_config_command_shows_and_changes_topic_configs(
    java: Java, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(1)
    entity = ("--entity-type", "topics", "--entity-name", topic)

    java.run(
        _CONFIGS, ["--bootstrap-server", zone_a, "--alter", *entity, "--add-config", "retention.ms=1234567"]
    )
    shown = java.run(_CONFIGS, ["--bootstrap-server", zone_b, "--describe", *entity])
    assert "retention.ms=1234567" in shown
    assert "DYNAMIC_TOPIC_CONFIG" in shown

    java.run(_CONFIGS, ["--bootstrap-server", zone_b, "--alter", *entity, "--delete-config", "retention.ms"])
    shown = java.run(_CONFIGS, ["--bootstrap-server", zone_a, "--describe", "--all", *entity])
    assert "retention.ms=604800000" in shown
    refused = _said_by(
        java,
        _CONFIGS,
        ["--bootstrap-server", zone_a, "--alter", *entity, "--add-config", "retention.ms=soon"],
    )
    assert "InvalidConfigurationException" in refused


def test_config_command_shows_the_settings_of_an_agent(java: Java, zone_a: str) -> None:
    shown = java.run(
        _CONFIGS,
        [
            "--bootstrap-server",
            zone_a,
            "--describe",
            "--all",
            "--entity-type",
            "brokers",
            "--entity-name",
            "1",
        ],
    )
    assert "group.initial.rebalance.delay.ms=300" in shown


@tried("kafka-clients", "admin: delete records")
def test_delete_records_command_moves_the_log_start(
    java: Java, new_topic: NewTopic, zone_a: str, zone_b: str, session_directory: Path
) -> None:
    topic = new_topic(1)
    _produce(zone_a, topic, 10)
    request = session_directory / f"{topic}.json"
    request.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]})
    )

    done = java.tool("DeleteRecordsCommand", "--bootstrap-server", zone_a, "--offset-json-file", str(request))
    assert "low_watermark: 4" in done
    offsets = java.tool("GetOffsetShell", "--bootstrap-server", zone_b, "--topic", topic, "--time", "-2")
    assert offsets.split() == [f"{topic}:0:4"]
    offsets = java.tool("GetOffsetShell", "--bootstrap-server", zone_a, "--topic", topic, "--time", "-1")
    assert offsets.split() == [f"{topic}:0:10"]


@tried("kafka-clients", "consume: as a group", "offsets: commit and fetch")
def test_verifiable_producer_and_consumer_agree(
    java: Java, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic, records = new_topic(1), 500
    given = ("--topic", topic, "--max-messages", str(records))
    with ThreadPoolExecutor(2) as pool:
        producing = pool.submit(
            java.tool, "VerifiableProducer", "--bootstrap-server", zone_a, *given, "--acks", "-1"
        )
        consuming = pool.submit(
            java.tool,
            "VerifiableConsumer",
            *("--bootstrap-server", zone_b, "--group-id", _a_group(), "--reset-policy", "earliest", *given),
        )
        told = [json.loads(line) for line in producing.result(150).splitlines() if line.startswith("{")]
        heard = [json.loads(line) for line in consuming.result(150).splitlines() if line.startswith("{")]

    (summary,) = [event for event in told if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (records, records)
    assert sum(event["count"] for event in heard if event["name"] == "records_consumed") == records
    committed = [event for event in heard if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in committed)
    assert committed[-1]["offsets"] == [{"topic": topic, "partition": 0, "offset": records}]


@tried("kafka-clients", "consume: as a group")
def test_consumer_performance_reads_all_records(
    java: Java, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(3)
    _produce(zone_a, topic, 3_000, 3)

    shown = java.tool(
        "ConsumerPerformance", "--bootstrap-server", zone_b, "--topic", topic, "--messages", "3000"
    )

    (figures,) = [line.split(", ") for line in shown.splitlines() if line[:4].isdigit()]
    assert int(figures[4]) == 3_000


@tried("kafka-clients", "admin: describe cluster")
def test_broker_api_versions_command_reads_every_agent(java: Java, zone_a: str, zone_b: str) -> None:
    shown = java.tool("BrokerApiVersionsCommand", "--bootstrap-server", zone_a)

    assert f"{zone_a} (id:" in shown
    assert f"{zone_b} (id:" in shown
    assert "ConsumerGroupHeartbeat(68): 0 to 1 [usable: 1]" in shown
    assert "JoinGroup(11): 0 to 9 [usable: 9]" in shown


def test_config_command_sets_describes_and_removes_quotas(java: Java, zone_a: str, zone_b: str) -> None:
    client = uuid.uuid4().hex[:8]
    entity = ("--entity-type", "clients", "--entity-name", client)
    by_a, by_b = ("--bootstrap-server", zone_a), ("--bootstrap-server", zone_b)

    java.run(_CONFIGS, [*by_a, "--alter", *entity, "--add-config", "producer_byte_rate=1000"])
    assert "producer_byte_rate=1000.0" in java.run(_CONFIGS, [*by_b, "--describe", *entity])
    with pytest.raises(JavaFailed):
        java.run(_CONFIGS, [*by_a, "--alter", *entity, "--add-config", "producer_byte_rate=-1"])
    java.run(_CONFIGS, [*by_a, "--alter", *entity, "--delete-config", "producer_byte_rate"])
    assert "producer_byte_rate" not in java.run(_CONFIGS, [*by_b, "--describe", *entity])
