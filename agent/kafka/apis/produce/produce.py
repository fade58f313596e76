"""Kafka API 0, Produce, v3-v13 (KIP-98 idempotence, KIP-467 record errors, KIP-516 topic ids from v13 on,
KIP-890 transactions, KIP-951 the new leader of a partition that moved).

v0-v2 are advertised and not served (see ApiVersions). `acks` 1 and -1 mean the same: an acknowledged record
is in the store and in the sequencer. With `acks` 0 there is no answer, and an error closes the connection, as
in Kafka. From v12 on, transactional batches add their partition to the transaction (KIP-890). Refused:
transactional batches without a transactional id, or whose producer id belongs to another one; batches of
format v0 and v1; a partition named twice.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, Protocol

import numpy as np
from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult, produce_result
from agent.kafka.api import CloseConnection, Respond
from agent.kafka.apis.produce.produce_batches import (
    Accepted,
    AskedBatches,
    ClientGone,
    UsesChecks,
    accept,
    accept_lone,
    without,
)
from agent.kafka.apis.produce.produce_bytes import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    ProduceRequest,
    ProduceResponse,
    ProduceResults,
    WrittenBatch,
    encode,
    read_request,
)
from agent.kafka.apis.produce.seal_batches import UsesSeals, sealed
from agent.kafka.authorization import TOPIC as TOPIC_RESOURCE
from agent.kafka.authorization import TRANSACTIONAL_ID, is_restricted, may, note_refusal, permitted
from agent.kafka.context import RequestContext
from agent.kafka.quota_pauses import UsesQuotaPauses, quota_throttle_ms
from agent.kafka.routing.current_leaders import node_endpoints
from agent.kafka.transport.vectored import Encoded
from agent.kafka.uses import (
    UsesOverload,
    UsesRequestMemory,
    UsesTopics,
    UsesTransactionalIds,
    UsesWritePath,
)
from agent.quotas.entities import QuotaKind
from agent.settings import AgentSettings
from agent.tenants.tenant import Tenant
from agent.traffic_class import BULK_FOR_S, TrafficClass, class_of
from agent.write_path.appended_batches import Appended
from agent.write_path.outcomes import Unassigned, WriteFailed, WriteFailure
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Operation
from sequencer.topics.topic_key_cache import is_sealing
from sequencer.topics.topics import AUDIT_TOPIC, Topic
from storage.batches.batch_validation import NO_TIMESTAMP_MS
from storage.batches.produced_batches import compressed
from storage.identifiers import ProducerId, TopicId
from storage.segments.segment_batches import PRODUCER_ID, TOPIC, TRANSACTION, BatchTransaction


class _Uses(
    UsesChecks,
    UsesSeals,
    UsesOverload,
    UsesQuotaPauses,
    UsesRequestMemory,
    UsesTopics,
    UsesTransactionalIds,
    UsesWritePath,
    Protocol,
):
    """The parts that this API uses."""


_NO_ACKS: Final = 0
_FIRST_VERSION_THAT_ADDS_PARTITIONS: Final = 12
_TOO_LATE: Final = ProduceResult(
    code=ErrorCode.not_enough_replicas,
    message="nothing was written: earlier writes wait for longer than an interactive one may",
)
_WAITED_FOR_LANE: Final = ProduceResult(
    code=ErrorCode.request_timed_out,
    message="nothing was written: its timeout was over before earlier writes of its connection ended",
)
_TIMED_OUT: Final = WriteFailed(
    failure=WriteFailure.TIMED_OUT, message="the request's timeout was over before its commit"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _UnderWay:
    """Batches that the write path has, and what the response needs to know of them, without their bytes."""

    appended: Appended
    numbers: Sequence[int]
    topic_ids: Sequence[TopicId]
    topic_of: Sequence[int]
    times_ms: Sequence[int]
    refusals: Mapping[int, ProduceResult]


def _of_tenant(request: ProduceRequest, tenant: Tenant) -> ProduceRequest:
    """Returns the request with the names that the cluster knows."""
    transactional_id = request.transactional_id
    return replace(
        request,
        transactional_id=None if transactional_id is None else tenant.qualified(transactional_id),
        topics=tuple([replace(topic, name=tenant.qualified(topic.name)) for topic in request.topics]),
    )


def decode(
    frame: bytes | memoryview, body_start: int, version: int, settings: AgentSettings
) -> ProduceRequest:
    """Raises ValueError."""
    return read_request(frame, body_start, version, settings.max_partitions_per_request)


def begin(request: ProduceRequest, context: RequestContext[_Uses], respond: Respond) -> bool:
    """Handles a request of one small batch that is certainly accepted and waits only for its commit."""
    assert context.turn is not None, "produce requests take turns"
    if context.tenant is not None:
        return False
    if len(request.records) != 1 or request.acks == _NO_ACKS or _refusal(request) or not context.turn.is_next:
        return False
    named, [(start, end)] = request.topics[0], request.records
    topic = context.parts.topics.known(named.name if named.topic_id is None else TopicId(named.topic_id))
    if topic is None or not named.partitions or is_sealing(topic) or topic.name == AUDIT_TOPIC:
        return False
    if not _is_allowed(request, topic, context):
        return False
    traffic = _class_of((topic,), context)
    if _must_wait(traffic, context) or _is_refused(traffic, request, context):
        return False
    accepted = accept_lone(topic, named.partitions[0], request.frame[start:end], context)
    if accepted is None or not _is_known_to_fit(accepted, request, context):
        return False
    request.take_frame()
    under_way = _hand_over(accepted, traffic, request, context)
    call_soon = asyncio.get_running_loop().call_soon

    def answer() -> None:
        respond(lambda: _respond(request, _results(under_way, context), context))

    # Readers of the commit, which were woken before, come first.
    under_way.appended.when_answered(lambda: call_soon(answer))
    return True


async def handle(request: ProduceRequest, context: RequestContext[_Uses]) -> Encoded | None:
    if context.tenant is not None:
        request = _of_tenant(request, context.tenant)
    verdict = _refusal(request) or _transaction_refusal(request, context)
    if verdict is None:
        try:
            accepted, traffic = await _accept(request, context)
            results = await _write(accepted, traffic, request, context)
        except ClientGone:
            raise CloseConnection("its client hung up before its batches were checked") from None
    else:
        results = _all(request, verdict)
    if request.acks == _NO_ACKS:
        quota_throttle_ms(QuotaKind.PRODUCE, 0, context)
        _count(results, context)
        _hang_up_on_errors(results)
        return None
    return _respond(request, results, context)


def _respond(request: ProduceRequest, results: ProduceResults, context: RequestContext[_Uses]) -> Encoded:
    _count(results, context)
    leaders = {result.leader for result in results.others.values() if result.leader is not None}
    topics = request.topics
    if context.tenant is not None:
        topics = tuple([replace(topic, name=context.tenant.local(topic.name)) for topic in topics])
    response = ProduceResponse(
        topics=topics,
        results=results,
        throttle_ms=max(
            context.parts.overload.of_produce(is_bulk=context.connection.is_bulk),
            quota_throttle_ms(QuotaKind.PRODUCE, 0, context),
        ),
        leaders=node_endpoints(context, leaders),
    )
    body = encode(response, context.api_version)
    return Encoded(buffers=[body], size_bytes=len(body))


def _refusal(request: ProduceRequest) -> ProduceResult | None:
    """Returns the response for every partition if the whole request cannot be served."""
    if request.acks not in (-1, 0, 1):
        return ProduceResult(
            code=ErrorCode.invalid_required_acks, message=f"acks {request.acks} is not valid"
        )
    return None


def _is_allowed(request: ProduceRequest, topic: Topic, context: RequestContext[_Uses]) -> bool:
    rights, transactional_id = context.connection.rights, request.transactional_id
    return rights.is_unrestricted or (
        rights.allows(Operation.WRITE, TOPIC_RESOURCE, topic.name)
        and (transactional_id is None or rights.allows(Operation.WRITE, TRANSACTIONAL_ID, transactional_id))
    )


def _transaction_refusal(request: ProduceRequest, context: RequestContext[_Uses]) -> ProduceResult | None:
    """As in Kafka, a transactional batch counts before any other fault of the request."""
    transactional_id = request.transactional_id
    if (
        not is_restricted(context)
        or transactional_id is None
        or not any(map(request.is_transactional, range(len(request.records))))
        or may(Operation.WRITE, TRANSACTIONAL_ID, transactional_id, context)
    ):
        return None
    return ProduceResult(code=ErrorCode.transactional_id_authorization_failed)


def _unauthorized(
    request: ProduceRequest, topics: Sequence[Topic | None], context: RequestContext[_Uses]
) -> Collection[int]:
    """Returns the places of the topics that the client may not write, whether they exist or not. Ids of
    topics that do not exist have no name to be checked. No client writes the audit trail.
    """
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    names = [
        (None if topic is None else topic.name) if by_id else asked.name
        for asked, topic in zip(request.topics, topics, strict=True)
    ]
    if not is_restricted(context) and AUDIT_TOPIC not in names:
        return ()
    known = [name for name in names if name is not None and name != AUDIT_TOPIC]
    writable = permitted(Operation.WRITE, TOPIC_RESOURCE, known, context)
    if AUDIT_TOPIC in names:
        note_refusal(Operation.WRITE, TOPIC_RESOURCE, AUDIT_TOPIC, context)
    return {place for place, name in enumerate(names) if name is not None and name not in writable}


def _class_of(topics: Sequence[Topic | None], context: RequestContext[_Uses]) -> TrafficClass:
    """Notes on the connection if it is bulk now."""
    connection, parts = context.connection, context.parts
    user = connection.principal.name
    traffic = class_of(parts.quotas.priority(user, context.client_id or ""), topics)
    if traffic is TrafficClass.BULK:
        connection.bulk_until_s = context.received_at_s + BULK_FOR_S
    elif context.received_at_s < connection.bulk_until_s:
        traffic = TrafficClass.BULK
    # What waits for bulk holds no memory that others need.
    is_bulk = traffic is TrafficClass.BULK or connection.lane.has_bulk
    if is_bulk or connection.is_bulk:
        connection.is_bulk = is_bulk
        _count_memory(context, is_bulk=is_bulk)
    return traffic


def _count_memory(context: RequestContext[_Uses], *, is_bulk: bool) -> None:
    parts = context.parts
    context.memory.count_in(parts.bulk_memory if is_bulk else parts.request_memory)


def _must_wait(traffic: TrafficClass, context: RequestContext[_Uses]) -> bool:
    """True if earlier batches of the connection are still on their way in the other lane."""
    return context.connection.lane.must_wait(is_bulk=traffic is TrafficClass.BULK)


def _is_refused(traffic: TrafficClass, request: ProduceRequest, context: RequestContext[_Uses]) -> bool:
    """True if it is to fail fast. A client that wants no answer would not send its records again."""
    return (
        traffic is TrafficClass.INTERACTIVE
        and request.acks != _NO_ACKS
        and context.parts.write_path.wait_s() > context.settings.interactive_wait_s
    )


def _deadline_s(traffic: TrafficClass, request: ProduceRequest, context: RequestContext[_Uses]) -> float:
    """Returns until when a client that wants an answer waits for it."""
    longest_s = context.settings.max_produce_timeout_s
    if traffic is TrafficClass.INTERACTIVE:
        longest_s = min(longest_s, context.settings.interactive_wait_s)
    return context.deadline_s(request.timeout_s, longest_s)


async def _accept(
    request: ProduceRequest, context: RequestContext[_Uses]
) -> tuple[Accepted | ProduceResult, TrafficClass]:
    """Does everything that may wait: finds topics, checks batches. Returns one result for all if the request
    is refused. Raises ClientGone.
    """
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable as error:
        return ProduceResult(code=ErrorCode.not_enough_replicas, message=str(error)), TrafficClass.NORMAL
    traffic = _class_of(topics, context)
    if _is_refused(traffic, request, context):
        context.parts.metrics.interactive_refused.inc()
        return _TOO_LATE, traffic
    return await _check(topics, traffic, request, context), traffic


async def _check(
    topics: list[Topic | None],
    traffic: TrafficClass,
    request: ProduceRequest,
    context: RequestContext[_Uses],
) -> Accepted | ProduceResult:
    unauthorized = _unauthorized(request, topics, context)
    if unauthorized:
        topics = [None if number in unauthorized else topic for number, topic in enumerate(topics)]
    frame, places = request.take_frame(), np.array(request.records, np.int64).reshape(-1, 2)
    asked = AskedBatches(
        frame=frame,
        topics=topics,
        unauthorized=unauthorized,
        counts=[len(named.partitions) for named in request.topics],
        partitions=np.array(
            [partition for named in request.topics for partition in named.partitions], np.int64
        ),
        places=places,
        are_compressed=compressed(frame, places),
    )
    # A client that wants no answer may hang up as soon as it has sent.
    has_acks = request.acks != _NO_ACKS
    longest_s = context.settings.max_produce_timeout_s
    deadline_s = (
        _deadline_s(traffic, request, context) if has_acks else context.deadline_s(longest_s, longest_s)
    )
    try:
        accepted = await accept(asked, _unknown_topic(context), context, deadline_s, needs_client=has_acks)
    except TimeoutError:
        return ProduceResult(
            code=ErrorCode.request_timed_out,
            message="the request's timeout was over before its batches were checked",
        )
    if isinstance(accepted, ProduceResult):
        return accepted
    misfit = await _misfit(accepted, request, context)
    to_seal = {topic.topic_id for topic in topics if topic is not None and is_sealing(topic)}
    if misfit is not None:
        # Partitions that were refused before keep their own refusals.
        return without(accepted, dict.fromkeys(range(len(accepted.batches.topic_ids)), misfit))
    return await sealed(accepted, to_seal, context) if to_seal else accepted


def _unknown_topic(context: RequestContext[_Uses]) -> ErrorCode:
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return ErrorCode.unknown_topic_id
    return ErrorCode.unknown_topic_or_partition


async def _find_topics(request: ProduceRequest, context: RequestContext[_Uses]) -> list[Topic | None]:
    directory = context.parts.topics
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        ids = [topic.topic_id for topic in request.topics]
        by_id = await directory.by_id({TopicId(topic_id) for topic_id in ids if topic_id is not None})
        return [None if topic_id is None else by_id.get(TopicId(topic_id)) for topic_id in ids]
    names = [topic.name for topic in request.topics]
    by_name = await directory.by_name(set(names))
    return [by_name.get(name) for name in names]


async def _write(
    accepted: Accepted | ProduceResult,
    traffic: TrafficClass,
    request: ProduceRequest,
    context: RequestContext[_Uses],
) -> ProduceResults:
    assert context.turn is not None, "produce requests take turns"
    await context.turn.my_turn()
    if _must_wait(traffic, context) and not await _wait_for_lane(traffic, request, context):
        accepted = _WAITED_FOR_LANE
    if isinstance(accepted, ProduceResult):
        context.turn.done()
        return _all(request, accepted)
    under_way = _hand_over(accepted, traffic, request, context)
    del accepted
    if request.acks == _NO_ACKS or not under_way.numbers:
        return ProduceResults(written={}, others=under_way.refusals)
    await under_way.appended.answered()
    return _results(under_way, context)


async def _wait_for_lane(
    traffic: TrafficClass, request: ProduceRequest, context: RequestContext[_Uses]
) -> bool:
    """Waits for the connection's earlier batches, so that its batches stay in order. Returns whether there is
    time left.
    """
    deadline_s = None if request.acks == _NO_ACKS else _deadline_s(traffic, request, context)
    try:
        async with asyncio.timeout_at(deadline_s):
            await context.connection.lane.emptied()
    except TimeoutError:
        return False
    _count_memory(context, is_bulk=traffic is TrafficClass.BULK)
    return True


def _is_known_to_fit(accepted: Accepted, request: ProduceRequest, context: RequestContext[_Uses]) -> bool:
    """Returns whether a lone batch is in no transaction, or certainly in one of the request's transactional
    id.
    """
    columns = accepted.batches.columns
    if not columns[TRANSACTION].any():
        return True
    owner = context.parts.transactional_ids.known(ProducerId(int(columns[PRODUCER_ID, 0])))
    return owner is not None and owner == request.transactional_id


async def _misfit(
    accepted: Accepted, request: ProduceRequest, context: RequestContext[_Uses]
) -> ProduceResult | None:
    """Returns why the transactional batches are in no transaction of the request's transactional id. The
    commit does not ask: it knows a transaction by its producer id.
    """
    columns = accepted.batches.columns
    are_transactional = columns[TRANSACTION] > 0
    if not are_transactional.any():
        return None
    if request.transactional_id is None:
        return ProduceResult(
            code=ErrorCode.transactional_id_authorization_failed,
            message="a transactional batch in a request without a transactional id",
        )
    producer_ids = {ProducerId(number) for number in columns[PRODUCER_ID][are_transactional].tolist()}
    try:
        owners = await context.parts.transactional_ids.of(producer_ids)
    except SequencerUnavailable as error:
        return ProduceResult(code=ErrorCode.not_enough_replicas, message=str(error))
    if any(owner != request.transactional_id for owner in owners.values()):
        return ProduceResult(
            code=ErrorCode.invalid_producer_id_mapping,
            message="the producer id belongs to another transactional id",
        )
    if len(owners) < len(producer_ids):
        # Not left to the commit: by then the producer id may belong to another transactional id.
        return ProduceResult(
            code=ErrorCode.invalid_txn_state, message="no transactional id has the producer id"
        )
    return None


def _note_who_adds(accepted: Accepted, context: RequestContext[_Uses]) -> None:
    """Notes in transactional batches who adds their partitions."""
    transactions = accepted.batches.columns[TRANSACTION]
    if transactions.any():
        adds_itself = context.api_version >= _FIRST_VERSION_THAT_ADDS_PARTITIONS
        transactions[transactions > 0] = (
            BatchTransaction.ADDS_ITSELF if adds_itself else BatchTransaction.ADDED
        )


def _hand_over(
    accepted: Accepted, traffic: TrafficClass, request: ProduceRequest, context: RequestContext[_Uses]
) -> _UnderWay:
    """Hands the batches to the write path, which now owns their bytes and drops them when it seals them. The
    request's bytes stay reserved until none of its batches is on its way, also if its time is over before
    that.
    """
    assert context.turn is not None, "produce requests take turns"
    _note_who_adds(accepted, context)
    write_path = context.parts.write_path
    window = None if request.acks == _NO_ACKS else context.connection.window
    appended = write_path.append(accepted.batches, window, is_bulk=traffic is TrafficClass.BULK)
    context.connection.lane.took(appended)
    context.turn.done()
    context.memory.retain()
    appended.when_done(context.memory.release)
    if request.acks != _NO_ACKS:
        deadline_s = _deadline_s(traffic, request, context)
        timer = asyncio.get_running_loop().call_at(deadline_s, write_path.give_up, appended, _TIMED_OUT)
        appended.when_answered(timer.cancel)
    return _UnderWay(
        appended=appended,
        numbers=accepted.numbers,
        topic_ids=accepted.batches.topic_ids,
        topic_of=accepted.batches.columns[TOPIC].tolist(),
        times_ms=accepted.times_ms,
        refusals=accepted.refusals,
    )


def _all(request: ProduceRequest, result: ProduceResult) -> ProduceResults:
    """Returns the same result for every partition."""
    return ProduceResults(written={}, others=dict.fromkeys(range(len(request.records)), result))


def _results(under_way: _UnderWay, context: RequestContext[_Uses]) -> ProduceResults:
    """Returns the outcomes of a request's batches. All must have one."""
    context.parts.metrics.produce_seconds.observe(time.monotonic() - context.received_at_s)
    written: dict[int, WrittenBatch] = {}
    for start, base_offsets, log_starts in under_way.appended.assigned:
        end = start + len(base_offsets)
        each = zip(base_offsets, under_way.times_ms[start:end], log_starts or repeat(None), strict=False)
        written.update(zip(under_way.numbers[start:end], each, strict=True))
    others = dict(under_way.refusals)
    for index, unassigned in under_way.appended.unassigned.items():
        written.pop(
            under_way.numbers[index], None
        )  # the request's time was over before the batch was written
        others[under_way.numbers[index]] = _result_of(unassigned, under_way, index, context)
    return ProduceResults(written=written, others=others)


def _result_of(
    unassigned: Unassigned, under_way: _UnderWay, index: int, context: RequestContext[_Uses]
) -> ProduceResult:
    """Returns the result of a batch that was not written now."""
    result = produce_result(unassigned.outcome)
    if result.code is ErrorCode.none and unassigned.log_start_offset is not None:
        result = replace(result, log_start_offset=unassigned.log_start_offset)
    if result.code is ErrorCode.unknown_topic_or_partition:
        context.parts.topics.forget(under_way.topic_ids[under_way.topic_of[index]])
        return ProduceResult(code=_unknown_topic(context))
    gives_times = under_way.times_ms[index] != NO_TIMESTAMP_MS
    return result if gives_times or result.log_append_time_ms is None else result.at(None)


def _count(results: ProduceResults, context: RequestContext[_Uses]) -> None:
    for result in results.others.values():
        if result.code is not ErrorCode.none:
            context.parts.metrics.produce_errors.labels(result.code.name).inc()


def _hang_up_on_errors(results: ProduceResults) -> None:
    failed = next((result for result in results.others.values() if result.code is not ErrorCode.none), None)
    if failed is not None:
        raise CloseConnection(f"produce without acks failed: {failed.code.name}")
