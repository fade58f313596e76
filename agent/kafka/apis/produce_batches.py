"""What a Produce request brings, checked: from bytes of a client to a `PendingBatch` or a refusal for each partition
(DESIGN §5).

Bad input gets the protocol's error for its partition alone. Plain batches are checked where they arrive, in a few
native calls for all of them; what has to be decompressed, or is large, is checked beside the event loop. What is waited
for here comes before the ordered hand-over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult, invalid_batch_code
from agent.kafka.context import RequestContext
from agent.kafka.routing import has_moved, route_of
from sequencer.topic_config import TopicConfig
from sequencer.topics import Topic
from storage.batch_validation import LAST_TIMESTAMP_MS, NO_TIMESTAMP_MS, BatchFault, BatchLimits, InvalidBatch
from storage.identifiers import Partition
from storage.produced_batches import is_compressed, validate_all
from storage.record_batch import ValidBatch, with_log_append_time
from storage.segment import PendingBatch

_TOO_LARGE = invalid_batch_code(BatchFault.TOO_LARGE)
_PLAIN_IS_CHEAPER = 64
"""Checking plain bytes takes about so many times less than checking bytes that have to be decompressed."""


@dataclass(frozen=True, slots=True)
class AskedBatch:
    """One partition's part of a request: its bytes are at `place` of the frame. `topic` is None if there is no such
    topic."""

    topic: Topic | None
    partition: Partition
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A valid batch, and the time the log gave it if the topic says that it gives times."""

    pending: PendingBatch
    log_append_time_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What a topic asks of batches now."""

    limits: BatchLimits
    log_append_time_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """All of a request; a refusal says why a batch cannot go where it is sent, whatever it holds."""

    frame: memoryview
    batches: Sequence[AskedBatch]
    refusals: Sequence[ProduceResult | None]


async def accept(
    frame: memoryview, batches: Sequence[AskedBatch], unknown_topic: ErrorCode, context: RequestContext
) -> list[Accepted | ProduceResult]:
    """One answer for each batch asked, in order."""
    asked = _Asked(frame=frame, batches=batches, refusals=_misplaced(batches, unknown_topic, context))
    settings = context.settings
    if _effort_bytes(asked) < settings.validation_thread_bytes:
        checked = _check_all(asked, settings.validation_loop_decompressed_bytes, raised_by_topic=False)
        if not any(isinstance(answer, ProduceResult) and answer.code is _TOO_LARGE for answer in checked):
            return checked
        # Few bytes that decompress to many: they are not for the event loop, which everybody waits for.
    check = partial(_check_all, asked, settings.max_decompressed_bytes, raised_by_topic=True)
    return await asyncio.get_running_loop().run_in_executor(context.parts.checking, check)


def _effort_bytes(asked: _Asked) -> int:
    """What has to be checked, in bytes that have to be decompressed."""
    effort = 0
    for batch, refusal in zip(asked.batches, asked.refusals, strict=True):
        if refusal is None:
            start, end = batch.place
            compressed = is_compressed(asked.frame[start:end])
            effort += end - start if compressed else (end - start) // _PLAIN_IS_CHEAPER
    return effort


def _misplaced(
    batches: Sequence[AskedBatch], unknown_topic: ErrorCode, context: RequestContext
) -> list[ProduceResult | None]:
    if len(batches) == 1:
        return [_refusal(batches[0], unknown_topic, 1, context)]
    places = [(None if batch.topic is None else batch.topic.topic_id, batch.partition) for batch in batches]
    times_named = Counter(places)
    return [
        _refusal(batch, unknown_topic, times_named[place], context)
        for batch, place in zip(batches, places, strict=True)
    ]


def _refusal(
    batch: AskedBatch, unknown_topic: ErrorCode, times_named: int, context: RequestContext
) -> ProduceResult | None:
    if batch.topic is None:
        return ProduceResult(code=unknown_topic)
    if not 0 <= batch.partition < batch.topic.partition_count:
        return ProduceResult(code=ErrorCode.unknown_topic_or_partition)
    if times_named > 1:
        return ProduceResult(code=ErrorCode.invalid_request, message="the request names the partition more than once")
    if has_moved(context, batch.topic.topic_id, batch.partition):
        return ProduceResult(
            code=ErrorCode.not_leader_or_follower,
            message="another agent takes this partition now",
            leader=route_of(context, batch.topic.topic_id, batch.partition).leader,
        )
    return None


def _check_all(asked: _Asked, max_decompressed_bytes: int, *, raised_by_topic: bool) -> list[Accepted | ProduceResult]:
    now_ms = time.time_ns() // 1_000_000
    rules: dict[int, _Rules] = {}  # by the identity of a topic, of which a request has few
    checked: list[AskedBatch] = []
    for batch, refusal in zip(asked.batches, asked.refusals, strict=True):
        if refusal is None:
            checked.append(batch)
            if id(batch.topic) not in rules:
                rules[id(batch.topic)] = _rules_of(batch.topic, max_decompressed_bytes, now_ms, raised_by_topic)
    found = validate_all(
        asked.frame, [batch.place for batch in checked], [rules[id(batch.topic)].limits for batch in checked]
    )
    answers = iter(
        [_answer(batch, valid, rules[id(batch.topic)]) for batch, valid in zip(checked, found, strict=True)]
    )  # fmt: skip
    return [refusal or next(answers) for refusal in asked.refusals]


def _answer(asked: AskedBatch, batch: ValidBatch | InvalidBatch, rules: _Rules) -> Accepted | ProduceResult:
    assert asked.topic is not None, "batches for unknown topics are refused before"
    if isinstance(batch, InvalidBatch):
        return ProduceResult(code=invalid_batch_code(batch.fault), message=batch.message, records=batch.records)
    if rules.log_append_time_ms is not None:
        batch = with_log_append_time(batch, rules.log_append_time_ms)
    pending = PendingBatch(topic_id=asked.topic.topic_id, partition=asked.partition, batch=batch)
    return Accepted(pending, rules.log_append_time_ms)


def _rules_of(topic: Topic | None, max_decompressed_bytes: int, now_ms: int, raised_by_topic: bool) -> _Rules:
    """Producers' times are bounded only where they count."""
    assert topic is not None, "batches for unknown topics are refused before"
    config = TopicConfig.of(topic.config)
    gives_times = config.message_timestamp_type == "LogAppendTime"
    earliest_ms = NO_TIMESTAMP_MS if gives_times else now_ms - config.message_timestamp_before_max_ms
    latest_ms = LAST_TIMESTAMP_MS if gives_times else now_ms + config.message_timestamp_after_max_ms
    limits = BatchLimits(
        max_message_bytes=config.max_message_bytes,
        max_decompressed_bytes=max(max_decompressed_bytes, config.max_message_bytes * raised_by_topic),
        earliest_timestamp_ms=max(NO_TIMESTAMP_MS, earliest_ms),
        latest_timestamp_ms=min(LAST_TIMESTAMP_MS, latest_ms),
    )
    return _Rules(limits=limits, log_append_time_ms=now_ms if gives_times else None)
