"""Kafka API 65, DescribeTransactions, v0 (KIP-664)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import TZAware, i16, i32, i32Timedelta

from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id, state_of
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.commits.transactions import TransactionDescription
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId


class _Uses(UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_NO_TIME: Final = i32Timedelta.parse(timedelta(0))
_NEVER: Final = TZAware.parse(datetime.fromtimestamp(0, UTC))


async def handle(
    request: DescribeTransactionsRequest, context: RequestContext[_Uses]
) -> DescribeTransactionsResponse:
    failure: ErrorCode = ErrorCode.transactional_id_not_found
    found: dict[str, TransactionDescription] = {}
    topics: Mapping[TopicId, Topic] = {}
    asked = [name for name in request.transactional_ids if can_be_transactional_id(name)]
    try:
        found = await context.parts.sequencer.transactions.describe(asked)
        topics = await context.parts.topics.by_id(
            {topic_id for one in found.values() for topic_id, _ in one.partitions}
        )
    except AWAY:
        failure, found = ErrorCode.coordinator_not_available, {}
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(
            _described(found[name], topics) if name in found else _missing(name, failure)
            for name in request.transactional_ids
        ),
    )


def _described(found: TransactionDescription, topics: Mapping[TopicId, Topic]) -> TransactionState:
    by_topic: dict[str, list[i32]] = {}
    for topic_id, partition in found.partitions:
        if topic_id in topics:
            by_topic.setdefault(topics[topic_id].name, []).append(i32(partition))
    started = _NEVER
    if found.started_ms is not None:
        started = TZAware.parse(datetime.fromtimestamp(found.started_ms / 1000, UTC))
    return TransactionState(
        error_code=ErrorCode.none,
        transactional_id=TransactionalId(found.producer.transactional_id),
        transaction_state=state_of(found.last_end, is_open=found.started_ms is not None),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=found.timeout_ms)),
        transaction_start_time=started,
        producer_id=ProducerId(found.producer.producer_id),
        producer_epoch=i16(found.producer.producer_epoch),
        topics=tuple(
            TopicData(topic=TopicName(name), partitions=tuple(sorted(partitions)))
            for name, partitions in sorted(by_topic.items())
        ),
    )


def _missing(transactional_id: TransactionalId, failure: ErrorCode) -> TransactionState:
    return TransactionState(
        error_code=failure if transactional_id else ErrorCode.invalid_request,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=_NO_TIME,
        transaction_start_time=_NEVER,
        producer_id=ProducerId(-1),
        producer_epoch=i16(-1),
        topics=(),
    )
