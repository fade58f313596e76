"""Maps the domain's outcomes to Kafka's error codes. No other module knows both.

An error response has an error code and offset -1, never 0 (docs/design/write-path.md#errors).

The clients of each group API expect only a few codes, and some take any other code as final. So some APIs
have exceptions of their own, as in Kafka.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from kio.schema.errors import ErrorCode

from agent.groups.events import GroupFault
from agent.read_path.read_decisions import ReadFailure
from agent.telemetry.instances import TelemetryFault
from agent.write_path.outcomes import WriteFailed, WriteFailure, WriteOutcome
from sequencer.commits.commits import (
    Assigned,
    Duplicate,
    FencedEpoch,
    InvalidTransaction,
    OutOfOrderSequence,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
)
from sequencer.commits.transactions import OffsetVerdict, TransactionRefusal
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.tenants.tenant_limits import TenantLimitReached
from sequencer.topics.topic_config import InvalidConfig
from sequencer.topics.topics import InvalidPartitionCount, InvalidTopicName, TopicExists, UnknownTopic
from storage.batches.batch_validation import BatchFault, InvalidRecord
from storage.identifiers import NO_OFFSET, NodeId, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResult:
    """The outcome of a produce for one partition."""

    code: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    log_append_time_ms: int | None = None
    message: str | None = None
    records: tuple[InvalidRecord, ...] = ()
    """The faulty records, if the fault is in single records (KIP-467)."""
    leader: NodeId | None = None
    """The agent that takes the partition now, if it is another one (KIP-951)."""

    def at(self, log_append_time_ms: int | None) -> "ProduceResult":
        """Returns the result with the time that the log gave to the batch, if it gives times."""
        return replace(self, log_append_time_ms=log_append_time_ms)


def produce_result(outcome: WriteOutcome) -> ProduceResult:
    match outcome:
        case Assigned():
            return ProduceResult(code=ErrorCode.none, base_offset=outcome.base_offset)
        case Duplicate():
            return ProduceResult(
                code=ErrorCode.none,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.max_timestamp_ms,
            )
        case WrittenBefore():
            # Clients take this code for success and tell their users that the offset is unknown.
            return ProduceResult(code=ErrorCode.duplicate_sequence_number)
        case OutOfOrderSequence():
            return ProduceResult(code=ErrorCode.out_of_order_sequence_number)
        case FencedEpoch():
            return ProduceResult(code=ErrorCode.invalid_producer_epoch)
        case UnknownProducer():
            return ProduceResult(
                code=ErrorCode.unknown_producer_id, log_start_offset=outcome.log_start_offset
            )
        case UnknownPartition():
            return ProduceResult(code=ErrorCode.unknown_topic_or_partition)
        case InvalidTransaction():
            return ProduceResult(code=ErrorCode.invalid_txn_state)
        case WriteFailed():
            return ProduceResult(code=_WRITE_FAILURES[outcome.failure], message=outcome.message)
        case _:
            assert_never(outcome)


# All are retriable. The first says that nothing was written, the others that something may have been. Clients
# that count sequences rely on the difference.
_WRITE_FAILURES = {
    WriteFailure.NOT_WRITTEN: ErrorCode.not_enough_replicas,
    WriteFailure.UNKNOWN: ErrorCode.not_enough_replicas_after_append,
    WriteFailure.TIMED_OUT: ErrorCode.request_timed_out,
}


def read_failure_code(failure: ReadFailure, *, by_id: bool) -> ErrorCode:
    """`by_id`: true if the client named the topic by its id."""
    if failure is ReadFailure.UNKNOWN_TOPIC and by_id:
        return ErrorCode.unknown_topic_id
    return _READ_FAILURES[failure]


# All but the last two are retriable. Clients take a storage error as "refresh the metadata and try again".
_READ_FAILURES = {
    ReadFailure.UNKNOWN_TOPIC: ErrorCode.unknown_topic_or_partition,
    ReadFailure.UNKNOWN_PARTITION: ErrorCode.unknown_topic_or_partition,
    ReadFailure.UNAVAILABLE: ErrorCode.kafka_storage_error,
    ReadFailure.DATA_MISSING: ErrorCode.kafka_storage_error,
    ReadFailure.DAMAGED: ErrorCode.corrupt_message,
    ReadFailure.UNKNOWN_LEADER_EPOCH: ErrorCode.unknown_leader_epoch,
    ReadFailure.FENCED_LEADER_EPOCH: ErrorCode.fenced_leader_epoch,
    ReadFailure.MOVED: ErrorCode.not_leader_or_follower,
    ReadFailure.OUT_OF_RANGE: ErrorCode.offset_out_of_range,
    ReadFailure.NOT_AUTHORIZED: ErrorCode.topic_authorization_failed,
}


def telemetry_code(fault: TelemetryFault) -> ErrorCode:
    return _TELEMETRY_FAULTS[fault]


_TELEMETRY_FAULTS = {
    TelemetryFault.INVALID_REQUEST: ErrorCode.invalid_request,
    TelemetryFault.THROTTLED: ErrorCode.throttling_quota_exceeded,
    TelemetryFault.UNKNOWN_SUBSCRIPTION: ErrorCode.unknown_subscription_id,
    TelemetryFault.UNSUPPORTED_COMPRESSION: ErrorCode.unsupported_compression_type,
    TelemetryFault.TOO_LARGE: ErrorCode.telemetry_too_large,
    TelemetryFault.INVALID_RECORD: ErrorCode.invalid_record,
}


def invalid_batch_code(fault: BatchFault) -> ErrorCode:
    return _BATCH_FAULTS[fault]


_BATCH_FAULTS = {
    BatchFault.CORRUPT: ErrorCode.corrupt_message,
    BatchFault.INVALID_RECORD: ErrorCode.invalid_record,
    BatchFault.INVALID_TIMESTAMP: ErrorCode.invalid_timestamp,
    BatchFault.NO_KEY: ErrorCode.invalid_record,
    BatchFault.TOO_LARGE: ErrorCode.message_too_large,
    BatchFault.UNKNOWN_COMPRESSION: ErrorCode.unsupported_compression_type,
    BatchFault.UNSUPPORTED_FORMAT: ErrorCode.unsupported_for_message_format,
    BatchFault.CONTROL: ErrorCode.invalid_record,
}


class AdministrationRefused(Exception):
    """Kafka's rules refuse an administrative request, before the sequencer is asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


ADMINISTRATION_ERRORS: tuple[type[Exception], ...] = (
    AdministrationRefused,
    TopicExists,
    UnknownTopic,
    InvalidConfig,
    InvalidTopicName,
    InvalidPartitionCount,
    TenantLimitReached,
    SequencerUnavailable,
    CommitOutcomeUnknown,
)
"""The sequencer raises these if it cannot carry out an administrative call."""


def administration_code(error: Exception) -> ErrorCode:
    """Returns the code for one of ADMINISTRATION_ERRORS."""
    if isinstance(error, AdministrationRefused):
        return error.code
    return next(code for kind, code in _ADMINISTRATION.items() if isinstance(error, kind))


_ADMINISTRATION: dict[type[Exception], ErrorCode] = {
    TopicExists: ErrorCode.topic_already_exists,
    UnknownTopic: ErrorCode.unknown_topic_or_partition,
    InvalidConfig: ErrorCode.invalid_config,
    InvalidTopicName: ErrorCode.invalid_topic_exception,
    InvalidPartitionCount: ErrorCode.invalid_partitions,
    TenantLimitReached: ErrorCode.policy_violation,
    SequencerUnavailable: ErrorCode.request_timed_out,
    CommitOutcomeUnknown: ErrorCode.request_timed_out,
}


_CODES: Final[Mapping[GroupFault, ErrorCode]] = {
    GroupFault.UNKNOWN_MEMBER: ErrorCode.unknown_member_id,
    GroupFault.MEMBER_ID_REQUIRED: ErrorCode.member_id_required,
    GroupFault.ILLEGAL_GENERATION: ErrorCode.illegal_generation,
    GroupFault.REBALANCE_IN_PROGRESS: ErrorCode.rebalance_in_progress,
    GroupFault.INCONSISTENT_PROTOCOL: ErrorCode.inconsistent_group_protocol,
    GroupFault.INVALID_SESSION_TIMEOUT: ErrorCode.invalid_session_timeout,
    GroupFault.GROUP_FULL: ErrorCode.group_max_size_reached,
    GroupFault.FENCED_INSTANCE: ErrorCode.fenced_instance_id,
    GroupFault.FENCED_MEMBER_EPOCH: ErrorCode.fenced_member_epoch,
    GroupFault.STALE_MEMBER_EPOCH: ErrorCode.stale_member_epoch,
    GroupFault.UNRELEASED_INSTANCE: ErrorCode.unreleased_instance_id,
    GroupFault.UNSUPPORTED_ASSIGNOR: ErrorCode.unsupported_assignor,
    GroupFault.INVALID_REGEX: ErrorCode.invalid_regular_expression,
    GroupFault.INVALID_TOPOLOGY: ErrorCode.streams_invalid_topology,
    GroupFault.INVALID_TOPOLOGY_EPOCH: ErrorCode.streams_invalid_topology_epoch,
    GroupFault.TOPOLOGY_FENCED: ErrorCode.streams_topology_fenced,
    GroupFault.INVALID_REQUEST: ErrorCode.invalid_request,
    GroupFault.INVALID_GROUP: ErrorCode.invalid_group_id,
    GroupFault.GROUP_NOT_FOUND: ErrorCode.group_id_not_found,
    GroupFault.GROUP_NOT_EMPTY: ErrorCode.non_empty_group,
    GroupFault.SUBSCRIBED_TO_TOPIC: ErrorCode.group_subscribed_to_topic,
    GroupFault.NOT_AUTHORIZED: ErrorCode.group_authorization_failed,
    GroupFault.TOPIC_NOT_AUTHORIZED: ErrorCode.topic_authorization_failed,
    GroupFault.NOT_COORDINATOR: ErrorCode.not_coordinator,
    GroupFault.COORDINATOR_UNAVAILABLE: ErrorCode.coordinator_not_available,
    GroupFault.TOO_MANY_GROUPS: ErrorCode.policy_violation,
    GroupFault.OVERLOADED: ErrorCode.coordinator_load_in_progress,
}


def group_code(fault: GroupFault | None) -> ErrorCode:
    return ErrorCode.none if fault is None else _CODES[fault]


def member_code(fault: GroupFault | None) -> ErrorCode:
    """For JoinGroup and LeaveGroup. In a group that does not exist, every member is unknown."""
    return ErrorCode.unknown_member_id if fault is GroupFault.GROUP_NOT_FOUND else group_code(fault)


def sync_code(fault: GroupFault | None) -> ErrorCode:
    """For SyncGroup. Its clients give up on a coordinator that is loading, so they are sent back to
    JoinGroup.
    """
    return ErrorCode.rebalance_in_progress if fault is GroupFault.OVERLOADED else member_code(fault)


def heartbeat_code(fault: GroupFault | None) -> ErrorCode:
    """For Heartbeat. Its clients do not know a coordinator that is loading either. The next heartbeat may
    show more.
    """
    return ErrorCode.none if fault is GroupFault.OVERLOADED else member_code(fault)


def commit_code(fault: GroupFault | None, *, says_group_not_found: bool) -> ErrorCode:
    """For OffsetCommit. `says_group_not_found`: from version 9 on."""
    if fault is GroupFault.GROUP_NOT_FOUND and not says_group_not_found:
        return ErrorCode.illegal_generation
    return group_code(fault)


def fetch_code(fault: GroupFault | None) -> ErrorCode:
    """For OffsetFetch. Its older clients give up on a coordinator that is not available, but wait for one
    that is loading.
    """
    if fault is GroupFault.COORDINATOR_UNAVAILABLE:
        return ErrorCode.coordinator_load_in_progress
    return group_code(fault)


def transaction_code(refusal: TransactionRefusal, *, knows_fenced: bool) -> ErrorCode:
    """For the requests of a transactional producer. `knows_fenced`: its version of the request does
    (KIP-588).
    """
    if refusal is TransactionRefusal.FENCED:
        return ErrorCode.producer_fenced if knows_fenced else ErrorCode.invalid_producer_epoch
    return _TRANSACTION_CODES[refusal]


_TRANSACTION_CODES: Final[Mapping[TransactionRefusal, ErrorCode]] = {
    TransactionRefusal.UNKNOWN_PRODUCER: ErrorCode.invalid_producer_id_mapping,
    TransactionRefusal.NOTHING_TO_END: ErrorCode.invalid_txn_state,
    TransactionRefusal.OPEN: ErrorCode.concurrent_transactions,
}

PENDING_OFFSETS_CODES: Final[Mapping[OffsetVerdict, ErrorCode]] = {
    OffsetVerdict.DONE: ErrorCode.none,
    OffsetVerdict.NOT_COORDINATOR: ErrorCode.not_coordinator,
    OffsetVerdict.UNKNOWN_MEMBER: ErrorCode.unknown_member_id,
    OffsetVerdict.ILLEGAL_GENERATION: ErrorCode.illegal_generation,
    OffsetVerdict.STALE_MEMBER_EPOCH: ErrorCode.illegal_generation,
    OffsetVerdict.FENCED: ErrorCode.invalid_producer_epoch,
    OffsetVerdict.UNKNOWN_PRODUCER: ErrorCode.invalid_producer_id_mapping,
    OffsetVerdict.NOT_IN_TRANSACTION: ErrorCode.invalid_txn_state,
}
"""For TxnOffsetCommit, whose clients know no stale member epoch."""
