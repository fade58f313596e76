"""MirrorMaker 2 moves topics and groups from Apache Kafka to Tidelog, as `docs/migrate-from-kafka.md` says.

One agent is killed while records are mirrored. A group then goes on in Tidelog where it stopped in Kafka: it
may read a record twice, but misses none.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.clients.adapters import DEADLINE_S, Confluent, Read, Sent
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix, ToolchainAbsent
from tests.support.apache_kafka import apache_kafka
from tests.support.kafka_connect import connect_jars, mirror_maker
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

_NAME = "mirror-maker"
_TOPIC, _GROUP = "orders", "billing"
_PARTITIONS = 3
_PATIENCE_S = 240.0
_RETENTION_MS = str(30 * 24 * 3_600_000)
_MIRROR = {
    "clusters": "kafka, tidelog",
    "kafka->tidelog.enabled": "true",
    "kafka->tidelog.topics": _TOPIC,
    "kafka->tidelog.groups": _GROUP,
    "tidelog->kafka.enabled": "false",
    # Topics keep their names.
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "sync.group.offsets.enabled": "true",
    "sync.topic.acls.enabled": "false",
    # MirrorMaker's default, and what Tidelog refuses: docs/kafka-api.md, "Topic configs".
    "config.properties.exclude": (
        "follower.replication.throttled.replicas, leader.replication.throttled.replicas, "
        "message.timestamp.difference.max.ms, message.timestamp.type, unclean.leader.election.enable, "
        "min.insync.replicas, compression.(gzip|lz4|zstd).level, file.delete.delay.ms, "
        "index.interval.bytes, segment.index.bytes, remote.log.copy.disable, remote.log.delete.on.disable"
    ),
    "kafka.consumer.isolation.level": "read_committed",
    # Offsets of groups are exact, and not up to a hundred records behind.
    "offset.lag.max": "0",
    "replication.factor": "-1",
    # There is one broker. The default is 3.
    **{
        f"{topic}.replication.factor": "1"
        for topic in (
            "offset-syncs.topic",
            "checkpoints.topic",
            "heartbeats.topic",
            "config.storage",
            "offset.storage",
            "status.storage",
        )
    },
    # So that the test need not wait for the next minute.
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "refresh.topics.interval.seconds": "5",
    "refresh.groups.interval.seconds": "5",
    "scheduled.rebalance.max.delay.ms": "1000",
}


@tried(_NAME, "records", "configs of topics", "offsets of groups", "an agent dies")
def test_topics_and_groups_move_from_kafka_while_an_agent_is_killed(
    new_stack: Callable[..., Stack], tmp_path: Path, matrix: Matrix
) -> None:
    if shutil.which("java") is None:
        raise ToolchainAbsent(_NAME, "java")
    connect = connect_jars()
    matrix.note_version(_NAME, connect.version)
    stack = new_stack()
    tidelog = stack.addresses.bootstrap

    with apache_kafka(tmp_path / "kafka", {}) as kafka:
        settings = {
            **_MIRROR,
            "kafka.bootstrap.servers": kafka.bootstrap,
            "tidelog.bootstrap.servers": tidelog,
        }
        _create(kafka.bootstrap)
        _produce(kafka.bootstrap, range(300))
        with mirror_maker(connect, tmp_path / "mirror", settings):
            wait_until(partial(_has, tidelog, 300), _PATIENCE_S)
            for victim, written in ((0, 600), (1, 900)):
                stack.kill(victim)
                _produce(kafka.bootstrap, range(written - 300, written))
                wait_until(partial(_has, tidelog, written), _PATIENCE_S)
                stack.restart(victim)
            assert _config(tidelog)["retention.ms"] == _RETENTION_MS

            first = _consume_as_group(kafka.bootstrap, 900)
            wait_until(lambda: _committed(tidelog) == _committed(kafka.bootstrap), _PATIENCE_S)
            _produce(kafka.bootstrap, range(900, 1_200))
            second = _consume_as_group(tidelog, 300)
            wait_until(partial(_has, tidelog, 1_200), _PATIENCE_S)
        theirs = Confluent().consume(kafka.bootstrap, [_TOPIC])

    assert _without_repeats(Confluent().consume(tidelog, [_TOPIC])) == _without_repeats(theirs)
    _produce(tidelog, range(1_200, 1_500))
    third = _consume_as_group(tidelog, 300)
    assert first | second | third == {f"order {number}" for number in range(1_500)}


def _create(servers: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    config = {"retention.ms": _RETENTION_MS, "index.interval.bytes": "8192", "segment.bytes": str(64 << 20)}
    topic = confluent_kafka.admin.NewTopic(_TOPIC, _PARTITIONS, 1, config=config)
    admin.create_topics([topic], request_timeout=30)[_TOPIC].result(DEADLINE_S)


def _produce(servers: str, numbers: Iterable[int]) -> None:
    """One record per number, in turn over the partitions, with all that a record may have."""
    for partition in range(_PARTITIONS):
        records = [
            Sent(
                key=b"customer %d" % (number % 7),
                value=b"order %d" % number,
                headers=(("number", b"%d" % number), ("empty", None)),
                timestamp_ms=int(time.time() * 1000) - number,
            )
            for number in numbers
            if number % _PARTITIONS == partition
        ]
        Confluent().produce(servers, _TOPIC, partition, records, "lz4")


def _consume_as_group(servers: str, count: int) -> set[str]:
    """`count` different values, from where the group stopped. Commits what it read."""
    settings = {"bootstrap.servers": servers, "group.id": _GROUP, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    values: set[str] = set()
    until = time.monotonic() + DEADLINE_S
    try:
        consumer.subscribe([_TOPIC])
        while len(values) < count:
            messages = consumer.consume(count, timeout=1)
            values |= {(message.value() or b"").decode() for message in messages}
            assert time.monotonic() < until, f"{len(values)} of {count} records came"
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def _has(servers: str, count: int) -> bool:
    """True if the topic has at least so many records."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    try:
        topic = consumer.list_topics(timeout=DEADLINE_S).topics.get(_TOPIC)
        if topic is None or len(topic.partitions) < _PARTITIONS:
            return False
        places = [confluent_kafka.TopicPartition(_TOPIC, number) for number in range(_PARTITIONS)]
        ends = [consumer.get_watermark_offsets(place, timeout=DEADLINE_S)[1] for place in places]
        return sum(ends) >= count
    finally:
        consumer.close()


def _committed(servers: str) -> dict[int, int]:
    """The group's offsets by partition."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    asked = confluent_kafka.ConsumerGroupTopicPartitions(_GROUP)
    found = admin.list_consumer_group_offsets([asked], request_timeout=30)[_GROUP].result(DEADLINE_S)
    return {place.partition: place.offset for place in found.topic_partitions if place.offset >= 0}


def _config(servers: str) -> dict[str, str | None]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, _TOPIC)
    entries = admin.describe_configs([resource], request_timeout=30)[resource].result(DEADLINE_S)
    return {name: entry.value for name, entry in entries.items()}


def _without_repeats(partitions: Mapping[tuple[str, int], Sequence[Read]]) -> dict[int, list[Read]]:
    """Each partition's records in their order, without their offsets."""
    return {
        partition: list(dict.fromkeys(dataclasses.replace(record, offset=0) for record in records))
        for (_, partition), records in partitions.items()
    }
