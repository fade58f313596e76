"""Kafka API 69, ConsumerGroupDescribe, v0-v1 (KIP-848; member types from v1 on, KIP-1099).

A group that does not exist, or has the classic protocol, is GROUP_ID_NOT_FOUND. Partitions of deleted topics
are left out.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v1.response import (
    Assignment as AssignmentAnswer,
)
from kio.schema.consumer_group_describe.v1.response import (
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

from agent.groups.events import Assignment, DescribedMember, GroupDescription
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, is_restricted, permitted
from agent.kafka.configs.authorized_operations import authorized_operations
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import HIDES_TOPICS, Described, described_groups
from agent.kafka.uses import UsesCoordinator, UsesTopics
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId


class _Uses(UsesCoordinator, UsesTopics, Protocol):
    """The parts that this API uses."""


log = logging.getLogger("tidelog")

_CLASSIC_MEMBER: Final = i8(0)
_CONSUMER_MEMBER: Final = i8(1)

_Topics = Mapping[TopicId, Topic]


async def handle(
    request: ConsumerGroupDescribeRequest, context: RequestContext[_Uses]
) -> ConsumerGroupDescribeResponse:
    described = await described_groups(request.group_ids, context, "consumer")
    try:
        topics = await _topics(described, context)
    except SequencerUnavailable as error:
        log.warning("groups cannot be described", extra={"error": str(error)})
        topics, described = {}, [(ErrorCode.coordinator_not_available, None)] * len(described)
    return ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(
            _group(
                group_id,
                _visible(one, topics, context),
                topics,
                authorized_operations(GROUP, group_id, context, asked=request.include_authorized_operations),
            )
            for group_id, one in zip(request.group_ids, described, strict=True)
        ),
    )


def _visible(group: Described, topics: _Topics, context: RequestContext[_Uses]) -> Described:
    if not isinstance(group, GroupDescription) or not is_restricted(context):
        return group
    names = {topics[topic_id].name for topic_id in _assigned(group) if topic_id in topics}
    return group if len(permitted(Operation.DESCRIBE, TOPIC, names, context)) == len(names) else HIDES_TOPICS


def _assigned(group: GroupDescription) -> set[TopicId]:
    return {
        topic_id for member in group.members for topic_id in (*member.assignment, *member.target_assignment)
    }


async def _topics(described: Sequence[Described], context: RequestContext[_Uses]) -> _Topics:
    topic_ids = {
        topic_id
        for group in described
        if isinstance(group, GroupDescription)
        for topic_id in _assigned(group)
    }
    return await context.parts.topics.by_id(topic_ids) if topic_ids else {}


def _group(group_id: str, described: Described, topics: _Topics, operations: i32) -> DescribedGroup:
    if not isinstance(described, GroupDescription):
        code, message = described
        return DescribedGroup(
            error_code=code,
            error_message=message,
            group_id=GroupId(group_id),
            group_state="",
            group_epoch=i32(0),
            assignment_epoch=i32(0),
            assignor_name="",
            members=(),
        )
    return DescribedGroup(
        error_code=ErrorCode.none,
        group_id=GroupId(group_id),
        group_state=described.state.value,
        group_epoch=i32(described.generation),
        assignment_epoch=i32(described.assignment_epoch),
        assignor_name=described.protocol,
        members=tuple(_member(member, topics) for member in described.members),
        authorized_operations=operations,
    )


def _member(member: DescribedMember, topics: _Topics) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=i32(member.member_epoch),
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(map(TopicName, member.subscribed_topics)),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(member.assignment, topics),
        target_assignment=_assignment(member.target_assignment, topics),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(assignment: Assignment, topics: _Topics) -> AssignmentAnswer:
    return AssignmentAnswer(
        topic_partitions=tuple(
            TopicPartitions(
                topic_id=topic_id,
                topic_name=TopicName(topics[topic_id].name),
                partitions=tuple(i32(number) for number in sorted(partitions)),
            )
            for topic_id, partitions in sorted(assignment.items())
            if topic_id in topics
        )
    )
