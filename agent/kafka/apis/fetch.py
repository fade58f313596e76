"""Kafka API 1, Fetch, v4-v18 (KIP-74 limits, KIP-98 isolation, KIP-392 rack, KIP-516 topic ids from v13 on, KIP-951
the new leader of a partition that moved).

v0-v3 carry formats older than v2 and are not served. Refused: incremental fetch sessions (KIP-227) answer session id 0,
which clients take as "send full requests"; replication, since a replica id is taken for a consumer's. A partition whose
client's rack is another zone is answered with that zone's agent and without records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18.response import EpochEndOffset, PartitionData
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64

from agent.error_codes import read_failure_code
from agent.kafka.api import ABSENT
from agent.kafka.context import RequestContext
from agent.kafka.current_leaders import CurrentLeader, NodeEndpoint, leader_elsewhere, node_endpoints
from agent.kafka.leader_epochs import NO_EPOCH, OUR_EPOCH, epoch_failure
from agent.kafka.routing import has_moved, preferred_replica_of
from agent.kafka.vectored import RecordSlices
from agent.read_path.fetch_answer import PartitionResult
from agent.read_path.plan_fetch import FetchPlan, PartitionPlan, ReadFailure
from sequencer.database import SequencerUnavailable
from sequencer.topics import Topic
from storage.identifiers import NodeId, Partition, TopicId

_FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
_READ_COMMITTED: Final = 1
_NO_TIME: Final = timedelta(0)
_NOBODY: Final = TopicId(UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicResponse:
    """What the writers of all versions read: until v12 the name, from v13 on the id."""

    topic: str
    topic_id: UUID | None
    partitions: tuple[PartitionData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    error_code: ErrorCode = ErrorCode.none
    responses: tuple[_TopicResponse, ...] = ()
    session_id: int = 0
    throttle_time: timedelta = _NO_TIME
    node_endpoints: tuple[NodeEndpoint, ...] = ()


async def handle(request: Any, context: RequestContext) -> _Response:
    refused = _session_error(request)
    if refused is not None:
        return _Response(error_code=refused)
    reads = context.parts.reads
    plan = await _plan(request, context)
    wait_s = context.remaining_s(context.deadline_s(request.max_wait.total_seconds(), reads.settings.fetch_max_wait_s))
    answer = await reads.fetch(plan, wait_s)
    context.memory.when_released(answer.release)
    results = await _named(answer.results, context)
    return _respond(request, results, context, read_committed=plan.read_committed)


def _session_error(request: Any) -> ErrorCode | None:
    """No session is ever opened, so that none can be continued."""
    if getattr(request, "session_id", 0) != 0:
        return ErrorCode.fetch_session_id_not_found
    if getattr(request, "session_epoch", NO_EPOCH) > 0:
        return ErrorCode.invalid_fetch_session_epoch
    return None


async def _plan(request: Any, context: RequestContext) -> FetchPlan:
    """What is asked, with the limits of this agent, and each partition's refusal that can be told from the request."""
    max_bytes = min(max(0, request.max_bytes), context.parts.reads.settings.fetch_max_bytes)
    failure, topics = None, {}
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable:
        failure = ReadFailure.UNAVAILABLE
    partitions = tuple(
        _partition_plan(topic_id, partition, failure, request, context)
        for asked in request.topics
        for topic_id in (_topic_id(asked, topics, context.api_version),)
        for partition in asked.partitions
    )
    return FetchPlan(
        partitions=partitions,
        max_bytes=min(max(1, request.max_bytes), max_bytes),
        min_bytes=min(request.min_bytes, max_bytes),
        read_committed=request.isolation_level == _READ_COMMITTED,
    )


def _partition_plan(
    topic_id: TopicId | None, partition: Any, failure: ReadFailure | None, request: Any, context: RequestContext
) -> PartitionPlan:
    return PartitionPlan(
        topic_id=topic_id or _NOBODY,
        partition=Partition(partition.partition),
        offset=partition.fetch_offset,
        max_bytes=max(1, partition.partition_max_bytes),
        failure=failure or _refusal(topic_id, partition, request, context),
        preferred_replica=_preferred_replica(topic_id, partition, request, context),
        diverges=getattr(partition, "last_fetched_epoch", NO_EPOCH) > OUR_EPOCH,
    )


async def _find_topics(request: Any, context: RequestContext) -> dict[str, Topic]:
    """The topics asked for by name; those asked for by id need no looking up."""
    if context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        return {}
    return await context.parts.topics.by_name([topic.topic for topic in request.topics])


def _topic_id(asked: Any, topics: dict[str, Topic], version: int) -> TopicId | None:
    if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        return None if asked.topic_id is None else TopicId(asked.topic_id)
    topic = topics.get(asked.topic)
    return None if topic is None else topic.topic_id


def _refusal(topic_id: TopicId | None, partition: Any, request: Any, context: RequestContext) -> ReadFailure | None:
    membership = context.parts.membership
    if topic_id is None:
        return ReadFailure.UNKNOWN_TOPIC
    if partition.partition < 0:
        return ReadFailure.UNKNOWN_PARTITION
    stale = epoch_failure(getattr(partition, "current_leader_epoch", NO_EPOCH))
    if stale is not None:
        return stale
    if not membership.is_serving():
        return ReadFailure.MOVED
    follows_rack = getattr(request, "rack_id", "") == membership.zone
    if not follows_rack and has_moved(context, topic_id, Partition(partition.partition)):
        return ReadFailure.MOVED
    return None


def _preferred_replica(
    topic_id: TopicId | None, partition: Any, request: Any, context: RequestContext
) -> NodeId | None:
    if topic_id is None:
        return None
    return preferred_replica_of(context, getattr(request, "rack_id", ""), topic_id, Partition(partition.partition))


async def _named(results: Sequence[PartitionResult], context: RequestContext) -> list[PartitionResult]:
    """Tell an unknown topic from an unknown partition, and let a topic that was made anew be looked up again."""
    unknown = {result.plan.topic_id for result in results if result.failure is ReadFailure.UNKNOWN_PARTITION}
    if not unknown:
        return list(results)
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


def _leaders(results: Sequence[PartitionResult], context: RequestContext) -> list[NodeId | None]:
    """Of each partition that moved, who serves it now (KIP-951)."""
    return [
        leader_elsewhere(context, result.plan.topic_id, result.plan.partition)
        if result.failure is ReadFailure.MOVED
        else None
        for result in results
    ]


def _respond(
    request: Any, results: Sequence[PartitionResult], context: RequestContext, *, read_committed: bool
) -> _Response:
    leaders = _leaders(results, context)
    in_order = zip(results, leaders, strict=True)
    return _Response(
        throttle_time=context.parts.overload.of_fetch(),
        node_endpoints=node_endpoints(context, {leader for leader in leaders if leader is not None}),
        responses=tuple(
            _TopicResponse(
                topic=getattr(asked, "topic", ""),
                topic_id=getattr(asked, "topic_id", None),
                partitions=tuple(
                    _partition(*next(in_order), by_id=hasattr(asked, "topic_id"), read_committed=read_committed)
                    for _ in asked.partitions
                ),
            )
            for asked in request.topics
        ),
    )


def _partition(result: PartitionResult, leader: NodeId | None, *, by_id: bool, read_committed: bool) -> PartitionData:
    plan = result.plan
    code = ErrorCode.none if result.failure is None else read_failure_code(result.failure, by_id=by_id)
    diverges = plan.diverges and result.failure is None
    return PartitionData(
        partition_index=i32(plan.partition),
        error_code=code,
        high_watermark=i64(result.high_watermark),
        last_stable_offset=i64(result.last_stable_offset),
        log_start_offset=i64(result.log_start_offset),
        diverging_epoch=EpochEndOffset(epoch=i32(OUR_EPOCH), end_offset=i64(result.high_watermark))
        if diverges
        else ABSENT,
        current_leader=ABSENT if leader is None else CurrentLeader(leader_id=leader),  # type: ignore[arg-type]
        snapshot_id=ABSENT,
        aborted_transactions=() if read_committed else None,
        preferred_read_replica=BrokerId(-1 if plan.preferred_replica is None else plan.preferred_replica),
        records=RecordSlices(result.chunks),  # type: ignore[arg-type] # kio's writer asks only for its length
    )
