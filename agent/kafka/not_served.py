"""The API keys of Kafka 4.1 that no agent serves, and why: ApiVersions does not name them, so that no client asks.

With `served.APIS` this is every key that Kafka has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class NotServed:
    name: str
    why: str


_SECURITY: Final = "there is no authentication or authorization yet"
_TRANSACTIONS: Final = "there are no transactions yet"
_QUOTAS: Final = "there are no quotas: clients are slowed down by the agent's memory alone"
_NO_CONTROLLER: Final = "spoken between Kafka's brokers and controllers; there are no controllers"
_SHARE: Final = "share groups (KIP-932) are not available"
_STREAMS: Final = "the streams group protocol (KIP-1071) is not available: Kafka Streams uses classic groups"

NOT_SERVED: Final[Mapping[int, NotServed]] = MappingProxyType(
    {
        key: NotServed(name=name, why=why)
        for key, name, why in (
            (17, "SaslHandshake", _SECURITY),
            (24, "AddPartitionsToTxn", _TRANSACTIONS),
            (25, "AddOffsetsToTxn", _TRANSACTIONS),
            (26, "EndTxn", _TRANSACTIONS),
            (27, "WriteTxnMarkers", _TRANSACTIONS),
            (28, "TxnOffsetCommit", _TRANSACTIONS),
            (29, "DescribeAcls", _SECURITY),
            (30, "CreateAcls", _SECURITY),
            (31, "DeleteAcls", _SECURITY),
            (34, "AlterReplicaLogDirs", "there is one log directory, the object store"),
            (36, "SaslAuthenticate", _SECURITY),
            (38, "CreateDelegationToken", _SECURITY),
            (39, "RenewDelegationToken", _SECURITY),
            (40, "ExpireDelegationToken", _SECURITY),
            (41, "DescribeDelegationToken", _SECURITY),
            (48, "DescribeClientQuotas", _QUOTAS),
            (49, "AlterClientQuotas", _QUOTAS),
            (50, "DescribeUserScramCredentials", _SECURITY),
            (51, "AlterUserScramCredentials", _SECURITY),
            (52, "Vote", _NO_CONTROLLER),
            (53, "BeginQuorumEpoch", _NO_CONTROLLER),
            (54, "EndQuorumEpoch", _NO_CONTROLLER),
            (55, "DescribeQuorum", _NO_CONTROLLER),
            (56, "AlterPartition", _NO_CONTROLLER),
            (57, "UpdateFeatures", "agents have no feature levels: migrations of the database take their place"),
            (58, "Envelope", _NO_CONTROLLER),
            (59, "FetchSnapshot", _NO_CONTROLLER),
            (62, "BrokerRegistration", _NO_CONTROLLER),
            (63, "BrokerHeartbeat", _NO_CONTROLLER),
            (64, "UnregisterBroker", "an agent that is gone leaves the cluster by itself, when its lease is over"),
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
            (88, "StreamsGroupHeartbeat", _STREAMS),
            (89, "StreamsGroupDescribe", _STREAMS),
            (90, "DescribeShareGroupOffsets", _SHARE),
            (91, "AlterShareGroupOffsets", _SHARE),
            (92, "DeleteShareGroupOffsets", _SHARE),
        )
    }
)
