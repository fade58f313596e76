"""Kafka API 35, DescribeLogDirs, v1-v4 (KIP-113, KIP-827 volume sizes).

An agent has no disk. It shows one directory, the object store, with the partitions of which it is its zone's
replica in Metadata. So each agent shows its share, and all agents together show one size per zone. A size is
the bytes of records that the log refers to. The volume's size is unknown, because a bucket has none.
"""

from collections import defaultdict
from typing import Final, Protocol

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v4.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import may_on_cluster
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, controller_of, route_of
from agent.kafka.uses import UsesResponseMemory, UsesSequencer, UsesTopics
from agent.slices import Slices
from sequencer.commits.coordinates import PartitionKey
from sequencer.security.acl import Operation


class _Uses(UsesRouting, UsesResponseMemory, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_UNKNOWN: Final = i64(-1)
_PARTITION_BYTES: Final = 600
"""Reserved while the answer is made."""


async def handle(request: DescribeLogDirsRequest, context: RequestContext[_Uses]) -> DescribeLogDirsResponse:
    if not may_on_cluster(Operation.DESCRIBE, context):
        return DescribeLogDirsResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.cluster_authorization_failed, results=()
        )
    try:
        found = await _found(request, context)
    except ADMINISTRATION_ERRORS as error:
        return _response(context, administration_code(error), ())
    slices = Slices()
    topics = []
    for name, partitions in sorted(found.items()):
        partitions.sort(key=lambda partition: partition.partition_index)
        topics.append(DescribeLogDirsTopic(name=TopicName(name), partitions=tuple(partitions)))
        await slices.look()
    return _response(context, ErrorCode.none, tuple(topics))


async def _found(
    request: DescribeLogDirsRequest, context: RequestContext[_Uses]
) -> dict[str, list[DescribeLogDirsPartition]]:
    """Returns by topic what is requested and shown by this agent. Raises one of ADMINISTRATION_ERRORS."""
    directory = context.parts.topics
    if request.topics is None:
        topics = {topic.name: topic for topic in await directory.all()}
        wanted = None
    else:
        topics = await directory.fresh([asked.topic for asked in request.topics])
        wanted = {
            (str(asked.topic), int(partition)) for asked in request.topics for partition in asked.partitions
        }
    partitions = sum(topic.partition_count for topic in topics.values())
    await context.parts.response_memory.reserve(partitions * _PARTITION_BYTES, context)
    reaches = context.connection.rights.reaches
    names = {topic.topic_id: topic.name for topic in topics.values() if reaches(topic.name)}
    sizes = await context.parts.sequencer.administration.sizes(list(names))
    found: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    slices = Slices()
    for key, size_bytes in sizes.items():
        name, number = names[key[0]], int(key[1])
        if (wanted is None or (name, number) in wanted) and _is_shown_here(key, context):
            found[name].append(
                DescribeLogDirsPartition(
                    partition_index=i32(number),
                    partition_size=i64(size_bytes),
                    offset_lag=i64(0),
                    is_future_key=False,
                )
            )
        await slices.look()
    return found


def _is_shown_here(key: PartitionKey, context: RequestContext[_Uses]) -> bool:
    return controller_of(context) in route_of(context, *key).replicas


def _response(
    context: RequestContext[_Uses], code: ErrorCode, topics: tuple[DescribeLogDirsTopic, ...]
) -> DescribeLogDirsResponse:
    store = context.settings.store_url.split("?", 1)[0]
    result = DescribeLogDirsResult(
        error_code=code, log_dir=store, topics=topics, total_bytes=_UNKNOWN, usable_bytes=_UNKNOWN
    )
    return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,))
