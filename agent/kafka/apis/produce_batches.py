"""What a Produce request brings, checked batch by batch: from bytes of a client to a `PendingBatch` or a refusal
(DESIGN §5).

Bad input gets the protocol's error for its partition alone. Checking is CPU-bound and leaves the GIL to others while it
runs, so larger requests are checked beside the event loop; what is waited for here comes before the ordered hand-over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult, invalid_batch_code
from agent.kafka.context import RequestContext
from agent.kafka.routing import has_moved, route_of
from sequencer.topic_config import TopicConfig
from sequencer.topics import Topic
from storage.batch_validation import BatchFault, BatchLimits, InvalidBatch, validate_produced
from storage.identifiers import Partition, TopicId
from storage.record_batch import with_log_append_time
from storage.segment import PendingBatch

_TOO_LARGE = invalid_batch_code(BatchFault.TOO_LARGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBatch:
    """One partition's part of a request; `topic` is None if there is no such topic."""

    topic: Topic | None
    partition: Partition
    records: bytes | None

    @property
    def place(self) -> tuple[TopicId | None, Partition]:
        return None if self.topic is None else self.topic.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A valid batch, and the time the log gave it if the topic says that it gives times."""

    pending: PendingBatch
    log_append_time_ms: int | None


async def accept(
    asked: Sequence[AskedBatch], unknown_topic: ErrorCode, context: RequestContext
) -> list[Accepted | ProduceResult]:
    """One answer for each batch asked, in order."""
    times_named = Counter(batch.place for batch in asked)
    refusals = [_misplaced(batch, unknown_topic, times_named[batch.place], context) for batch in asked]
    size_bytes = sum(len(batch.records or b"") for batch, refusal in zip(asked, refusals, strict=True) if not refusal)
    settings = context.settings
    if size_bytes < settings.validation_thread_bytes:
        checked = _check_all(asked, refusals, settings.validation_loop_decompressed_bytes, raised_by_topic=False)
        if not any(isinstance(answer, ProduceResult) and answer.code is _TOO_LARGE for answer in checked):
            return checked
        # Few bytes that decompress to many: they are not for the event loop, which everybody waits for.
    check = partial(_check_all, asked, refusals, settings.max_decompressed_bytes, raised_by_topic=True)
    return await asyncio.get_running_loop().run_in_executor(context.parts.checking, check)


def _misplaced(
    batch: AskedBatch, unknown_topic: ErrorCode, times_named: int, context: RequestContext
) -> ProduceResult | None:
    """Why the batch cannot go where it is sent, whatever it holds."""
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


def _check_all(
    asked: Sequence[AskedBatch],
    refusals: Sequence[ProduceResult | None],
    max_decompressed_bytes: int,
    *,
    raised_by_topic: bool,
) -> list[Accepted | ProduceResult]:
    return [
        refusal or _check(batch, max_decompressed_bytes, raised_by_topic=raised_by_topic)
        for batch, refusal in zip(asked, refusals, strict=True)
    ]


def _check(asked: AskedBatch, max_decompressed_bytes: int, *, raised_by_topic: bool) -> Accepted | ProduceResult:
    assert asked.topic is not None, "batches for unknown topics are refused before"
    config = TopicConfig.of(asked.topic.config)
    if raised_by_topic:
        max_decompressed_bytes = max(max_decompressed_bytes, config.max_message_bytes)
    now_ms = time.time_ns() // 1_000_000
    try:
        batch = validate_produced(asked.records or b"", _limits(config, max_decompressed_bytes, now_ms))
    except InvalidBatch as error:
        return ProduceResult(code=invalid_batch_code(error.fault), message=error.message, records=error.records)
    log_append_time_ms = None
    if config.message_timestamp_type == "LogAppendTime":
        log_append_time_ms = now_ms
        batch = with_log_append_time(batch, log_append_time_ms)
    return Accepted(
        pending=PendingBatch(topic_id=asked.topic.topic_id, partition=asked.partition, batch=batch),
        log_append_time_ms=log_append_time_ms,
    )


def _limits(config: TopicConfig, max_decompressed_bytes: int, now_ms: int) -> BatchLimits:
    """What the topic allows now. Producers' times are bounded only where they count."""
    limits = BatchLimits(max_message_bytes=config.max_message_bytes, max_decompressed_bytes=max_decompressed_bytes)
    if config.message_timestamp_type == "LogAppendTime":
        return limits
    return replace(
        limits,
        earliest_timestamp_ms=max(limits.earliest_timestamp_ms, now_ms - config.message_timestamp_before_max_ms),
        latest_timestamp_ms=min(limits.latest_timestamp_ms, now_ms + config.message_timestamp_after_max_ms),
    )
