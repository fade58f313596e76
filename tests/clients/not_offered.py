"""What clients do not offer, with what says so: rows of `docs/clients.md` that no test can show.

Evidence is a fact of the version that the lock file names: a page, or a file of the package that anybody can open.
"""

from collections.abc import Mapping

_KAFKAJS_GROUPS = "its consumer always has a group: `src/consumer/index.js` throws without a `groupId`"
_STATIC = (
    "requests can carry `GroupInstanceID`, but `ConsumerGroup` sends none: `makeJoinGroupRequest`, `consumergroup.go`"
)

NOT_OFFERED: Mapping[tuple[str, str], str] = {
    ("sarama", "group: the new protocol (KIP-848)"): (
        "it describes such groups (`ConsumerGroupDescribe`) but has no heartbeat request to join one: no"
        " `consumer_group_heartbeat_request.go`"
    ),
    ("sarama", "offsets: seek"): (
        "a partition is consumed from an offset and closed (`ConsumePartition`); `PartitionConsumer` has no seek"
    ),
    ("segmentio/kafka-go", "produce: idempotent"): (
        "`Writer` has no such setting, and its batches carry no producer id: `writer.go`"
    ),
    ("segmentio/kafka-go", "group: cooperative, partitions kept"): (
        "its balancers are eager: `groupbalancer.go` has range, round robin and rack affinity"
    ),
    ("segmentio/kafka-go", "group: static membership"): _STATIC,
    ("segmentio/kafka-go", "group: the new protocol (KIP-848)"): (
        "no ConsumerGroupHeartbeat (API key 68) among its messages: `protocol/`"
    ),
    ("segmentio/kafka-go", "admin: delete records"): "no DeleteRecords (API key 21) among its messages: `protocol/`",
    ("kafkajs", "consume: assigned partitions"): _KAFKAJS_GROUPS,
    ("kafkajs", "group: cooperative, partitions kept"): (
        "its assigner is round robin and a rebalance revokes everything: `src/consumer/assigners`, `consumerGroup.js`"
    ),
    ("kafkajs", "group: static membership"): (
        "`groupInstanceId` is in its messages but in no option of a consumer: `types/index.d.ts`, `ConsumerConfig`"
    ),
    ("kafkajs", "group: the new protocol (KIP-848)"): (
        "no ConsumerGroupHeartbeat (API key 68): `src/protocol/requests/apiKeys.js` ends at 46"
    ),
    ("kafkajs", "admin: delete offsets of groups"): "no OffsetDelete (API key 47): `src/protocol/requests/apiKeys.js`",
    ("rust-rdkafka", "admin: delete offsets of groups"): (
        "`AdminClient` has no such method: `src/admin.rs` (librdkafka's is reached through the unsafe rdkafka-sys only)"
    ),
}
