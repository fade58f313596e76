"""Kafka API 1, Fetch, v4-v18 (KIP-74 limits, KIP-98 isolation, KIP-392 rack, KIP-516 topic ids from v13 on, KIP-951
the new leader of a partition that moved).

v0-v3 carry formats older than v2 and are not served. Every request that asks for a new session (KIP-227) or ends one is
answered in full with session id 0, which clients take as "send full requests". Refused: to continue a session, since
none is ever opened; replication, since a replica id is taken for a consumer's. A partition whose client's rack is
another zone is answered with that zone's agent and without records. The answer may come before `min_bytes` or
`max_wait` are reached: when an answer behind it on its connection is ready, or the client stops sending.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from agent.kafka.apis.fetch.fetch_plan import FINAL_EPOCH, FetchRequest, UsesFetchPlan, plan_request
from agent.kafka.apis.fetch.fetch_response import FetchResponse, TopicResults, write_response, write_tagged_response
from agent.kafka.context import RequestContext
from agent.kafka.routing.current_leaders import leader_elsewhere, node_endpoints
from agent.kafka.transport.vectored import Encoded
from agent.kafka.uses import UsesOverload
from agent.read_path.fetch_answer import PartitionResult
from agent.read_path.read_decisions import ReadFailure
from sequencer.database.database import SequencerUnavailable
from storage.identifiers import NodeId


class _Uses(UsesFetchPlan, UsesOverload, Protocol):
    """The parts that this API uses."""


_INITIAL_EPOCH: Final = 0


async def handle(request: FetchRequest, context: RequestContext[_Uses]) -> Encoded:
    response = await _respond(request, context)
    has_tags = response.leaders or response.diverges
    write = write_tagged_response if has_tags else write_response
    buffers = write(response, context.api_version)
    return Encoded(buffers=buffers, size_bytes=sum(map(len, buffers)))


async def _respond(request: FetchRequest, context: RequestContext[_Uses]) -> FetchResponse:
    refused = _session_error(request)
    if refused is not None:
        return FetchResponse(error_code=refused)
    reads = context.parts.reads
    plan = await plan_request(request, context)
    wait_s = context.remaining_s(context.deadline_s(request.max_wait.total_seconds(), reads.settings.fetch_max_wait_s))
    answer = await reads.fetch(plan, wait_s, context.watch, context.connection)
    context.memory.when_released(answer.release)
    results = await _named(answer.results, context) if answer.has_failure else answer.results
    leaders = _leaders(results, context) if answer.has_failure else {}
    return FetchResponse(
        throttle_ms=context.parts.overload.of_fetch(),
        topics=_by_topic(request, results),
        read_committed=plan.read_committed,
        leaders=leaders,
        endpoints=node_endpoints(context, set(leaders.values())),
        diverges=any(partition.diverges for partition in plan.partitions),
    )


def _session_error(request: FetchRequest) -> ErrorCode | None:
    """As in Kafka, epochs 0 and -1 ask for everything, whatever session the request names. No other session exists."""
    if request.session_epoch in (_INITIAL_EPOCH, FINAL_EPOCH):
        return None
    return ErrorCode.fetch_session_id_not_found


async def _named(results: Sequence[PartitionResult], context: RequestContext[_Uses]) -> Sequence[PartitionResult]:
    """Tell an unknown topic from an unknown partition, and let a topic that was made anew be looked up again."""
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
    """Of each place whose partition moved, who serves it now (KIP-951)."""
    return {
        place: leader
        for place, result in enumerate(results)
        if result.failure is ReadFailure.MOVED
        and (leader := leader_elsewhere(context, result.plan.topic_id, result.plan.partition)) is not None
    }


def _by_topic(request: FetchRequest, results: Sequence[PartitionResult]) -> list[TopicResults]:
    topics, first = [], 0
    for asked in request.topics:
        end = first + len(asked.partitions)
        topics.append(
            TopicResults(
                name=asked.topic,
                topic_id=asked.topic_id,
                results=results[first:end],
            )
        )
        first = end
    return topics
