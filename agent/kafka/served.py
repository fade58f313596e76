"""All of Kafka's APIs: those that an agent serves, with their modules in `apis/`, and those that it does not
serve, with the reason. ApiVersions advertises only the served ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agent.kafka.api import API_VERSIONS_KEY, Api, Order

APIS: Final = (
    Api(
        key=0,
        name="Produce",
        versions=range(14),
        served_from=3,
        module="produce.produce",
        order=Order.PIPELINED,
        carried_out=True,
    ),
    Api(key=1, name="Fetch", versions=range(4, 19), module="fetch.fetch", order=Order.LONG_POLL),
    Api(key=2, name="ListOffsets", versions=range(1, 12), module="list_offsets", order=Order.READ),
    Api(key=3, name="Metadata", versions=range(14), module="metadata"),
    Api(
        key=8,
        name="OffsetCommit",
        versions=range(2, 11),
        module="offset_commit",
        order=Order.PIPELINED,
        carried_out=True,
    ),
    Api(key=9, name="OffsetFetch", versions=range(1, 11), module="offset_fetch", order=Order.READ),
    Api(key=10, name="FindCoordinator", versions=range(7), module="find_coordinator", order=Order.READ),
    Api(key=11, name="JoinGroup", versions=range(10), module="join_group", order=Order.PARKED),
    Api(key=12, name="Heartbeat", versions=range(5), module="heartbeat"),
    Api(key=13, name="LeaveGroup", versions=range(6), module="leave_group", carried_out=True),
    Api(key=14, name="SyncGroup", versions=range(6), module="sync_group", order=Order.PARKED),
    Api(key=15, name="DescribeGroups", versions=range(7), module="describe_groups", order=Order.READ),
    Api(key=16, name="ListGroups", versions=range(6), module="list_groups", order=Order.READ),
    Api(key=42, name="DeleteGroups", versions=range(3), module="delete_groups"),
    Api(key=47, name="OffsetDelete", versions=range(1), module="offset_delete"),
    Api(
        key=68,
        name="ConsumerGroupHeartbeat",
        versions=range(2),
        module="consumer_group_heartbeat",
        carried_out=True,
    ),
    Api(
        key=69,
        name="ConsumerGroupDescribe",
        versions=range(2),
        module="consumer_group_describe",
        order=Order.READ,
    ),
    Api(
        key=88,
        name="StreamsGroupHeartbeat",
        versions=range(1),
        module="streams_group_heartbeat",
        carried_out=True,
    ),
    Api(
        key=89,
        name="StreamsGroupDescribe",
        versions=range(1),
        module="streams_group_describe",
        order=Order.READ,
    ),
    Api(key=19, name="CreateTopics", versions=range(2, 8), module="create_topics"),
    Api(key=20, name="DeleteTopics", versions=range(1, 7), module="delete_topics"),
    Api(key=22, name="InitProducerId", versions=range(6), module="init_producer_id"),
    Api(key=32, name="DescribeConfigs", versions=range(1, 5), module="describe_configs", order=Order.READ),
    Api(key=33, name="AlterConfigs", versions=range(3), module="alter_configs"),
    Api(
        key=74,
        name="ListConfigResources",
        versions=range(2),
        module="list_config_resources",
        order=Order.READ,
    ),
    Api(key=29, name="DescribeAcls", versions=range(1, 4), module="describe_acls", order=Order.READ),
    Api(key=30, name="CreateAcls", versions=range(1, 4), module="create_acls", carried_out=True),
    Api(key=31, name="DeleteAcls", versions=range(1, 4), module="delete_acls", carried_out=True),
    Api(key=37, name="CreatePartitions", versions=range(4), module="create_partitions"),
    Api(key=44, name="IncrementalAlterConfigs", versions=range(2), module="incremental_alter_configs"),
    Api(key=60, name="DescribeCluster", versions=range(3), module="describe_cluster", order=Order.READ),
    Api(
        key=45, name="AlterPartitionReassignments", versions=range(2), module="alter_partition_reassignments"
    ),
    Api(key=21, name="DeleteRecords", versions=range(3), module="delete_records"),
    Api(key=35, name="DescribeLogDirs", versions=range(1, 5), module="describe_log_dirs", order=Order.READ),
    Api(key=61, name="DescribeProducers", versions=range(1), module="describe_producers", order=Order.READ),
    Api(
        key=75,
        name="DescribeTopicPartitions",
        versions=range(1),
        module="describe_topic_partitions",
        order=Order.READ,
    ),
    Api(
        key=65,
        name="DescribeTransactions",
        versions=range(1),
        module="describe_transactions",
        order=Order.READ,
    ),
    Api(key=43, name="ElectLeaders", versions=range(3), module="elect_leaders"),
    Api(
        key=46,
        name="ListPartitionReassignments",
        versions=range(1),
        module="list_partition_reassignments",
        order=Order.READ,
    ),
    Api(
        key=24,
        name="AddPartitionsToTxn",
        versions=range(6),
        module="add_partitions_to_txn",
        carried_out=True,
    ),
    Api(key=25, name="AddOffsetsToTxn", versions=range(5), module="add_offsets_to_txn", carried_out=True),
    Api(key=26, name="EndTxn", versions=range(6), module="end_txn", carried_out=True),
    Api(key=27, name="WriteTxnMarkers", versions=range(1, 3), module="write_txn_markers"),
    Api(
        key=28,
        name="TxnOffsetCommit",
        versions=range(6),
        module="txn_offset_commit",
        carried_out=True,
    ),
    Api(key=66, name="ListTransactions", versions=range(3), module="list_transactions", order=Order.READ),
    Api(
        key=23,
        name="OffsetForLeaderEpoch",
        versions=range(2, 5),
        module="offset_for_leader_epoch",
        order=Order.READ,
    ),
    Api(key=71, name="GetTelemetrySubscriptions", versions=range(1), module="get_telemetry_subscriptions"),
    Api(key=72, name="PushTelemetry", versions=range(1), module="push_telemetry"),
    Api(key=17, name="SaslHandshake", versions=range(2), module="sasl_handshake"),
    Api(key=36, name="SaslAuthenticate", versions=range(3), module="sasl_authenticate", has_secrets=True),
    Api(
        key=48,
        name="DescribeClientQuotas",
        versions=range(2),
        module="describe_client_quotas",
        order=Order.READ,
    ),
    Api(
        key=49,
        name="AlterClientQuotas",
        versions=range(2),
        module="alter_client_quotas",
        carried_out=True,
    ),
    Api(
        key=50,
        name="DescribeUserScramCredentials",
        versions=range(1),
        module="describe_user_scram_credentials",
        order=Order.READ,
    ),
    Api(
        key=51,
        name="AlterUserScramCredentials",
        versions=range(1),
        module="alter_user_scram_credentials",
        has_secrets=True,
        carried_out=True,
    ),
    Api(key=API_VERSIONS_KEY, name="ApiVersions", versions=range(5), module="api_versions"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotServed:
    name: str
    why: str


_TOKENS: Final = (
    "there are no delegation tokens (KIP-48): jobs log in with SCRAM or with tokens of OAUTHBEARER"
)
_NO_CONTROLLER: Final = "spoken between Kafka's brokers and controllers; there are no controllers"
_SHARE: Final = "share groups (KIP-932) are not available"

NOT_SERVED: Final[Mapping[int, NotServed]] = MappingProxyType(
    {
        key: NotServed(name=name, why=why)
        for key, name, why in (
            (34, "AlterReplicaLogDirs", "there is one log directory, the object store"),
            (38, "CreateDelegationToken", _TOKENS),
            (39, "RenewDelegationToken", _TOKENS),
            (40, "ExpireDelegationToken", _TOKENS),
            (41, "DescribeDelegationToken", _TOKENS),
            (52, "Vote", _NO_CONTROLLER),
            (53, "BeginQuorumEpoch", _NO_CONTROLLER),
            (54, "EndQuorumEpoch", _NO_CONTROLLER),
            (55, "DescribeQuorum", _NO_CONTROLLER),
            (56, "AlterPartition", _NO_CONTROLLER),
            (
                57,
                "UpdateFeatures",
                "agents have no feature levels: migrations of the database take their place",
            ),
            (58, "Envelope", _NO_CONTROLLER),
            (59, "FetchSnapshot", _NO_CONTROLLER),
            (62, "BrokerRegistration", _NO_CONTROLLER),
            (63, "BrokerHeartbeat", _NO_CONTROLLER),
            (
                64,
                "UnregisterBroker",
                "an agent that is gone leaves the cluster by itself, when its lease is over",
            ),
            (67, "AllocateProducerIds", _NO_CONTROLLER),
            (70, "ControllerRegistration", _NO_CONTROLLER),
            (73, "AssignReplicasToDirs", _NO_CONTROLLER),
            (76, "ShareGroupHeartbeat", _SHARE),
            (77, "ShareGroupDescribe", _SHARE),
            (78, "ShareFetch", _SHARE),
            (79, "ShareAcknowledge", _SHARE),
            (80, "AddRaftVoter", _NO_CONTROLLER),
            (81, "RemoveRaftVoter", _NO_CONTROLLER),
            (82, "UpdateRaftVoter", _NO_CONTROLLER),
            (83, "InitializeShareGroupState", _SHARE),
            (84, "ReadShareGroupState", _SHARE),
            (85, "WriteShareGroupState", _SHARE),
            (86, "DeleteShareGroupState", _SHARE),
            (87, "ReadShareGroupStateSummary", _SHARE),
            (90, "DescribeShareGroupOffsets", _SHARE),
            (91, "AlterShareGroupOffsets", _SHARE),
            (92, "DeleteShareGroupOffsets", _SHARE),
        )
    }
)
