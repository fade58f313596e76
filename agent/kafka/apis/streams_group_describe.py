"""Kafka API 89, StreamsGroupDescribe, v0 (KIP-1071).

A group that does not exist, or is of another type, is GROUP_ID_NOT_FOUND. The topology has no subtopologies
while its topics are missing or do not fit.
"""

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.streams_group_describe.v0.response import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    StreamsGroupDescribeResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i16, i32, u16

from agent.groups.events import (
    DescribedStreamsMember,
    GroupDescription,
    StreamsDescription,
    Tasks,
    TaskSets,
)
from agent.groups.streams.topology import InternalTopic
from agent.groups.streams.topology import Subtopology as KnownSubtopology
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, is_restricted, permitted
from agent.kafka.configs.authorized_operations import authorized_operations
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import HIDES_TOPICS, Described, described_groups
from agent.kafka.uses import UsesCoordinator
from sequencer.security.acl import Operation

_ANY_REPLICATION: Final = i16(0)


async def handle(
    request: StreamsGroupDescribeRequest, context: RequestContext[UsesCoordinator]
) -> StreamsGroupDescribeResponse:
    described = await described_groups(request.group_ids, context, "streams")
    return StreamsGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(
            _group(
                group_id,
                _visible(one, context),
                authorized_operations(GROUP, group_id, context, asked=request.include_authorized_operations),
            )
            for group_id, one in zip(request.group_ids, described, strict=True)
        ),
    )


def _visible(group: Described, context: RequestContext[UsesCoordinator]) -> Described:
    if not isinstance(group, GroupDescription) or not is_restricted(context):
        return group
    assert group.streams is not None
    topology = group.streams.topology
    names = frozenset[str]() if topology is None else frozenset(map(context.known_as, topology.topics))
    return group if len(permitted(Operation.DESCRIBE, TOPIC, names, context)) == len(names) else HIDES_TOPICS


def _group(group_id: str, described: Described, operations: i32) -> DescribedGroup:
    if not isinstance(described, GroupDescription):
        code, message = described
        return DescribedGroup(
            error_code=code,
            error_message=message,
            group_id=GroupId(group_id),
            group_state="",
            group_epoch=i32(0),
            assignment_epoch=i32(0),
            members=(),
        )
    assert described.streams is not None
    return DescribedGroup(
        error_code=ErrorCode.none,
        group_id=GroupId(group_id),
        group_state=described.state.value,
        group_epoch=i32(described.generation),
        assignment_epoch=i32(described.assignment_epoch),
        topology=_topology(described.streams),
        members=tuple(map(_member, described.streams.members)),
        authorized_operations=operations,
    )


def _topology(described: StreamsDescription) -> Topology | None:
    topology, counts = described.topology, described.partition_counts
    if topology is None:
        return None
    return Topology(
        epoch=i32(topology.epoch),
        subtopologies=(
            None if counts is None else tuple(_subtopology(part, counts) for part in topology.subtopologies)
        ),
    )


def _subtopology(part: KnownSubtopology, counts: Mapping[str, int]) -> Subtopology:
    return Subtopology(
        subtopology_id=part.subtopology_id,
        source_topics=tuple(map(TopicName, part.source_topics)),
        repartition_sink_topics=tuple(map(TopicName, part.repartition_sinks)),
        state_changelog_topics=tuple(_internal_topic(topic, counts) for topic in part.changelogs),
        repartition_source_topics=tuple(_internal_topic(topic, counts) for topic in part.repartition_sources),
    )


def _internal_topic(topic: InternalTopic, counts: Mapping[str, int]) -> TopicInfo:
    return TopicInfo(
        name=TopicName(topic.name),
        partitions=i32(counts[topic.name]),
        replication_factor=_ANY_REPLICATION,
        topic_configs=_pairs(topic.config),
    )


def _pairs(values: Mapping[str, str]) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(key=key, value=value) for key, value in sorted(values.items()))


def _member(member: DescribedStreamsMember) -> Member:
    endpoint = member.endpoint
    return Member(
        member_id=member.member_id,
        member_epoch=i32(member.member_epoch),
        instance_id=None,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=i32(member.topology_epoch),
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else Endpoint(host=endpoint.host, port=u16(endpoint.port)),
        client_tags=_pairs(member.client_tags),
        task_offsets=(),
        task_end_offsets=(),
        assignment=_assignment(member.assignment),
        target_assignment=_assignment(member.target_assignment),
        is_classic=False,
    )


def _assignment(tasks: Tasks) -> Assignment:
    return Assignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )


def _task_ids(sets: TaskSets) -> tuple[TaskIds, ...]:
    return tuple(
        TaskIds(subtopology_id=subtopology, partitions=tuple(map(i32, sorted(numbers))))
        for subtopology, numbers in sorted(sets.items())
    )
