"""Configs are shown in the order in which Apache Kafka 4.1 shows its own."""

from agent.groups.settings import GroupSettings
from agent.kafka.configs.config_entries import broker_entries, group_entries, topic_entries
from agent.settings import AgentSettings
from storage.identifiers import NodeId

TOPIC = (
    "compression.type",
    "remote.storage.enable",
    "min.insync.replicas",
    "segment.jitter.ms",
    "local.retention.ms",
    "cleanup.policy",
    "flush.ms",
    "segment.bytes",
    "retention.ms",
    "flush.messages",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "message.timestamp.type",
    "local.retention.bytes",
    "preallocate",
    "min.cleanable.dirty.ratio",
    "unclean.leader.election.enable",
    "retention.bytes",
    "delete.retention.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "segment.ms",
    "tidelog.history",
    "tidelog.value.schema",
    "tidelog.key.schema",
    "tidelog.history.freshness.ms",
    "tidelog.priority",
    "tidelog.key.format",
    "tidelog.history.retention.ms",
    "tidelog.encryption",
    "tidelog.value.format",
)
GROUP = (
    "consumer.session.timeout.ms",
    "streams.heartbeat.interval.ms",
    "consumer.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms",
    "streams.session.timeout.ms",
    "streams.num.standby.replicas",
)
BROKER = (
    "log.cleaner.min.compaction.lag.ms",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "min.insync.replicas",
    "group.consumer.max.session.timeout.ms",
    "message.max.bytes",
    "group.consumer.min.session.timeout.ms",
    "telemetry.max.bytes",
    "log.cleaner.delete.retention.ms",
    "socket.request.max.bytes",
    "log.message.timestamp.type",
    "connections.max.idle.ms",
    "max.connections",
    "log.roll.ms",
    "node.id",
    "log.segment.bytes",
    "group.consumer.heartbeat.interval.ms",
    "group.max.session.timeout.ms",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.cleaner.min.cleanable.ratio",
    "broker.rack",
    "unclean.leader.election.enable",
    "group.consumer.session.timeout.ms",
    "auto.create.topics.enable",
    "group.consumer.min.heartbeat.interval.ms",
    "default.replication.factor",
    "log.preallocate",
    "delete.topic.enable",
    "log.cleaner.max.compaction.lag.ms",
    "log.retention.ms",
    "log.retention.bytes",
    "num.partitions",
    "listeners",
    "log.cleanup.policy",
    "log.roll.jitter.ms",
    "group.initial.rebalance.delay.ms",
    "offset.metadata.max.bytes",
    "compression.type",
    "group.consumer.max.heartbeat.interval.ms",
    "group.min.session.timeout.ms",
    "process.roles",
    "group.max.size",
    "max.request.partition.size.limit",
    "broker.id",
    "advertised.listeners",
    "queued.max.request.bytes",
    "tidelog.history.freshness.ms",
    "tidelog.history",
)
"""What a broker of Kafka 4.1.0 answered, without what there is not here."""


def test_topics_groups_and_brokers_show_their_configs_in_kafkas_order() -> None:
    settings = (AgentSettings(), GroupSettings())
    broker = [entry.name for entry in broker_entries(NodeId(1), "here:1", "here:1", settings)]

    assert tuple(entry.name for entry in topic_entries({})) == TOPIC
    assert tuple(entry.name for entry in topic_entries({"retention.ms": "5"})) == TOPIC
    assert tuple(entry.name for entry in group_entries({}, GroupSettings())) == GROUP
    assert tuple(name for name in broker if name in BROKER) == BROKER
