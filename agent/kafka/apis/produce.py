"""Kafka API 0, Produce, v3-v13 (KIP-98 idempotence, KIP-467 record errors, KIP-516 topic ids from v13 on, KIP-951
the new leader of a partition that moved).

v0-v2 are advertised and not served (see api_versions.py). Refused: a transactional id; batches of format v0 and v1; a
partition named twice.
`acks` 1 and -1 mean the same: an acknowledged record is in the store and in the sequencer. With `acks` 0 nothing is
answered, and an error closes the connection, as in Kafka.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.produce.v13.response import BatchIndexAndErrorMessage, PartitionProduceResponse
from kio.static.primitive import i32

from agent.error_codes import ProduceResult, produce_result
from agent.kafka.api import ABSENT, CloseConnection
from agent.kafka.apis.produce_batches import Accepted, AskedBatch, accept
from agent.kafka.context import RequestContext
from agent.kafka.current_leaders import CurrentLeader, NodeEndpoint, node_endpoints
from agent.kafka.transactions import TRANSACTIONS_REFUSED, TRANSACTIONS_REFUSED_CODE
from agent.write_path.outcomes import WriteFailed, WriteFailure
from agent.write_path.write_path import OutcomeFuture
from sequencer.commits import Assigned
from sequencer.database import SequencerUnavailable
from sequencer.topics import Topic
from storage.identifiers import Partition, TopicId

_NO_ACKS: Final = 0
_FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
_NO_TIME: Final = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicResponse:
    """What the writers of all versions read: until v12 the name, from v13 on the id."""

    name: str
    topic_id: UUID | None
    partition_responses: tuple[PartitionProduceResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    responses: tuple[_TopicResponse, ...]
    throttle_time: timedelta = _NO_TIME
    node_endpoints: tuple[NodeEndpoint, ...] = ()


async def handle(request: Any, context: RequestContext) -> _Response | None:
    deadline_s = context.deadline_s(request.timeout.total_seconds(), context.settings.max_produce_timeout_s)
    verdict = _refusal(request)
    if verdict is None:
        accepted = await _accept(request, context)
        results = await _write(accepted, request.acks, deadline_s, context)
    else:
        results = [verdict] * sum(len(topic.partition_data) for topic in request.topic_data)
    _count(results, context)
    if request.acks == _NO_ACKS:
        _hang_up_on_errors(results)
        return None
    return respond(
        request,
        results,
        by_id=context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS,
        throttle_time=context.parts.overload.of_produce(),
        leaders=node_endpoints(context, {result.leader for result in results if result.leader is not None}),
    )


def _refusal(request: Any) -> ProduceResult | None:
    """The answer for every partition, if the request as a whole cannot be served."""
    if request.transactional_id is not None:
        return ProduceResult(code=TRANSACTIONS_REFUSED_CODE, message=TRANSACTIONS_REFUSED)
    if request.acks not in (-1, 0, 1):
        return ProduceResult(code=ErrorCode.invalid_required_acks, message=f"acks {request.acks} means nothing")
    return None


async def _accept(request: Any, context: RequestContext) -> list[Accepted | ProduceResult]:
    """Everything that may wait, for each partition in order: finding topics, checking batches."""
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable as error:
        refused = ProduceResult(code=ErrorCode.not_enough_replicas, message=str(error))
        return [refused for topic in request.topic_data for _ in topic.partition_data]
    asked = [
        AskedBatch(topic=topic, partition=Partition(partition.index), records=partition.records)
        for topic, topic_data in zip(topics, request.topic_data, strict=True)
        for partition in topic_data.partition_data
    ]
    return await accept(asked, _unknown_topic(context), context)


def _unknown_topic(context: RequestContext) -> ErrorCode:
    if context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        return ErrorCode.unknown_topic_id
    return ErrorCode.unknown_topic_or_partition


async def _find_topics(request: Any, context: RequestContext) -> list[Topic | None]:
    directory = context.parts.topics
    if context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        ids = [topic.topic_id for topic in request.topic_data]
        by_id = await directory.by_id({TopicId(topic_id) for topic_id in ids if topic_id is not None})
        return [by_id.get(topic_id) for topic_id in ids]
    names = [topic.name for topic in request.topic_data]
    by_name = await directory.by_name(set(names))
    return [by_name.get(name) for name in names]


async def _write(
    accepted: Sequence[Accepted | ProduceResult], acks: int, deadline_s: float, context: RequestContext
) -> list[ProduceResult]:
    assert context.turn is not None, "produce requests take turns"
    await context.turn.my_turn()
    outcomes = context.parts.write_path.append(
        [batch.pending for batch in accepted if isinstance(batch, Accepted)]
    )  # fmt: skip
    context.turn.done()
    if outcomes:
        _hold_memory(outcomes, context)
    if acks != _NO_ACKS and outcomes:
        await asyncio.wait(outcomes, timeout=context.remaining_s(deadline_s))
        context.parts.metrics.produce_seconds.observe(time.monotonic() - context.received_at_s)
    results = []
    waiting = iter(outcomes)
    for batch in accepted:
        if isinstance(batch, ProduceResult):
            results.append(batch)
        elif acks == _NO_ACKS:
            results.append(ProduceResult(code=ErrorCode.none))
            next(waiting)
        else:
            results.append(_result_of(next(waiting), batch, context))
    return results


def _hold_memory(outcomes: Sequence[OutcomeFuture], context: RequestContext) -> None:
    """The request's bytes stay reserved until all its batches have an outcome, also when its time is over before."""
    missing = len(outcomes)

    def one_less(_: object) -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            context.memory.release()

    context.memory.retain()
    for outcome in outcomes:
        outcome.add_done_callback(one_less)


def _result_of(outcome: OutcomeFuture, batch: Accepted, context: RequestContext) -> ProduceResult:
    if not outcome.done():
        outcome.set_result(
            WriteFailed(failure=WriteFailure.TIMED_OUT, message="the request's timeout was over before its commit")
        )
    result = produce_result(outcome.result())
    if result.code is ErrorCode.unknown_topic_or_partition:
        context.parts.topics.forget(batch.pending.topic_id)
        return ProduceResult(code=_unknown_topic(context))
    if batch.log_append_time_ms is None:
        return result.at(None)
    is_new = isinstance(outcome.result(), Assigned)
    return result.at(batch.log_append_time_ms) if is_new else result


def _count(results: Sequence[ProduceResult], context: RequestContext) -> None:
    for result in results:
        if result.code is not ErrorCode.none:
            context.parts.metrics.produce_errors.labels(result.code.name).inc()


def _hang_up_on_errors(results: Sequence[ProduceResult]) -> None:
    failed = next((result for result in results if result.code is not ErrorCode.none), None)
    if failed is not None:
        raise CloseConnection(f"produce without acks failed: {failed.code.name}")


def respond(
    request: Any,
    results: Sequence[ProduceResult],
    *,
    by_id: bool,
    throttle_time: timedelta = _NO_TIME,
    leaders: tuple[NodeEndpoint, ...] = (),
) -> _Response:
    result = iter(results)
    return _Response(
        throttle_time=throttle_time,
        node_endpoints=leaders,
        responses=tuple(
            _TopicResponse(
                name="" if by_id else topic.name,
                topic_id=topic.topic_id if by_id else None,
                partition_responses=tuple(
                    _partition_response(partition.index, next(result)) for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        ),
    )


def _partition_response(index: Any, result: ProduceResult) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=result.code,
        base_offset=result.base_offset,  # type: ignore[arg-type]
        log_append_time=_as_datetime(result.log_append_time_ms),  # type: ignore[arg-type]
        log_start_offset=result.log_start_offset,  # type: ignore[arg-type]
        record_errors=tuple(
            BatchIndexAndErrorMessage(batch_index=i32(record.index), batch_index_error_message=record.message)
            for record in result.records
        ),
        error_message=result.message,
        current_leader=ABSENT if result.leader is None else CurrentLeader(leader_id=result.leader),  # type: ignore[arg-type]
    )


def _as_datetime(timestamp_ms: int | None) -> datetime | None:
    return None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC)
