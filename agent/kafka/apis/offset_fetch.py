"""Kafka API 9, OffsetFetch, v1-v10 (KIP-88 all topics, KIP-320 leader epochs, KIP-447 stable offsets, KIP-709
many groups, KIP-848 member epochs and topic ids).

One statement reads all groups of a request. Any agent answers for any group, so no client gets
NOT_COORDINATOR. An offset that was never committed, or that is in an unknown group or topic, is -1 without an
error. An unknown topic id is an error. With `require_stable`, a partition for which an open transaction has
a pending offset is answered with UNSTABLE_OFFSET_COMMIT.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v10.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from agent.error_codes import fetch_code
from agent.groups.events import GroupFault
from agent.groups.offsets.group_offsets import Fetching
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, is_silently_allowed, may, permitted
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import topics_named
from agent.kafka.uses import UsesGroupOffsets, UsesTopics
from sequencer.database.database import SequencerUnavailable
from sequencer.groups.committed_offsets import NOT_COMMITTED, CommittedOffset, PartitionKey
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import Partition, TopicId


class _Uses(UsesGroupOffsets, UsesTopics, Protocol):
    """The parts that this API uses."""


log = logging.getLogger("tidelog")

_FIRST_WITH_GROUP_ERROR: Final = 2
_FIRST_OF_MANY_GROUPS: Final = 8
_FIRST_BY_TOPIC_ID: Final = 10


class AskedTopic(Protocol):
    name: TopicName = TopicName("")
    """Until version 9."""
    topic_id: UUID | None = None
    partition_indexes: Sequence[int]


class AskedGroup(Protocol):
    group_id: str = ""
    member_id: str | None = None
    member_epoch: int = -1
    topics: Sequence[AskedTopic] | None = None
    """None: all that have an offset."""


class OffsetFetchRequest(AskedGroup, Protocol):
    """A request of any version. Until version 7 it names one group, by its own fields."""

    groups: Sequence[AskedGroup] = ()
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """A topic of the response, as the writers of all versions read it."""

    name: TopicName
    topic_id: UUID | None
    partitions: tuple[OffsetFetchResponsePartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneGroup:
    """The response of v1-v7."""

    throttle_time: timedelta
    topics: tuple[_Topic, ...]
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One group's part of the request. `topics` None: all."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: Sequence[tuple[AskedTopic, Topic | None]] | None


_Found = Mapping[PartitionKey, CommittedOffset] | GroupFault


async def handle(
    request: OffsetFetchRequest, context: RequestContext[_Uses]
) -> OffsetFetchResponse | _OneGroup:
    asked = request.groups if context.api_version >= _FIRST_OF_MANY_GROUPS else (request,)
    may_read = [may(Operation.DESCRIBE, GROUP, group.group_id, context) for group in asked]
    permitted_groups = [group for group, is_allowed in zip(asked, may_read, strict=True) if is_allowed]
    answers = iter(await _answers(permitted_groups, context, require_stable=request.require_stable))
    groups = [
        next(answers) if is_allowed else _refused(group, GroupFault.NOT_AUTHORIZED, context)
        for group, is_allowed in zip(asked, may_read, strict=True)
    ]
    if context.api_version >= _FIRST_OF_MANY_GROUPS:
        return OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))
    group = groups[0]
    return _OneGroup(
        throttle_time=NO_THROTTLE,
        topics=group.topics,  # type: ignore[arg-type]
        error_code=group.error_code,
    )


async def _answers(
    asked: Sequence[AskedGroup], context: RequestContext[_Uses], *, require_stable: bool
) -> list[OffsetFetchResponseGroup]:
    try:
        groups = [await _with_topics(group, context) for group in asked]
        # Before the offsets: those that are committed in between are then seen.
        pending = await context.parts.group_offsets.pending(
            [group.group_id for group in groups] if require_stable else []
        )
        found = await context.parts.group_offsets.fetch([_fetching(group) for group in groups])
        by_id = await _topics_of(groups, found, context)
    except SequencerUnavailable as error:
        log.warning("offsets cannot be fetched", extra={"error": str(error)})
        return [_refused(group, GroupFault.COORDINATOR_UNAVAILABLE, context) for group in asked]
    return [
        _refused(one, answer, context)
        if isinstance(answer, GroupFault)
        else _group(
            group.group_id,
            _topics(group, answer, by_id, pending.get(group.group_id, frozenset()), context),
        )
        for one, group, answer in zip(asked, groups, found, strict=True)
    ]


async def _with_topics(group: AskedGroup, context: RequestContext[_Uses]) -> _Asked:
    topics = None
    if group.topics is not None:
        found = await topics_named(group.topics, context, by_id=context.api_version >= _FIRST_BY_TOPIC_ID)
        topics = list(zip(group.topics, found, strict=True))
    return _Asked(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        topics=topics,
    )


def _fetching(group: _Asked) -> Fetching:
    partitions = None
    if group.topics is not None:
        partitions = [
            (topic.topic_id, Partition(partition))
            for asked, topic in group.topics
            if topic is not None
            for partition in asked.partition_indexes
        ]
    return Fetching(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        partitions=partitions,
    )


async def _topics_of(
    groups: Sequence[_Asked], found: Sequence[_Found], context: RequestContext[_Uses]
) -> Mapping[TopicId, Topic]:
    """Returns the names of the topics found for groups that asked for everything."""
    topic_ids = {
        topic_id
        for group, answer in zip(groups, found, strict=True)
        if group.topics is None and not isinstance(answer, GroupFault)
        for topic_id, _ in answer
    }
    return await context.parts.topics.by_id(topic_ids) if topic_ids else {}


def _topics(
    group: _Asked,
    found: Mapping[PartitionKey, CommittedOffset],
    by_id: Mapping[TopicId, Topic],
    pending: Collection[PartitionKey],
    context: RequestContext[_Uses],
) -> tuple[_Topic, ...]:
    def one(key: PartitionKey) -> OffsetFetchResponsePartitions:
        if key in pending:
            return _partition(key[1], NOT_COMMITTED, ErrorCode.unstable_offset_commit)
        return _partition(key[1], found.get(key, NOT_COMMITTED))

    if group.topics is None:
        committed: dict[TopicId, list[OffsetFetchResponsePartitions]] = {}
        for key in sorted({*found, *pending}):
            committed.setdefault(key[0], []).append(one(key))
        return tuple(
            _Topic(name=TopicName(by_id[topic_id].name), topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in committed.items()
            if topic_id in by_id
            and is_silently_allowed(Operation.DESCRIBE, TOPIC, by_id[topic_id].name, context)
        )
    asked_names = [asked.name or ("" if topic is None else topic.name) for asked, topic in group.topics]
    visible = permitted(Operation.DESCRIBE, TOPIC, filter(None, asked_names), context)
    missing = ErrorCode.unknown_topic_id if context.api_version >= _FIRST_BY_TOPIC_ID else ErrorCode.none
    return tuple(
        _asked_topic(
            asked,
            [
                _partition(partition, NOT_COMMITTED, ErrorCode.topic_authorization_failed)
                if name and name not in visible
                else _partition(partition, NOT_COMMITTED, missing)
                if topic is None
                else one((topic.topic_id, Partition(partition)))
                for partition in asked.partition_indexes
            ],
        )
        for (asked, topic), name in zip(group.topics, asked_names, strict=True)
    )


def _refused(
    group: AskedGroup, fault: GroupFault, context: RequestContext[_Uses]
) -> OffsetFetchResponseGroup:
    """Version 1 has no error for a group, but one for each partition."""
    code = fetch_code(fault)
    topics: tuple[_Topic, ...] = ()
    if context.api_version < _FIRST_WITH_GROUP_ERROR:
        topics = tuple(
            _asked_topic(
                asked, [_partition(partition, NOT_COMMITTED, code) for partition in asked.partition_indexes]
            )
            for asked in group.topics or ()
        )
    return _group(group.group_id, topics, code)


def _group(
    group_id: str, topics: tuple[_Topic, ...], code: ErrorCode = ErrorCode.none
) -> OffsetFetchResponseGroup:  # fmt: skip
    return OffsetFetchResponseGroup(
        group_id=GroupId(group_id),
        topics=topics,  # type: ignore[arg-type]
        error_code=code,
    )


def _asked_topic(asked: AskedTopic, partitions: Sequence[OffsetFetchResponsePartitions]) -> _Topic:
    return _Topic(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=tuple(partitions),
    )


def _partition(
    partition: int, committed: CommittedOffset, code: ErrorCode = ErrorCode.none
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=i32(partition),
        committed_offset=i64(committed.offset),
        committed_leader_epoch=i32(committed.leader_epoch),
        metadata=committed.metadata,
        error_code=code,
    )
