"""What clients do not offer, or not reliably, with the evidence: rows of `docs/clients.md` that no test can
show. Where Tidelog is what does not offer it, the evidence says so and names the test of the refusal.

Evidence is a fact of the version that the lock file names: a page, or a file of the package that anybody can
open.
"""

from collections.abc import Mapping

_KAFKAJS_GROUPS = "its consumer always has a group: `src/consumer/index.js` throws without a `groupId`"
_STATIC = (
    "requests can carry `GroupInstanceID`, but `ConsumerGroup` sends none: `makeJoinGroupRequest`, "
    "`consumergroup.go`"
)

_NO_TRANSACTIONS = (
    "`Writer` has no transactional id (`writer.go`), and every batch is written with producer id -1: "
    "`protocol/record_v2.go`"
)

_ONE_PROTOCOL = "it knows the classic protocol only, see above"
_NO_NEW_PROTOCOL = "no option of its consumer names a group protocol; it joins by JoinGroup alone"

NOT_OFFERED: Mapping[tuple[str, str], str] = {
    ("aiokafka", "group: cooperative, partitions kept"): (
        "its assignors are range, round robin and sticky, all eager: `aiokafka/coordinator/assignors`"
    ),
    ("aiokafka", "group: the new protocol (KIP-848)"): _NO_NEW_PROTOCOL,
    ("aiokafka", "group: changes between protocols while it runs"): _ONE_PROTOCOL,
    (
        "aiokafka",
        "admin: delete groups",
    ): "`AIOKafkaAdminClient` has no such method: `aiokafka/admin/client.py`",
    ("aiokafka", "admin: delete offsets of groups"): (
        "`AIOKafkaAdminClient` has no such method: `aiokafka/admin/client.py`"
    ),
    ("aiokafka", "login: again on a connection (KIP-368)"): (
        "its connections log in when they open and never after that: `aiokafka/conn.py`, `_do_sasl_handshake`"
    ),
    ("kafka-python", "group: the new protocol (KIP-848)"): _NO_NEW_PROTOCOL,
    ("kafka-python", "group: changes between protocols while it runs"): _ONE_PROTOCOL,
    ("kafka-python", "group: topics by regular expression"): (
        "not reliably: a member whose pattern comes to match another topic gives up its partitions and at "
        "times never rejoins (3.0.12), with Apache Kafka 4.1 as well"
    ),
    ("sarama", "group: the new protocol (KIP-848)"): (
        "it describes such groups (`ConsumerGroupDescribe`) but has no heartbeat request to join one: no"
        " `consumer_group_heartbeat_request.go`"
    ),
    ("sarama", "group: changes between protocols while it runs"): _ONE_PROTOCOL,
    (
        "sarama",
        "group: topics by regular expression",
    ): "`ConsumerGroup.Consume` takes names of topics: `consumer_group.go`",
    ("sarama", "offsets: seek"): (
        "a partition is consumed from an offset and closed (`ConsumePartition`); `PartitionConsumer` has "
        "no seek"
    ),
    ("segmentio/kafka-go", "produce: idempotent"): (
        "`Writer` has no such setting, and its batches carry no producer id: `writer.go`"
    ),
    ("segmentio/kafka-go", "consume: committed"): (
        "`ReaderConfig.IsolationLevel` hides open transactions only: `read.go` reads the list of aborted "
        "ones and drops it"
    ),
    ("segmentio/kafka-go", "transactions: produce"): _NO_TRANSACTIONS,
    ("segmentio/kafka-go", "transactions: offsets"): _NO_TRANSACTIONS,
    ("segmentio/kafka-go", "group: cooperative, partitions kept"): (
        "its balancers are eager: `groupbalancer.go` has range, round robin and rack affinity"
    ),
    ("segmentio/kafka-go", "group: static membership"): _STATIC,
    ("segmentio/kafka-go", "group: the new protocol (KIP-848)"): (
        "no ConsumerGroupHeartbeat (API key 68) among its messages: `protocol/`"
    ),
    ("segmentio/kafka-go", "group: changes between protocols while it runs"): _ONE_PROTOCOL,
    (
        "segmentio/kafka-go",
        "group: topics by regular expression",
    ): "`ConsumerGroupConfig.Topics` are names of topics: `consumergroup.go`",
    (
        "segmentio/kafka-go",
        "admin: delete records",
    ): "no DeleteRecords (API key 21) among its messages: `protocol/`",
    ("segmentio/kafka-go", "login: OAUTHBEARER, with and without TLS"): (
        "its mechanisms are PLAIN, SCRAM and AWS's: `sasl/`; another is its user's to write"
    ),
    ("segmentio/kafka-go", "login: again on a connection (KIP-368)"): (
        "nothing reads `SessionLifetimeMs` of `protocol/saslauthenticate`: a connection logs in when it "
        "opens (`transport.go`, `authenticateSASL`)"
    ),
    ("kafkajs", "consume: assigned partitions"): _KAFKAJS_GROUPS,
    ("kafkajs", "group: cooperative, partitions kept"): (
        "its assigner is round robin and a rebalance revokes everything: `src/consumer/assigners`, "
        "`consumerGroup.js`"
    ),
    ("kafkajs", "group: static membership"): (
        "`groupInstanceId` is in its messages but in no option of a consumer: `types/index.d.ts`, "
        "`ConsumerConfig`"
    ),
    ("kafkajs", "group: the new protocol (KIP-848)"): (
        "no ConsumerGroupHeartbeat (API key 68): `src/protocol/requests/apiKeys.js` ends at 46"
    ),
    ("kafkajs", "group: changes between protocols while it runs"): _ONE_PROTOCOL,
    ("kafkajs", "group: topics by regular expression"): (
        "a pattern is compared once, when `subscribe` is called, not with topics made later: "
        "`src/consumer/index.js`"
    ),
    ("kafkajs", "offsets: commit without membership"): (
        "`admin.setOffsets` joins the group as a member to commit: `src/admin/index.js`"
    ),
    (
        "kafkajs",
        "admin: delete offsets of groups",
    ): "no OffsetDelete (API key 47): `src/protocol/requests/apiKeys.js`",
    ("rust-rdkafka", "admin: delete offsets of groups"): (
        "`AdminClient` has no such method: `src/admin.rs` (librdkafka's is reached through the unsafe "
        "rdkafka-sys only)"
    ),
}
