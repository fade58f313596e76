"""Kafka API 1, Fetch, v4-v18 (KIP-74 limits, KIP-98 isolation, KIP-392 rack, KIP-516 topic ids from v13 on,
KIP-951 the new leader of a partition that moved).

v0-v3 carry formats older than v2 and are not served. Every request that asks for a new session (KIP-227) or
ends one is answered in full with session id 0, which clients take as "send full requests". If the client's
rack is another zone, a partition is answered with that zone's agent and without records. The answer may come
before `min_bytes` or `max_wait` are reached: when an answer behind it on its connection is ready, or the
client stops sending. Refused: a request that continues a session, because no session is ever opened;
replication, because a replica id is taken for a consumer's.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from agent.kafka.apis.fetch.fetch_response import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchResponse,
    TopicResults,
    write_response,
    write_tagged_response,
)
from agent.kafka.authorization import TOPIC, is_restricted, permitted
from agent.kafka.context import RequestContext
from agent.kafka.quota_pauses import UsesQuotaPauses, fetch_bytes_left, quota_throttle_ms
from agent.kafka.routing.current_leaders import (
    NO_EPOCH,
    OUR_EPOCH,
    epoch_failure,
    leader_elsewhere,
    node_endpoints,
)
from agent.kafka.routing.routing import (
    UsesRouting,
    moved_partitions,
    preferred_replica_of,
    refused_to_refresh,
)
from agent.kafka.transport.vectored import Encoded
from agent.kafka.uses import UsesOverload, UsesReads, UsesTopics
from agent.quotas.entities import QuotaKind
from agent.read_path.fetch_answer import PartitionResult
from agent.read_path.read_decisions import FetchPlan, PartitionPlan, ReadFailure
from agent.traffic_class import TrafficClass, class_of
from cache_ring.ring.membership import Membership
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import NodeId, Offset, Partition, TopicId


class UsesFetchPlan(UsesRouting, UsesReads, UsesTopics, Protocol):
    """The parts that planning uses."""


FINAL_EPOCH: Final = -1
"""The epoch of a request outside sessions: it asks for everything, and ends the session that it names."""
_READ_COMMITTED: Final = 1
_NOBODY: Final = TopicId(UUID(int=0))


class FetchedPartition(Protocol):
    partition: Partition
    fetch_offset: Offset
    partition_max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


class FetchedTopic(Protocol):
    topic: str = ""
    """Until version 12."""
    topic_id: TopicId | None = None
    partitions: Sequence[FetchedPartition]


class FetchRequest(Protocol):
    """A request of any version."""

    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_epoch: int = FINAL_EPOCH
    rack_id: str = ""
    topics: Sequence[FetchedTopic]


async def plan_request(request: FetchRequest, context: RequestContext[UsesFetchPlan]) -> FetchPlan:
    """Returns the plan, with the limits of this agent."""
    reads = context.parts.reads
    max_bytes = min(max(0, request.max_bytes), reads.settings.fetch_max_bytes)
    failure, topics = None, {}
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable:
        failure = ReadFailure.UNAVAILABLE
    planner = _Planner(request, context)
    partitions: list[PartitionPlan] = []
    refused = await _unreadable(request, context) if is_restricted(context) else dict[int, ReadFailure]()
    for place, asked in enumerate(request.topics):
        topic_id = _topic_id(asked, topics, context.api_version)
        if place in refused:
            partitions += _all_fail(asked.partitions, refused[place])
        elif topic_id is None:
            partitions += _all_fail(asked.partitions, failure or ReadFailure.UNKNOWN_TOPIC)
        else:
            partitions += planner.topic(reads.coordinates.interned(topic_id), asked.partitions)
    return FetchPlan(
        partitions=tuple(partitions),
        max_bytes=max(1, max_bytes),
        min_bytes=min(request.min_bytes, max_bytes),
        read_committed=request.isolation_level == _READ_COMMITTED,
    )


async def _find_topics(request: FetchRequest, context: RequestContext[UsesFetchPlan]) -> dict[str, Topic]:
    """Looks up the topics that have names in the request. Topics with ids need no lookup."""
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return {}
    return await context.parts.topics.by_name([topic.topic for topic in request.topics])


async def _unreadable(
    request: FetchRequest, context: RequestContext[UsesFetchPlan]
) -> Mapping[int, ReadFailure]:
    """Returns the places of the request's topics that the client may not read, and why."""
    names: Sequence[str | None] = [asked.topic for asked in request.topics]
    missing = ReadFailure.UNKNOWN_TOPIC
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        ids = [asked.topic_id for asked in request.topics]
        found: Mapping[TopicId, Topic] = {}
        try:
            found = await context.parts.topics.by_id({topic_id for topic_id in ids if topic_id is not None})
        except SequencerUnavailable:
            missing = ReadFailure.UNAVAILABLE
        names = [
            None if topic_id is None or topic_id not in found else found[topic_id].name for topic_id in ids
        ]
    readable = permitted(Operation.READ, TOPIC, [name for name in names if name is not None], context)
    return {
        place: missing if name is None else ReadFailure.NOT_AUTHORIZED
        for place, name in enumerate(names)
        if name is None or name not in readable
    }


def _topic_id(asked: FetchedTopic, topics: dict[str, Topic], version: int) -> TopicId | None:
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return asked.topic_id
    topic = topics.get(asked.topic)
    return None if topic is None else topic.topic_id


def _all_fail(asked: Sequence[FetchedPartition], failure: ReadFailure) -> list[PartitionPlan]:
    return [
        PartitionPlan(
            topic_id=_NOBODY,
            partition=partition.partition,
            offset=partition.fetch_offset,
            max_bytes=1,
            failure=failure,
        )
        for partition in asked
    ]


class _Planner:
    """Plans the partitions of one request."""

    def __init__(self, request: FetchRequest, context: RequestContext[UsesFetchPlan]) -> None:
        membership: Membership = context.parts.membership
        self._context = context
        self._rack = request.rack_id
        self._is_serving = membership.is_serving()
        self._follows_rack = self._rack == membership.zone
        self._is_sent_on = self._rack in membership.ring.zones and not self._follows_rack

    def topic(self, topic_id: TopicId, asked: Sequence[FetchedPartition]) -> list[PartitionPlan]:
        moved = self._moved(topic_id, asked)
        return [
            PartitionPlan(
                topic_id,
                partition.partition,
                partition.fetch_offset,
                max(1, partition.partition_max_bytes),
                self._refusal(partition, moved),
                self._preferred_replica(topic_id, partition.partition) if self._is_sent_on else None,
                partition.last_fetched_epoch > OUR_EPOCH,
            )
            for partition in asked
        ]

    def _moved(self, topic_id: TopicId, asked: Sequence[FetchedPartition]) -> Collection[int]:
        if not self._is_serving:
            return ()
        refuse = refused_to_refresh if self._follows_rack else moved_partitions
        return refuse(self._context, topic_id, [one.partition for one in asked if one.partition >= 0])

    def _refusal(self, partition: FetchedPartition, moved: Collection[int]) -> ReadFailure | None:
        if partition.partition < 0:
            return ReadFailure.UNKNOWN_PARTITION
        stale = epoch_failure(partition.current_leader_epoch)
        if stale is not None:
            return stale
        return ReadFailure.MOVED if not self._is_serving or partition.partition in moved else None

    def _preferred_replica(self, topic_id: TopicId, partition: Partition) -> NodeId | None:
        return preferred_replica_of(self._context, self._rack, topic_id, partition)


class _Uses(UsesFetchPlan, UsesOverload, UsesQuotaPauses, Protocol):
    """The parts that this API uses."""


_INITIAL_EPOCH: Final = 0
_LOOK_UP_S: Final = 0.1


async def handle(request: FetchRequest, context: RequestContext[_Uses]) -> Encoded:
    response = await _respond(request, context)
    has_tags = response.leaders or response.diverges
    write = write_tagged_response if has_tags else write_response
    buffers = write(response, context.api_version)
    size_bytes = sum(map(len, buffers))
    pause_ms = quota_throttle_ms(QuotaKind.FETCH, size_bytes, context)
    if pause_ms > response.throttle_ms:
        buffers = write(replace(response, throttle_ms=pause_ms), context.api_version)
    return Encoded(buffers=buffers, size_bytes=size_bytes)


async def _respond(request: FetchRequest, context: RequestContext[_Uses]) -> FetchResponse:
    refused = _session_error(request)
    if refused is not None:
        return FetchResponse(error_code=refused)
    reads = context.parts.reads
    most_bytes = fetch_bytes_left(context)
    if most_bytes == 0.0:
        return FetchResponse()  # its client is muted, and then asks again
    plan = await plan_request(request, context)
    if most_bytes is not None and plan.max_bytes > most_bytes:
        bytes_now = max(1, int(most_bytes))
        plan = replace(plan, max_bytes=bytes_now, min_bytes=min(plan.min_bytes, bytes_now))
    wait_s = context.remaining_s(
        context.deadline_s(request.max_wait.total_seconds(), reads.settings.fetch_max_wait_s)
    )

    async def is_bulk(topic_ids: Collection[TopicId]) -> bool:
        return await _is_bulk(topic_ids, context)

    answer = await reads.fetch(plan, wait_s, context.watch, context.connection, is_bulk)
    context.memory.when_released(answer.release)
    results = await _named(answer.results, context) if answer.has_failure else answer.results
    leaders = _leaders(results, context) if answer.has_failure else {}
    return FetchResponse(
        throttle_ms=context.parts.overload.of_fetch(),
        topics=_by_topic(request, results, context),
        read_committed=plan.read_committed,
        leaders=leaders,
        endpoints=node_endpoints(context, set(leaders.values())),
        diverges=any(partition.diverges for partition in plan.partitions),
    )


async def _is_bulk(topic_ids: Collection[TopicId], context: RequestContext[_Uses]) -> bool:
    """Topics that cannot be looked up soon have no mark: tailing must not wait for the sequencer."""
    parts = context.parts
    topics: Mapping[TopicId, Topic] = {}
    with suppress(SequencerUnavailable, TimeoutError):
        async with asyncio.timeout(_LOOK_UP_S):
            topics = await parts.topics.by_id(topic_ids)
    of_user = parts.quotas.priority(context.connection.principal.name, context.client_id or "")
    return class_of(of_user, topics.values()) is TrafficClass.BULK


def _session_error(request: FetchRequest) -> ErrorCode | None:
    """As in Kafka, epochs 0 and -1 ask for everything, whatever session the request names. There is no other
    session.
    """
    if request.session_epoch in (_INITIAL_EPOCH, FINAL_EPOCH):
        return None
    return ErrorCode.fetch_session_id_not_found


async def _named(
    results: Sequence[PartitionResult], context: RequestContext[_Uses]
) -> Sequence[PartitionResult]:
    """Distinguishes an unknown topic from an unknown partition. A topic that was created again is looked up
    again.
    """
    unknown = {result.plan.topic_id for result in results if result.failure is ReadFailure.UNKNOWN_PARTITION}
    if not unknown:
        return results
    topics = context.parts.topics
    for topic_id in unknown:
        topics.forget(topic_id)
    try:
        existing = await topics.by_id(unknown)
    except SequencerUnavailable:
        existing = {}
    return [
        PartitionResult(plan=result.plan, failure=ReadFailure.UNKNOWN_TOPIC)
        if result.failure is ReadFailure.UNKNOWN_PARTITION and result.plan.topic_id not in existing
        else result
        for result in results
    ]


def _leaders(results: Sequence[PartitionResult], context: RequestContext[_Uses]) -> Mapping[int, NodeId]:
    """Returns for each place whose partition moved which agent serves it now (KIP-951)."""
    return {
        place: leader
        for place, result in enumerate(results)
        if result.failure is ReadFailure.MOVED
        and (leader := leader_elsewhere(context, result.plan.topic_id, result.plan.partition)) is not None
    }


def _by_topic(
    request: FetchRequest, results: Sequence[PartitionResult], context: RequestContext[_Uses]
) -> list[TopicResults]:
    topics, first = [], 0
    for asked in request.topics:
        end = first + len(asked.partitions)
        topics.append(
            TopicResults(
                name=context.seen_by_client(asked.topic),
                topic_id=asked.topic_id,
                results=results[first:end],
            )
        )
        first = end
    return topics
