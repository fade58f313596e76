"""Kafka API 61, DescribeProducers, v0 (KIP-664): the idempotent producers that the log knows of each
partition.

Per partition these are the producers of the oldest open transactions, and the latest producers, at most
TIDELOG_DESCRIBE_PRODUCERS_LIMIT of either. A partition named twice is described once.
"""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i32, i64

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import TOPIC, permitted
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.commits.coordinates import PartitionKey
from sequencer.security.acl import Operation
from sequencer.topics.topics import ActiveProducer
from storage.identifiers import NO_OFFSET, Offset, Partition
from storage.identifiers import ProducerId as LogProducerId


class _Uses(UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_NO_EPOCH: Final = -1

_Found = tuple[tuple[ActiveProducer, ...], Mapping[LogProducerId, Offset]]
"""The producers of a partition, and where their open transactions begin."""


async def handle(
    request: DescribeProducersRequest, context: RequestContext[_Uses]
) -> DescribeProducersResponse:
    failure: ErrorCode = ErrorCode.unknown_topic_or_partition
    message: str | None = None
    found: dict[tuple[str, int], _Found] = {}
    names = frozenset(topic.name for topic in request.topics)
    allowed = permitted(Operation.READ, TOPIC, names, context)
    try:
        found = await _find(request, allowed, context)
    except ADMINISTRATION_ERRORS as error:
        failure, message = administration_code(error), str(error)
    asked: dict[TopicName, dict[i32, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TopicResponse(
                name=name,
                partitions=tuple(
                    _partition(index, found.get((name, index)), failure, message)
                    if name in allowed
                    else _partition(index, None, ErrorCode.topic_authorization_failed, None)
                    for index in indexes
                ),
            )
            for name, indexes in asked.items()
        ),
    )


async def _find(
    request: DescribeProducersRequest, allowed: Collection[str], context: RequestContext[_Uses]
) -> dict[tuple[str, int], _Found]:
    """Raises one of ADMINISTRATION_ERRORS."""
    topics = await context.parts.topics.fresh(allowed)
    keys: dict[tuple[str, int], PartitionKey] = {
        (topic.name, index): (topics[topic.name].topic_id, Partition(index))
        for topic in request.topics
        if topic.name in topics
        for index in topic.partition_indexes
    }
    sequencer = context.parts.sequencer
    found = await sequencer.administration.active_producers(
        list(set(keys.values())), context.settings.describe_producers_limit
    )
    open_from = {key: await sequencer.transactions.open_offsets(key) for key in found}
    return {name: (found[key], open_from[key]) for name, key in keys.items() if key in found}


def _partition(
    index: i32, found: _Found | None, failure: ErrorCode, message: str | None
) -> PartitionResponse:
    producers, open_from = found or (None, {})
    return PartitionResponse(
        partition_index=index,
        error_code=failure if producers is None else ErrorCode.none,
        error_message=message if producers is None else None,
        active_producers=tuple(
            ProducerState(
                producer_id=ProducerId(producer.producer_id),
                producer_epoch=i32(producer.producer_epoch),
                last_sequence=i32(producer.last_sequence),
                last_timestamp=i64(producer.last_timestamp_ms),
                coordinator_epoch=i32(_NO_EPOCH),
                current_txn_start_offset=i64(open_from.get(producer.producer_id, NO_OFFSET)),
            )
            for producer in producers or ()
        ),
    )
