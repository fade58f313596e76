"""Kafka API 47, OffsetDelete, v0 (KIP-496).

Offsets that were never committed are deleted without an error. Refused: offsets of topics that a member
subscribes to (GROUP_SUBSCRIBED_TO_TOPIC), and those of a group whose members' subscriptions cannot be read
(NON_EMPTY_GROUP).
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.static.primitive import i32

from agent.error_codes import group_code
from agent.groups.coordinator.running_group import RunningGroup
from agent.groups.events import GroupFault
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, may, permitted
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator, UsesGroupOffsets, UsesTopics
from sequencer.database.database import SequencerUnavailable
from sequencer.groups.committed_offsets import PartitionKey
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import Partition


class _Uses(UsesCoordinator, UsesGroupOffsets, UsesTopics, Protocol):
    """The parts that this API uses."""


log = logging.getLogger("tidelog")

_Judged = PartitionKey | ErrorCode


async def handle(request: OffsetDeleteRequest, context: RequestContext[_Uses]) -> OffsetDeleteResponse:
    if not may(Operation.DELETE, GROUP, request.group_id, context):
        return _refused(GroupFault.NOT_AUTHORIZED)
    running = await context.parts.coordinator.group(request.group_id)
    if isinstance(running, GroupFault):
        return _refused(running)
    refused = running.machine.check_offset_delete()
    if refused is not None:
        return _refused(refused)
    try:
        topics = await context.parts.topics.by_name({asked.name for asked in request.topics})
    except SequencerUnavailable as error:
        log.warning("offsets cannot be deleted", extra={"group": request.group_id, "error": str(error)})
        return _refused(GroupFault.COORDINATOR_UNAVAILABLE)
    readable = permitted(Operation.READ, TOPIC, (asked.name for asked in request.topics), context)
    judged: list[list[_Judged]] = [
        [
            _judge(
                partition.partition_index,
                context.seen_by_client(asked.name),
                topics.get(asked.name),
                running,
            )
            for partition in asked.partitions
        ]
        if asked.name in readable
        else [ErrorCode.topic_authorization_failed] * len(asked.partitions)
        for asked in request.topics
    ]
    keys = {one for topic in judged for one in topic if not isinstance(one, ErrorCode)}
    fault = await context.parts.group_offsets.delete(running, keys) if keys else None
    if fault is not None:
        return _refused(fault)
    return OffsetDeleteResponse(
        error_code=ErrorCode.none,
        throttle_time=NO_THROTTLE,
        topics=tuple(_topic(asked, codes) for asked, codes in zip(request.topics, judged, strict=True)),
    )


def _judge(partition: int, seen_name: str, topic: Topic | None, running: RunningGroup) -> _Judged:
    """`seen_name`: the topic's name as the group's clients know it."""
    if topic is None or not 0 <= partition < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    if running.machine.subscribed(seen_name):
        return group_code(GroupFault.SUBSCRIBED_TO_TOPIC)
    return topic.topic_id, Partition(partition)


def _topic(asked: OffsetDeleteRequestTopic, judged: Iterable[_Judged]) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=asked.name,
        partitions=tuple(
            OffsetDeleteResponsePartition(
                partition_index=i32(partition.partition_index),
                error_code=one if isinstance(one, ErrorCode) else ErrorCode.none,
            )
            for partition, one in zip(asked.partitions, judged, strict=True)
        ),
    )


def _refused(fault: GroupFault) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=group_code(fault), throttle_time=NO_THROTTLE, topics=())
