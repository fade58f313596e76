"""The domain's outcomes as Kafka's error codes. The only module that knows both.

Error paths answer with an error code and offset -1, never 0 (docs/design/write-path.md#errors).
"""

from dataclasses import dataclass, replace
from typing import assert_never

from kio.schema.errors import ErrorCode

from agent.read_path.read_decisions import ReadFailure
from agent.telemetry.instances import TelemetryFault
from agent.write_path.outcomes import WriteFailed, WriteFailure, WriteOutcome
from sequencer.commits.commits import (
    Assigned,
    Duplicate,
    FencedEpoch,
    OutOfOrderSequence,
    UnknownPartition,
    UnknownProducer,
    WrittenBefore,
)
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.topics.topic_config import InvalidConfig
from sequencer.topics.topics import InvalidPartitionCount, InvalidTopicName, TopicExists, UnknownTopic
from storage.batches.batch_validation import BatchFault, InvalidRecord
from storage.identifiers import NO_OFFSET, NodeId, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResult:
    """One partition's answer to a produce."""

    code: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    log_append_time_ms: int | None = None
    message: str | None = None
    records: tuple[InvalidRecord, ...] = ()
    """The records that are at fault, where single ones are (KIP-467)."""
    leader: NodeId | None = None
    """Who takes the partition now, where it is not this agent (KIP-951)."""

    def at(self, log_append_time_ms: int | None) -> "ProduceResult":
        """With the time that the log gave to the batch, if it gives times."""
        return replace(self, log_append_time_ms=log_append_time_ms)


def produce_result(outcome: WriteOutcome) -> ProduceResult:
    match outcome:
        case Assigned():
            return ProduceResult(code=ErrorCode.none, base_offset=outcome.base_offset)
        case Duplicate():
            return ProduceResult(
                code=ErrorCode.none, base_offset=outcome.base_offset, log_append_time_ms=outcome.max_timestamp_ms
            )
        case WrittenBefore():
            # Clients take it for success and tell their users that the offset is not known.
            return ProduceResult(code=ErrorCode.duplicate_sequence_number)
        case OutOfOrderSequence():
            return ProduceResult(code=ErrorCode.out_of_order_sequence_number)
        case FencedEpoch():
            return ProduceResult(code=ErrorCode.invalid_producer_epoch)
        case UnknownProducer():
            return ProduceResult(code=ErrorCode.unknown_producer_id, log_start_offset=outcome.log_start_offset)
        case UnknownPartition():
            return ProduceResult(code=ErrorCode.unknown_topic_or_partition)
        case WriteFailed():
            return ProduceResult(code=_WRITE_FAILURES[outcome.failure], message=outcome.message)
        case _:
            assert_never(outcome)


# All retriable. The first says that nothing was written, the others that something may have been: clients that count
# sequences rely on it.
_WRITE_FAILURES = {
    WriteFailure.NOT_WRITTEN: ErrorCode.not_enough_replicas,
    WriteFailure.UNKNOWN: ErrorCode.not_enough_replicas_after_append,
    WriteFailure.TIMED_OUT: ErrorCode.request_timed_out,
}


def read_failure_code(failure: ReadFailure, *, by_id: bool) -> ErrorCode:
    """`by_id`: whether the client named the topic by its id."""
    if failure is ReadFailure.UNKNOWN_TOPIC and by_id:
        return ErrorCode.unknown_topic_id
    return _READ_FAILURES[failure]


# All but the last are retriable. Clients take a storage error as "refresh the metadata and try again".
_READ_FAILURES = {
    ReadFailure.UNKNOWN_TOPIC: ErrorCode.unknown_topic_or_partition,
    ReadFailure.UNKNOWN_PARTITION: ErrorCode.unknown_topic_or_partition,
    ReadFailure.UNAVAILABLE: ErrorCode.kafka_storage_error,
    ReadFailure.DATA_MISSING: ErrorCode.kafka_storage_error,
    ReadFailure.UNKNOWN_LEADER_EPOCH: ErrorCode.unknown_leader_epoch,
    ReadFailure.FENCED_LEADER_EPOCH: ErrorCode.fenced_leader_epoch,
    ReadFailure.MOVED: ErrorCode.not_leader_or_follower,
    ReadFailure.OUT_OF_RANGE: ErrorCode.offset_out_of_range,
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
    BatchFault.TOO_LARGE: ErrorCode.message_too_large,
    BatchFault.UNKNOWN_COMPRESSION: ErrorCode.unsupported_compression_type,
    BatchFault.UNSUPPORTED_FORMAT: ErrorCode.unsupported_for_message_format,
    BatchFault.TRANSACTIONAL: ErrorCode.invalid_txn_state,
    BatchFault.CONTROL: ErrorCode.invalid_record,
}


class AdministrationRefused(Exception):
    """An administrative request that Kafka's rules refuse before the sequencer is asked."""

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
    SequencerUnavailable,
    CommitOutcomeUnknown,
)
"""What an administrative call of the sequencer raises when it cannot be carried out."""


def administration_code(error: Exception) -> ErrorCode:
    """The code for one of ADMINISTRATION_ERRORS."""
    if isinstance(error, AdministrationRefused):
        return error.code
    return next(code for kind, code in _ADMINISTRATION.items() if isinstance(error, kind))


_ADMINISTRATION: dict[type[Exception], ErrorCode] = {
    TopicExists: ErrorCode.topic_already_exists,
    UnknownTopic: ErrorCode.unknown_topic_or_partition,
    InvalidConfig: ErrorCode.invalid_config,
    InvalidTopicName: ErrorCode.invalid_topic_exception,
    InvalidPartitionCount: ErrorCode.invalid_partitions,
    SequencerUnavailable: ErrorCode.request_timed_out,
    CommitOutcomeUnknown: ErrorCode.request_timed_out,
}
