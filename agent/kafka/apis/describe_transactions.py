"""Kafka API 65, DescribeTransactions, v0 (KIP-664).

The start is when the open transaction's first partition or group was added, and -1 if none is open. An id is
described once, and so many partitions in one response: clients ask again for the ids that are left.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta

from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import TOPIC, TRANSACTIONAL_ID, is_silently_allowed, permitted
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id, state_of
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.commits.transactions import TransactionDescription
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId


class _Uses(UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_MOST_PARTITIONS: Final = 50_000
"""In one response, unless one transaction alone has more."""
_NO_TIME: Final = i32Timedelta.parse(timedelta(0))
_UNKNOWN: Final = datetime.fromtimestamp(0, UTC)
_NOT_OPEN: Final = datetime.fromtimestamp(-0.001, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """kio's `TransactionState` with any start: kio's type of times takes whole seconds from 1970 on only."""

    error_code: ErrorCode
    transactional_id: TransactionalId
    transaction_state: str
    transaction_timeout: i32Timedelta
    transaction_start_time: datetime
    producer_id: ProducerId
    producer_epoch: i16
    topics: tuple[TopicData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    throttle_time: i32Timedelta = NO_THROTTLE
    transaction_states: tuple[_State, ...]


async def handle(request: DescribeTransactionsRequest, context: RequestContext[_Uses]) -> _Response:
    failure: ErrorCode = ErrorCode.transactional_id_not_found
    found: dict[str, TransactionDescription] = {}
    topics: Mapping[TopicId, Topic] = {}
    allowed = permitted(Operation.DESCRIBE, TRANSACTIONAL_ID, request.transactional_ids, context)
    asked = [name for name in request.transactional_ids if name in allowed and can_be_transactional_id(name)]
    try:
        found = await context.parts.sequencer.transactions.describe(asked)
        topics = await context.parts.topics.by_id(
            {topic_id for one in found.values() for topic_id, _ in one.partitions}
        )
    except AWAY:
        failure, found = ErrorCode.coordinator_not_available, {}
    topics = {
        topic_id: topic
        for topic_id, topic in topics.items()
        if is_silently_allowed(Operation.DESCRIBE, TOPIC, topic.name, context)
    }
    states, described = [], 0
    for name in dict.fromkeys(request.transactional_ids):
        one = found.get(name)
        described += 0 if one is None else len(one.partitions)
        if name not in allowed:
            states.append(_missing(name, ErrorCode.transactional_id_authorization_failed))
        elif one is None:
            states.append(_missing(name, failure))
        elif described > _MOST_PARTITIONS and described > len(one.partitions):
            states.append(_missing(name, ErrorCode.coordinator_not_available))
        else:
            states.append(_described(one, topics))
            await asyncio.sleep(0)
    return _Response(transaction_states=tuple(states))


def _described(found: TransactionDescription, topics: Mapping[TopicId, Topic]) -> _State:
    by_topic: dict[str, list[i32]] = {}
    for topic_id, partition in found.partitions:
        if topic_id in topics:
            by_topic.setdefault(topics[topic_id].name, []).append(i32(partition))
    started = _NOT_OPEN
    if found.started_ms is not None:
        started = datetime.fromtimestamp(found.started_ms / 1000, UTC)
    return _State(
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


def _missing(transactional_id: TransactionalId, failure: ErrorCode) -> _State:
    return _State(
        error_code=failure if transactional_id else ErrorCode.invalid_request,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=_NO_TIME,
        transaction_start_time=_UNKNOWN,
        producer_id=ProducerId(-1),
        producer_epoch=i16(-1),
        topics=(),
    )
