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

import numpy as np
from kio.schema.errors import ErrorCode
from numpy.typing import NDArray

from agent.error_codes import ProduceResult, produce_result
from agent.kafka.api import CloseConnection
from agent.kafka.apis.produce_answer import ProduceAnswer, ProduceResults, encode
from agent.kafka.apis.produce_batches import NO_TIME_MS, Accepted, AskedBatches, accept
from agent.kafka.apis.produce_request import FIRST_VERSION_WITH_TOPIC_IDS, ProduceRequest, read_request
from agent.kafka.context import RequestContext
from agent.kafka.current_leaders import node_endpoints
from agent.kafka.transactions import TRANSACTIONS_REFUSED, TRANSACTIONS_REFUSED_CODE
from agent.kafka.vectored import Encoded
from agent.settings import AgentSettings
from agent.write_path.appended import Appended
from agent.write_path.outcomes import WriteFailed, WriteFailure, WriteOutcome
from sequencer.database import SequencerUnavailable
from sequencer.topics import Topic
from storage.identifiers import TopicId
from storage.segment_batches import TOPIC

_NO_ACKS: Final = 0
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIMED_OUT: Final = WriteFailed(
    failure=WriteFailure.TIMED_OUT, message="the request's timeout was over before its commit"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Expected:
    """What the answer for the batches under way needs of them: none of their bytes."""

    numbers: NDArray[np.int64]
    topic_ids: Sequence[TopicId]
    topic_of: NDArray[np.int64]
    times_ms: NDArray[np.int64]


def decode(frame: bytes | memoryview, body_start: int, version: int, settings: AgentSettings) -> ProduceRequest:
    """Raises ValueError."""
    return read_request(frame, body_start, version, settings.max_partitions_per_request)


async def handle(request: ProduceRequest, context: RequestContext) -> Encoded | None:
    deadline_s = context.deadline_s(request.timeout_s, context.settings.max_produce_timeout_s)
    verdict = _refusal(request)
    if verdict is None:
        results = await _write(await _accept(request, context), request, deadline_s, context)
    else:
        results = ProduceResults.of(dict.fromkeys(range(len(request.records)), verdict), len(request.records))
    _count(results, context)
    if request.acks == _NO_ACKS:
        _hang_up_on_errors(results)
        return None
    leaders = {result.leader for result in results.others.values() if result.leader is not None}
    answer = ProduceAnswer(
        topics=request.topics,
        results=results,
        throttle_ms=context.parts.overload.of_produce() // _MILLISECOND,
        leaders=node_endpoints(context, leaders),
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


async def _accept(request: ProduceRequest, context: RequestContext) -> Accepted | ProduceResult:
    """Everything that may wait: finding topics, checking batches. Or what is said of all of them."""
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable as error:
        return ProduceResult(code=ErrorCode.not_enough_replicas, message=str(error))
    asked = AskedBatches(
        frame=request.take_frame(),
        topics=topics,
        counts=[len(named.partitions) for named in request.topics],
        partitions=np.array([partition for named in request.topics for partition in named.partitions], np.int64),
        places=np.array(request.records, np.int64).reshape(-1, 2),
    )
    return await accept(asked, _unknown_topic(context), context)


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
    accepted: Accepted | ProduceResult, request: ProduceRequest, deadline_s: float, context: RequestContext
) -> ProduceResults:
    count = len(request.records)
    assert context.turn is not None, "produce requests take turns"
    await context.turn.my_turn()
    if isinstance(accepted, ProduceResult):
        context.turn.done()
        return ProduceResults.of(dict.fromkeys(range(count), accepted), count)
    write_path = context.parts.write_path
    appended = write_path.append(accepted.batches)
    context.turn.done()
    # From here on the batches' bytes are the write path's alone, which lets go of them as it seals them.
    expected = _Expected(
        numbers=accepted.numbers,
        topic_ids=accepted.batches.topic_ids,
        topic_of=accepted.batches.columns[TOPIC],
        times_ms=accepted.times_ms,
    )
    results = ProduceResults.of(accepted.refusals, count)
    del accepted
    if not len(expected.numbers):
        return results
    _hold_memory(appended, context)
    if request.acks == _NO_ACKS:
        return results
    await appended.wait(context.remaining_s(deadline_s))
    context.parts.metrics.produce_seconds.observe(time.monotonic() - context.received_at_s)
    if not appended.done.done():
        write_path.give_up(appended, _TIMED_OUT)
    unassigned = np.flatnonzero(appended.base_offsets < 0).tolist()
    assert appended.others.keys() >= set(unassigned), "without an outcome nothing may be answered as written"
    results.base_offsets[expected.numbers] = appended.base_offsets
    results.log_append_times_ms[expected.numbers] = expected.times_ms
    for index, outcome in appended.others.items():
        results.others[int(expected.numbers[index])] = _result_of(outcome, expected, index, context)
    return results


def _hold_memory(appended: Appended, context: RequestContext) -> None:
    """The request's bytes stay reserved until nothing of it is on its way, also when its time is over before."""
    context.memory.retain()
    appended.done.add_done_callback(lambda _: context.memory.release())


def _result_of(outcome: WriteOutcome, expected: _Expected, index: int, context: RequestContext) -> ProduceResult:
    """Of a batch that was not written now."""
    result = produce_result(outcome)
    if result.code is ErrorCode.unknown_topic_or_partition:
        context.parts.topics.forget(expected.topic_ids[expected.topic_of[index]])
        return ProduceResult(code=_unknown_topic(context))
    gives_times = expected.times_ms[index] != NO_TIME_MS
    return result if gives_times or result.log_append_time_ms is None else result.at(None)


def _count(results: ProduceResults, context: RequestContext) -> None:
    for result in results.others.values():
        if result.code is not ErrorCode.none:
            context.parts.metrics.produce_errors.labels(result.code.name).inc()


def _hang_up_on_errors(results: ProduceResults) -> None:
    failed = next((result for result in results.others.values() if result.code is not ErrorCode.none), None)
    if failed is not None:
        raise CloseConnection(f"produce without acks failed: {failed.code.name}")
