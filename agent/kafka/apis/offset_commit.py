"""Kafka API 8, OffsetCommit, v2-v10 (KIP-211 retention by group, KIP-320 leader epochs, KIP-345 static
members, KIP-848 member epochs and topic ids).

Commits of one connection are applied in request order. A generation below 0 commits for a consumer that is no
member; the group is created if necessary. The retention time of v2-v4 is ignored. Refused: an empty group id
(INVALID_GROUP_ID; Kafka accepts it for old clients).
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition
from kio.schema.offset_commit.v10.response import OffsetCommitResponse, OffsetCommitResponsePartition
from kio.schema.types import TopicName

from agent.error_codes import commit_code, group_code
from agent.groups.events import GroupFault
from agent.groups.offsets.group_offsets import Committing
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, may, permitted
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import topics_named
from agent.kafka.uses import UsesCoordinator, UsesGroupOffsets, UsesGroupSettings, UsesTopics
from sequencer.database.database import SequencerUnavailable
from sequencer.groups.committed_offsets import CommittedOffset, PartitionKey
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition


class _Uses(UsesCoordinator, UsesGroupOffsets, UsesGroupSettings, UsesTopics, Protocol):
    """The parts that this API uses."""


log = logging.getLogger("tidelog")

_FIRST_BY_TOPIC_ID: Final = 10
_FIRST_WITH_GROUP_NOT_FOUND: Final = 9

_Judged = tuple[PartitionKey, CommittedOffset] | ErrorCode


class CommittedTopic(Protocol):
    name: TopicName = TopicName("")
    """Until version 9."""
    topic_id: UUID | None = None
    partitions: Sequence[OffsetCommitRequestPartition]


class OffsetCommitRequest(Protocol):
    """A request of any version."""

    group_id: str
    member_id: str
    group_instance_id: str | None = None
    generation_id_or_member_epoch: int
    topics: Sequence[CommittedTopic]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """A topic of the response, as the writers of all versions read it."""

    name: TopicName
    topic_id: UUID | None
    partitions: tuple[OffsetCommitResponsePartition, ...]


async def handle(request: OffsetCommitRequest, context: RequestContext[_Uses]) -> OffsetCommitResponse:
    if not may(Operation.READ, GROUP, request.group_id, context):
        code = group_code(GroupFault.NOT_AUTHORIZED)
        return _respond(request, [[code] * len(one.partitions) for one in request.topics])
    try:
        topics = await topics_named(request.topics, context, by_id=context.api_version >= _FIRST_BY_TOPIC_ID)
    except SequencerUnavailable as error:
        log.warning("offsets cannot be committed", extra={"group": request.group_id, "error": str(error)})
        return _respond(
            request, [[ErrorCode.coordinator_not_available] * len(one.partitions) for one in request.topics]
        )
    names = [
        asked.name or ("" if topic is None else topic.name)
        for asked, topic in zip(request.topics, topics, strict=True)
    ]
    readable = permitted(Operation.READ, TOPIC, filter(None, names), context)
    judged: list[list[_Judged]] = [
        [_judge(partition, topic, context) for partition in asked.partitions]
        if not name or name in readable
        else [ErrorCode.topic_authorization_failed] * len(asked.partitions)
        for asked, topic, name in zip(request.topics, topics, names, strict=True)
    ]
    offsets = [one for topic in judged for one in topic if not isinstance(one, ErrorCode)]
    fault = await _commit(request, offsets, context) if offsets else None
    code = commit_code(fault, says_group_not_found=context.api_version >= _FIRST_WITH_GROUP_NOT_FOUND)
    return _respond(
        request, [[one if isinstance(one, ErrorCode) else code for one in topic] for topic in judged]
    )


def _judge(
    partition: OffsetCommitRequestPartition, topic: Topic | None, context: RequestContext[_Uses]
) -> _Judged:
    if topic is None:
        by_id = context.api_version >= _FIRST_BY_TOPIC_ID
        return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    if not 0 <= partition.partition_index < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    metadata = partition.committed_metadata or ""
    if len(metadata.encode()) > context.parts.group_settings.offset_metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    committed = CommittedOffset(
        offset=Offset(partition.committed_offset),
        leader_epoch=partition.committed_leader_epoch,
        metadata=metadata,
    )
    return (topic.topic_id, Partition(partition.partition_index)), committed


async def _commit(
    request: OffsetCommitRequest,
    offsets: Sequence[tuple[PartitionKey, CommittedOffset]],
    context: RequestContext[_Uses],
) -> GroupFault | None:
    committing = Committing(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation_or_epoch=request.generation_id_or_member_epoch,
    )
    running = await context.parts.coordinator.group(
        request.group_id, create=committing.generation_or_epoch < 0
    )
    assert context.turn is not None, "offset commits take turns"
    await context.turn.my_turn()
    if isinstance(running, GroupFault):
        return running
    taken = context.parts.group_offsets.commit(running, committing, offsets)
    context.turn.done()
    return await context.parts.group_offsets.outcome(taken, running, committing)


def _respond(request: OffsetCommitRequest, codes: Iterable[Iterable[ErrorCode]]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            _Topic(  # type: ignore[misc]  # written by attribute, see agent/kafka/api.py
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition, code in zip(asked.partitions, topic_codes, strict=True)
                ),
            )
            for asked, topic_codes in zip(request.topics, codes, strict=True)
        ),
    )
