"""Kafka API 23, OffsetForLeaderEpoch, v2-v4 (KIP-320).

There is one leader epoch, 0, which ends at the high watermark. An epoch that never existed is answered with
none (-1). The sequencer always answers, never a cache. Refused: a current leader epoch other than 0
(FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH).
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.static.primitive import i32, i64

from agent.error_codes import read_failure_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import CLUSTER, TOPIC, is_silently_allowed, permitted
from agent.kafka.context import RequestContext
from agent.kafka.routing.current_leaders import NO_EPOCH, OUR_EPOCH, epoch_failure
from agent.kafka.uses import UsesMembership, UsesSequencer, UsesTopics
from agent.read_path.read_decisions import ReadFailure
from sequencer.commits.coordinates import PartitionBounds, PartitionKey
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.security.acl import CLUSTER_NAME, Operation
from storage.identifiers import NO_OFFSET, Partition, TopicId


class _Uses(UsesMembership, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


async def handle(
    request: OffsetForLeaderEpochRequest, context: RequestContext[_Uses]
) -> OffsetForLeaderEpochResponse:
    names = frozenset(topic.topic for topic in request.topics)
    if is_silently_allowed(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME, context):
        allowed: Collection[str] = names
    else:
        allowed = permitted(Operation.DESCRIBE, TOPIC, names, context)
    failure: ReadFailure | None = None
    topic_ids: dict[str, TopicId] = {}
    bounds: Mapping[PartitionKey, PartitionBounds] = {}
    try:
        topics = await context.parts.topics.by_name(allowed)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        bounds = await context.parts.sequencer.coordinates.bounds(
            [
                (topic_ids[topic.topic], Partition(asked.partition))
                for topic in request.topics
                if topic.topic in topic_ids
                for asked in topic.partitions
            ]
        )
    except (SequencerUnavailable, CommitOutcomeUnknown):
        failure = ReadFailure.UNAVAILABLE
    if not context.parts.membership.is_serving():
        failure = ReadFailure.MOVED
    return OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _end(
                        asked,
                        topic_ids.get(topic.topic),
                        bounds,
                        failure if topic.topic in allowed else ReadFailure.NOT_AUTHORIZED,
                    )
                    for asked in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _end(
    asked: OffsetForLeaderPartition,
    topic_id: TopicId | None,
    bounds: Mapping[PartitionKey, PartitionBounds],
    failure: ReadFailure | None,
) -> EpochEndOffset:
    found = None if topic_id is None else bounds.get((topic_id, Partition(asked.partition)))
    if failure is None and found is None:
        failure = ReadFailure.UNKNOWN_PARTITION
    if failure is None:
        failure = epoch_failure(asked.current_leader_epoch)
    code = ErrorCode.none if failure is None else read_failure_code(failure, by_id=False)
    is_ours = failure is None and found is not None and asked.leader_epoch == OUR_EPOCH
    return EpochEndOffset(
        error_code=code,
        partition=i32(asked.partition),
        leader_epoch=i32(OUR_EPOCH if is_ours else NO_EPOCH),
        end_offset=i64(found.high_watermark if is_ours and found is not None else NO_OFFSET),
    )
