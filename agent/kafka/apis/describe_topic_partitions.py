"""Kafka API 75, DescribeTopicPartitions, v0 (KIP-966), paged by a cursor.

Topics come in the order of their names, at most TIDELOG_DESCRIBE_PARTITIONS_LIMIT partitions at once. Routes
are those of Metadata. There are no eligible leader replicas, because no leader can be lost. Refused: a cursor
at a topic that is not requested or below its first partition (INVALID_REQUEST for each topic). If all topics
are requested while the sequencer is away, the connection is closed: an answer without topics would say that
there are none.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, CloseConnection
from agent.kafka.authorization import TOPIC, permitted, visible_topics
from agent.kafka.configs.authorized_operations import UNKNOWN_OPERATIONS, authorized_operations
from agent.kafka.context import RequestContext
from agent.kafka.routing.current_leaders import OUR_EPOCH
from agent.kafka.routing.routing import NO_NODE, UsesRouting, route_of
from agent.kafka.uses import UsesTopics
from sequencer.security.acl import Operation
from sequencer.topics.topics import AUDIT_TOPIC, InvalidTopicName, Topic, validate_topic_name
from storage.identifiers import Partition, TopicId


class _Uses(UsesRouting, UsesTopics, Protocol):
    """The parts that this API uses."""


_FIRST: Final = 0


async def handle(
    request: DescribeTopicPartitionsRequest, context: RequestContext[_Uses]
) -> DescribeTopicPartitionsResponse:
    names: list[str] = sorted({topic.name for topic in request.topics})
    asks_for_all = not names
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < _FIRST or (names and cursor.topic_name not in names)):
        return _response([_failed(name, ErrorCode.invalid_request, context) for name in names])
    allowed = permitted(Operation.DESCRIBE, TOPIC, names, context)
    refused = [_refused(name) for name in names if name not in allowed]
    names = [name for name in names if name in allowed]
    try:
        found = await _find(names, context, asks_for_all=asks_for_all)
    except ADMINISTRATION_ERRORS as error:
        if asks_for_all:
            raise CloseConnection(f"the topics cannot be listed: {error}") from error
        return _response([*(_failed(name, administration_code(error), context) for name in names), *refused])
    start_name, start_partition = (
        ("", _FIRST) if cursor is None else (cursor.topic_name, cursor.partition_index)
    )
    asked = [name for name in (sorted(found) if asks_for_all else names) if name >= start_name]
    limit = min(context.settings.describe_partitions_limit, max(1, request.response_partition_limit))
    described: list[DescribeTopicPartitionsResponseTopic] = []
    for name in asked:
        topic = found.get(name)
        if topic is None:
            described.append(_failed(name, _unknown(name), context))
            continue
        first = start_partition if name == start_name else _FIRST
        if limit == 0:
            return _response(
                [*described, *refused], Cursor(topic_name=TopicName(name), partition_index=i32(first))
            )
        partitions = range(topic.partition_count)[first : first + limit]
        described.append(_described(topic, partitions, context))
        limit -= len(partitions)
        if first + len(partitions) < topic.partition_count:
            beyond = i32(first + len(partitions))
            return _response(
                [*described, *refused], Cursor(topic_name=TopicName(name), partition_index=beyond)
            )
    return _response([*described, *refused])


async def _find(
    names: Sequence[str], context: RequestContext[_Uses], *, asks_for_all: bool
) -> dict[str, Topic]:
    """Raises one of ADMINISTRATION_ERRORS."""
    if not asks_for_all:
        return await context.parts.topics.fresh(names) if names else {}
    topics = await visible_topics(await context.parts.topics.all(), context)
    return {topic.name: topic for topic in topics}


def _unknown(name: str) -> ErrorCode:
    try:
        validate_topic_name(name)
    except InvalidTopicName:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition


def _refused(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.topic_authorization_failed,
        name=TopicName(name),
        topic_id=None,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=UNKNOWN_OPERATIONS,
    )


def _failed(
    name: str, code: ErrorCode, context: RequestContext[_Uses]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=TopicName(name),
        topic_id=None,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=authorized_operations(TOPIC, name, context),
    )


def _described(
    topic: Topic, partitions: Iterable[int], context: RequestContext[_Uses]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.name == AUDIT_TOPIC,
        partitions=tuple(_partition(topic.topic_id, Partition(number), context) for number in partitions),
        topic_authorized_operations=authorized_operations(TOPIC, topic.name, context),
    )


def _partition(
    topic_id: TopicId, partition: Partition, context: RequestContext[_Uses]
) -> DescribeTopicPartitionsResponsePartition:
    route = route_of(context, topic_id, partition)
    replicas = tuple(BrokerId(node_id) for node_id in route.replicas)
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.leader_not_available if route.leader == NO_NODE else ErrorCode.none,
        partition_index=i32(partition),
        leader_id=BrokerId(route.leader),
        leader_epoch=i32(OUR_EPOCH),
        replica_nodes=replicas,
        isr_nodes=replicas,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )


def _response(
    topics: Sequence[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )
