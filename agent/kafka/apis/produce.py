"""Kafka API 0, Produce, v3-v13 (KIP-98 idempotence, KIP-467 record errors, KIP-516 topic ids from v13 on, KIP-951
the new leader of a partition that moved).

v0-v2 are advertised and not served (see api_versions.py). Refused: a transactional id; batches of format v0 and v1; a
partition named twice.
`acks` 1 and -1 mean the same: an acknowledged record is in the store and in the sequencer. With `acks` 0 nothing is
answered, and an error closes the connection, as in Kafka.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult, produce_result
from agent.kafka.api import CloseConnection
from agent.kafka.apis.produce_answer import ProduceAnswer, encode
from agent.kafka.apis.produce_batches import Accepted, AskedBatch, accept
from agent.kafka.apis.produce_request import FIRST_VERSION_WITH_TOPIC_IDS, ProduceRequest, read_request
from agent.kafka.context import RequestContext
from agent.kafka.current_leaders import node_endpoints
from agent.kafka.transactions import TRANSACTIONS_REFUSED, TRANSACTIONS_REFUSED_CODE
from agent.kafka.vectored import Encoded
from agent.settings import AgentSettings
from agent.write_path.appended import Appended
from agent.write_path.outcomes import WriteFailed, WriteFailure, WriteOutcome
from sequencer.commits import Assigned
from sequencer.database import SequencerUnavailable
from sequencer.topics import Topic
from storage.identifiers import Partition, TopicId

_NO_ACKS: Final = 0
_MILLISECOND: Final = timedelta(milliseconds=1)
_WRITTEN: Final = ProduceResult(code=ErrorCode.none)
_TIMED_OUT: Final = WriteFailed(
    failure=WriteFailure.TIMED_OUT, message="the request's timeout was over before its commit"
)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the answer for a batch under way needs of it: none of its bytes."""

    topic_id: TopicId
    log_append_time_ms: int | None


def decode(frame: bytes | memoryview, body_start: int, version: int, settings: AgentSettings) -> ProduceRequest:
    """Raises ValueError."""
    return read_request(frame, body_start, version, settings.max_partitions_per_request)


async def handle(request: ProduceRequest, context: RequestContext) -> Encoded | None:
    deadline_s = context.deadline_s(request.timeout_s, context.settings.max_produce_timeout_s)
    verdict = _refusal(request)
    if verdict is None:
        results = await _write(await _accept(request, context), request.acks, deadline_s, context)
    else:
        results = [verdict] * len(request.records)
    _count(results, context)
    if request.acks == _NO_ACKS:
        _hang_up_on_errors(results)
        return None
    answer = ProduceAnswer(
        topics=request.topics,
        results=results,
        throttle_ms=context.parts.overload.of_produce() // _MILLISECOND,
        leaders=node_endpoints(context, {result.leader for result in results if result.leader is not None}),
    )
    body = encode(answer, context.api_version)
    return Encoded(buffers=[body], size_bytes=len(body))


def _refusal(request: ProduceRequest) -> ProduceResult | None:
    """The answer for every partition, if the request as a whole cannot be served."""
    if request.transactional_id is not None:
        return ProduceResult(code=TRANSACTIONS_REFUSED_CODE, message=TRANSACTIONS_REFUSED)
    if request.acks not in (-1, 0, 1):
        return ProduceResult(code=ErrorCode.invalid_required_acks, message=f"acks {request.acks} means nothing")
    return None


async def _accept(request: ProduceRequest, context: RequestContext) -> list[Accepted | ProduceResult]:
    """Everything that may wait, for each partition in order: finding topics, checking batches."""
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable as error:
        return [ProduceResult(code=ErrorCode.not_enough_replicas, message=str(error))] * len(request.records)
    places = iter(request.records)
    asked = [
        AskedBatch(topic, Partition(partition), next(places))
        for topic, named in zip(topics, request.topics, strict=True)
        for partition in named.partitions
    ]
    return await accept(request.take_frame(), asked, _unknown_topic(context), context)


def _unknown_topic(context: RequestContext) -> ErrorCode:
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return ErrorCode.unknown_topic_id
    return ErrorCode.unknown_topic_or_partition


async def _find_topics(request: ProduceRequest, context: RequestContext) -> list[Topic | None]:
    directory = context.parts.topics
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        ids = [topic.topic_id for topic in request.topics]
        by_id = await directory.by_id({TopicId(topic_id) for topic_id in ids if topic_id is not None})
        return [None if topic_id is None else by_id.get(TopicId(topic_id)) for topic_id in ids]
    names = [topic.name for topic in request.topics]
    by_name = await directory.by_name(set(names))
    return [by_name.get(name) for name in names]


async def _write(
    accepted: Sequence[Accepted | ProduceResult], acks: int, deadline_s: float, context: RequestContext
) -> list[ProduceResult]:
    assert context.turn is not None, "produce requests take turns"
    await context.turn.my_turn()
    write_path = context.parts.write_path
    appended = write_path.append([batch.pending for batch in accepted if isinstance(batch, Accepted)])
    context.turn.done()
    # From here on the batches' bytes are the write path's alone, which lets go of them as it seals them.
    expected = [batch if isinstance(batch, ProduceResult) else _expected(batch) for batch in accepted]
    del accepted
    if not appended.outcomes:
        return [result for result in expected if isinstance(result, ProduceResult)]
    _hold_memory(appended, context)
    if acks == _NO_ACKS:
        return [result if isinstance(result, ProduceResult) else _WRITTEN for result in expected]
    await appended.wait(context.remaining_s(deadline_s))
    context.parts.metrics.produce_seconds.observe(time.monotonic() - context.received_at_s)
    if not appended.done.done():
        write_path.give_up(appended, _TIMED_OUT)
    outcomes = iter(appended.outcomes)
    return [
        result if isinstance(result, ProduceResult) else _result_of(next(outcomes), result, context)
        for result in expected
    ]


def _expected(batch: Accepted) -> _Expected:
    return _Expected(batch.pending.topic_id, batch.log_append_time_ms)


def _hold_memory(appended: Appended, context: RequestContext) -> None:
    """The request's bytes stay reserved until nothing of it is on its way, also when its time is over before."""
    context.memory.retain()
    appended.done.add_done_callback(lambda _: context.memory.release())


def _result_of(outcome: WriteOutcome | None, batch: _Expected, context: RequestContext) -> ProduceResult:
    assert outcome is not None, "all batches have an outcome once the request is done or was given up"
    result = produce_result(outcome)
    if result.code is ErrorCode.unknown_topic_or_partition:
        context.parts.topics.forget(batch.topic_id)
        return ProduceResult(code=_unknown_topic(context))
    if batch.log_append_time_ms is not None:
        return result.at(batch.log_append_time_ms) if isinstance(outcome, Assigned) else result
    return result if result.log_append_time_ms is None else result.at(None)


def _count(results: Sequence[ProduceResult], context: RequestContext) -> None:
    for result in results:
        if result.code is not ErrorCode.none:
            context.parts.metrics.produce_errors.labels(result.code.name).inc()


def _hang_up_on_errors(results: Sequence[ProduceResult]) -> None:
    failed = next((result for result in results if result.code is not ErrorCode.none), None)
    if failed is not None:
        raise CloseConnection(f"produce without acks failed: {failed.code.name}")
