"""Kafka API 24, AddPartitionsToTxn, v0-v5 (KIP-98, KIP-588; KIP-890: from v4 on several transactions, which
may ask to verify instead of to add).

If a partition does not exist, none of its transaction is added: the others are answered with
OPERATION_NOT_ATTEMPTED.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta

from agent.error_codes import transaction_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import TOPIC, TRANSACTIONAL_ID, may, may_on_cluster, permitted
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id, producer_of
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.commits.coordinates import PartitionKey
from sequencer.commits.transactions import ProducerOfTransactions, TransactionRefusal
from sequencer.security.acl import Operation
from sequencer.topics.topics import AUDIT_TOPIC, Topic
from storage.identifiers import Partition, ProducerId


class _Uses(UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_FIRST_BATCHED: Final = 4
_FIRST_WITH_FENCED: Final = 2

_Place = tuple[TopicName, i32]


class AddPartitionsRequest(Protocol):
    """A request of any version. Until version 3 it names one transaction, by its own fields."""

    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = -1
    v3_and_below_producer_epoch: int = -1
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = ()
    transactions: Sequence[AddPartitionsToTxnTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneTransaction:
    """The response of v0-v3."""

    throttle_time: i32Timedelta
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...]


async def handle(
    request: AddPartitionsRequest, context: RequestContext[_Uses]
) -> AddPartitionsToTxnResponse | _OneTransaction:
    if context.api_version < _FIRST_BATCHED:
        topics = request.v3_and_below_topics
        producer = ProducerOfTransactions(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=ProducerId(request.v3_and_below_producer_id),
            producer_epoch=request.v3_and_below_producer_epoch,
        )
        codes = await _refused(producer.transactional_id, topics, context)
        if codes is None:
            codes = await _add(producer, topics, context, only_verifies=False)
        return _OneTransaction(
            throttle_time=NO_THROTTLE, results_by_topic_v3_and_below=_by_topic(topics, codes)
        )
    if not may_on_cluster(Operation.CLUSTER_ACTION, context):
        return AddPartitionsToTxnResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.cluster_authorization_failed,
            results_by_transaction=(),
        )
    results = []
    for transaction in request.transactions:
        codes = await _add(
            producer_of(transaction), transaction.topics, context, only_verifies=transaction.verify_only
        )
        results.append(
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_by_topic(transaction.topics, codes),
            )
        )
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=tuple(results)
    )


async def _refused(
    transactional_id: str, topics: Sequence[AddPartitionsToTxnTopic], context: RequestContext[_Uses]
) -> Mapping[_Place, ErrorCode] | None:
    """Returns why the client may not add these partitions, if it may not add all."""
    places = [(topic.name, partition) for topic in topics for partition in topic.partitions]
    if not may(Operation.WRITE, TRANSACTIONAL_ID, transactional_id, context):
        return dict.fromkeys(places, ErrorCode.transactional_id_authorization_failed)
    names = {topic.name for topic in topics}
    writable = set(permitted(Operation.WRITE, TOPIC, names, context)) - {AUDIT_TOPIC}
    if len(writable) == len(names):
        return None
    try:
        found = await context.parts.topics.by_name(writable)
    except AWAY:
        return dict.fromkeys(places, ErrorCode.coordinator_not_available)
    existing = {place for place in places if _exists(place, found)}
    return _some_missing(places, existing) | {
        place: ErrorCode.topic_authorization_failed for place in places if place[0] not in writable
    }


def _exists(place: _Place, topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(place[0])
    return topic is not None and 0 <= place[1] < topic.partition_count


async def _add(
    producer: ProducerOfTransactions,
    topics: Sequence[AddPartitionsToTxnTopic],
    context: RequestContext[_Uses],
    *,
    only_verifies: bool,
) -> Mapping[_Place, ErrorCode]:
    places = [(topic.name, partition) for topic in topics for partition in topic.partitions]
    if not can_be_transactional_id(producer.transactional_id):
        return dict.fromkeys(places, ErrorCode.invalid_request)
    try:
        found = await context.parts.topics.by_name({topic.name for topic in topics})
        keys: dict[_Place, PartitionKey] = {
            (name, partition): (topic.topic_id, Partition(partition))
            for name, partition in places
            if (topic := found.get(name)) is not None and 0 <= partition < topic.partition_count
        }
        if len(keys) < len(set(places)) and not only_verifies:
            return _some_missing(places, set(keys))
        added = await context.parts.sequencer.transactions.add(
            producer, list(keys.values()), only_verifies=only_verifies
        )
    except AWAY:
        return dict.fromkeys(places, ErrorCode.coordinator_not_available)
    if isinstance(added, TransactionRefusal):
        code = transaction_code(added, knows_fenced=context.api_version >= _FIRST_WITH_FENCED)
        return dict.fromkeys(places, code)
    missing = set(added.missing)
    if only_verifies:
        there = {place for place, key in keys.items() if key not in missing}
        return {place: ErrorCode.none if place in there else ErrorCode.invalid_txn_state for place in places}
    if missing:
        return _some_missing(places, {place for place, key in keys.items() if key not in missing})
    return dict.fromkeys(places, ErrorCode.none)


def _some_missing(places: Sequence[_Place], existing: set[_Place]) -> dict[_Place, ErrorCode]:
    return {
        place: ErrorCode.operation_not_attempted
        if place in existing
        else ErrorCode.unknown_topic_or_partition
        for place in places
    }


def _by_topic(
    topics: Sequence[AddPartitionsToTxnTopic], codes: Mapping[_Place, ErrorCode]
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=partition, partition_error_code=codes[topic.name, partition]
                )
                for partition in topic.partitions
            ),
        )
        for topic in topics
    )
