"""Kafka API 21, DeleteRecords, v0-v2 (KIP-107).

The log start offset moves at once; other agents notice with their next poll. The runs below it are dropped,
and objects are deleted once nothing refers to them. -1 stands for the high watermark. As in Kafka, the later
offset counts if a partition is named twice. Refused: an offset beyond the high watermark or below -1
(OFFSET_OUT_OF_RANGE); a topic whose cleanup policy does not have delete (POLICY_VIOLATION).
"""

from typing import Final, Protocol

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import TOPIC, permitted
from agent.kafka.configs.administration import within
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesMembership, UsesReads, UsesSequencer, UsesTopics
from sequencer.housekeeping.retention import BeyondHighWatermark, Moved
from sequencer.security.acl import Operation
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topics import Topic
from storage.identifiers import NO_OFFSET, Offset, Partition


class _Uses(UsesMembership, UsesReads, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_LOWEST: Final = -1


async def handle(request: DeleteRecordsRequest, context: RequestContext[_Uses]) -> DeleteRecordsResponse:
    allowed = permitted(Operation.DELETE, TOPIC, (topic.name for topic in request.topics), context)
    failure, topics = None, {}
    try:
        topics = await context.parts.topics.fresh([topic.name for topic in request.topics])
    except ADMINISTRATION_ERRORS as error:
        failure = administration_code(error)
    results = []
    for topic in request.topics:
        partitions = []
        for partition in {partition.partition_index: partition for partition in topic.partitions}.values():
            code, low_watermark = failure or ErrorCode.none, NO_OFFSET
            if topic.name not in allowed:
                code = ErrorCode.topic_authorization_failed
            elif failure is None:
                try:
                    async with within(request.timeout, context):
                        code, low_watermark = await _delete(topics.get(topic.name), partition, context)
                except ADMINISTRATION_ERRORS as error:
                    code = administration_code(error)
            partitions.append(
                DeleteRecordsPartitionResult(
                    partition_index=partition.partition_index,
                    low_watermark=i64(low_watermark),
                    error_code=code,
                )
            )
        results.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(partitions)))
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))


async def _delete(
    topic: Topic | None, asked: DeleteRecordsPartition, context: RequestContext[_Uses]
) -> tuple[ErrorCode, Offset]:
    """Returns the code and the new log start. Raises one of ADMINISTRATION_ERRORS."""
    if topic is None or not 0 <= asked.partition_index < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition, NO_OFFSET
    if not context.parts.membership.is_serving():
        return ErrorCode.not_leader_or_follower, NO_OFFSET
    if not TopicConfig.of(topic.config).is_deleted_by_retention:
        return ErrorCode.policy_violation, NO_OFFSET
    if asked.offset < _LOWEST:
        return ErrorCode.offset_out_of_range, NO_OFFSET
    key = (topic.topic_id, Partition(asked.partition_index))
    outcome = await context.parts.sequencer.retention.delete_records(*key, Offset(asked.offset))
    # This agent's readers see it with their next fetch, those of other agents with the next poll.
    context.parts.reads.coordinates.forget(key)
    if isinstance(outcome, Moved):
        return ErrorCode.none, outcome.log_start_offset
    if isinstance(outcome, BeyondHighWatermark):
        return ErrorCode.offset_out_of_range, NO_OFFSET
    context.parts.topics.forget(topic.topic_id)
    return ErrorCode.unknown_topic_or_partition, NO_OFFSET
