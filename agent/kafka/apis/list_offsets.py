"""Kafka API 2, ListOffsets, v1-v11 (KIP-79 times, KIP-98 isolation, KIP-734 latest record).

The sequencer always answers, never a cache, because another agent may have committed since. One statement
answers all concurrent requests (`agent/shared_lookups.py`). A client that asks too fast waits, and is asked
to pause (`agent/kafka/client_rates.py`).

*Local* is what consumers read from uploaded objects. *Tiered* is what they read from the Parquet files of a
topic whose history is its log. The earliest local offset (-4) is the log start where nothing is tiered. The
latest tiered offset (-5) is then none. The earliest pending upload (-6) is always none. A special time that
the version does not know gets UNSUPPORTED_VERSION, a partition named twice INVALID_REQUEST.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.static.primitive import i32, i32Timedelta, i64

from agent.error_codes import read_failure_code
from agent.kafka.authorization import TOPIC, permitted
from agent.kafka.configs.administration import named_twice
from agent.kafka.context import RequestContext
from agent.kafka.routing.current_leaders import NO_EPOCH, OUR_EPOCH, epoch_failure
from agent.kafka.uses import (
    UsesBounds,
    UsesLookupPace,
    UsesMembership,
    UsesOverload,
    UsesReads,
    UsesTimes,
    UsesTopics,
)
from agent.read_path.read_decisions import ReadFailure
from agent.read_path.time_lookup import TimedOffset, TimeLookup
from agent.slices import Slices
from cache_ring.pages.store_pages import DamagedPage
from sequencer.commits.coordinates import PartitionBounds, PartitionKey
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.database.errors import TooManyWait
from sequencer.security.acl import Operation
from storage.identifiers import NO_OFFSET, Offset, Partition
from storage.stores.object_store import ObjectNotFound, StoreUnavailable

EVERY_S = 10.0


class RecurringLog:
    """One kind of log line that may be due thousands of times a second. It is written at most once in
    `every_s`, with the number of lines that were left out since the last.
    """

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._message = message
        self._every_s = every_s
        self._clock = clock
        self._logged_s = -math.inf
        self._left_out = 0

    def warning(self, **fields: object) -> None:
        now_s = self._clock()
        if now_s - self._logged_s < self._every_s:
            self._left_out += 1
            return
        self._log.warning(self._message, extra={**fields, "left_out": self._left_out})
        self._logged_s, self._left_out = now_s, 0


class _Uses(
    UsesBounds, UsesLookupPace, UsesMembership, UsesOverload, UsesReads, UsesTimes, UsesTopics, Protocol
):
    """The parts that this API uses."""


_log = logging.getLogger("tidelog")
_unanswered = RecurringLog(_log, "list offsets: the sequencer cannot be asked")
_not_found = RecurringLog(_log, "list offsets: a time cannot be looked up")

_LATEST: Final = -1
_EARLIEST: Final = -2
_LATEST_RECORD: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_KNOWN_FROM: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _LATEST_RECORD: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED: Final = 1
_NO_TIMESTAMP: Final = -1


class ListOffsetsRequest(Protocol):
    """A request of any version."""

    isolation_level: int = 0
    topics: Sequence[ListOffsetsTopic]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    code: ErrorCode = ErrorCode.none
    offset: int = NO_OFFSET
    timestamp_ms: int = _NO_TIMESTAMP


async def handle(request: ListOffsetsRequest, context: RequestContext[_Uses]) -> ListOffsetsResponse:
    read_committed = request.isolation_level == _READ_COMMITTED
    pace = context.parts.lookup_pace
    await pace.wait(sum(len(topic.partitions) for topic in request.topics))
    allowed = permitted(Operation.DESCRIBE, TOPIC, (topic.name for topic in request.topics), context)
    try:
        keys = await _keys(request, allowed, context)
        bounds = await context.parts.bounds.get(set(keys.values()))
    except (SequencerUnavailable, CommitOutcomeUnknown) as error:
        _unanswered.warning(error=str(error), client=context.connection.peer)
        pause_ms = context.parts.overload.of_refused("ListOffsets") if isinstance(error, TooManyWait) else 0
        return _respond(request, {}, pause_ms, failed=read_failure_code(ReadFailure.UNAVAILABLE, by_id=False))
    twice = named_twice(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    results: dict[tuple[str, int], _Result] = {}
    by_time: list[tuple[tuple[str, int], ListOffsetsPartition]] = []
    slices = Slices()
    for topic in request.topics:
        for partition in topic.partitions:
            place = (topic.name, partition.partition_index)
            key = keys.get(place)
            known = None if key is None else bounds.get(key)
            result = _Result(code=ErrorCode.invalid_request) if place in twice else None
            if topic.name not in allowed:
                result = _Result(code=ErrorCode.topic_authorization_failed)
            result = result or _result_from_bounds(
                key, known, partition, context, read_committed=read_committed
            )
            if result is None:
                by_time.append((place, partition))
            else:
                results[place] = result
            await slices.look()
    at_once = asyncio.Semaphore(context.parts.reads.settings.time_lookups)

    async def look_up(place: tuple[str, int], partition: ListOffsetsPartition) -> None:
        async with at_once:
            key = keys[place]
            results[place] = await _result_by_time(
                key, bounds[key], partition, context, read_committed=read_committed
            )

    async with asyncio.TaskGroup() as tasks:
        for one in by_time:
            tasks.create_task(look_up(*one))
    return _respond(request, results, pace.pause_ms())


async def _keys(
    request: ListOffsetsRequest, allowed: Collection[str], context: RequestContext[_Uses]
) -> dict[tuple[str, int], PartitionKey]:
    """Replaces names by topic ids. Unknown topics are left out."""
    topics = await context.parts.topics.by_name(allowed)
    return {
        (asked.name, partition.partition_index): (topic.topic_id, Partition(partition.partition_index))
        for asked in request.topics
        if (topic := topics.get(asked.name)) is not None
        for partition in asked.partitions
    }


def _result_from_bounds(
    key: PartitionKey | None,
    bounds: PartitionBounds | None,
    partition: ListOffsetsPartition,
    context: RequestContext[_Uses],
    *,
    read_committed: bool,
) -> _Result | None:
    """None: a time must be looked up, in a partition that exists."""
    refused = _refusal(key, bounds, partition, context)
    if refused is not None or key is None or bounds is None:
        return _Result(code=refused or ErrorCode.unknown_topic_or_partition)
    return _edge(partition.timestamp, bounds, read_committed=read_committed)


async def _result_by_time(
    key: PartitionKey,
    bounds: PartitionBounds,
    partition: ListOffsetsPartition,
    context: RequestContext[_Uses],
    *,
    read_committed: bool,
) -> _Result:
    settings, client = context.parts.reads.settings, context.connection.connection_id
    try:
        async with asyncio.timeout_at(context.received_at_s + settings.time_lookup_timeout_s):
            found = await _look_up(key, partition.timestamp, bounds, context.parts.times, client)
    except TimeoutError:
        return _Result(code=ErrorCode.request_timed_out)
    except (
        SequencerUnavailable,
        CommitOutcomeUnknown,
        StoreUnavailable,
        DamagedPage,
        ObjectNotFound,
    ) as error:
        _not_found.warning(topic_id=str(key[0]), partition=key[1], error=str(error))
        return _Result(code=read_failure_code(ReadFailure.UNAVAILABLE, by_id=False))
    end_offset = bounds.last_stable_offset if read_committed else bounds.high_watermark
    return _Result() if found is None or found.offset >= end_offset else _at(found)


async def _look_up(
    key: PartitionKey, timestamp: int, bounds: PartitionBounds, times: TimeLookup, client: int
) -> TimedOffset | None:
    if timestamp == _LATEST_RECORD:
        return await times.latest(key, bounds, client)
    return await times.first_since(key, timestamp, bounds, client)


def _refusal(
    key: PartitionKey | None,
    bounds: PartitionBounds | None,
    partition: ListOffsetsPartition,
    context: RequestContext[_Uses],
) -> ErrorCode | None:
    if key is None or bounds is None:
        return read_failure_code(ReadFailure.UNKNOWN_PARTITION, by_id=False)
    if not context.parts.membership.is_serving():
        return read_failure_code(ReadFailure.MOVED, by_id=False)
    stale = epoch_failure(partition.current_leader_epoch)
    if stale is not None:
        return read_failure_code(stale, by_id=False)
    if partition.timestamp < 0 and _KNOWN_FROM.get(partition.timestamp, 1 << 15) > context.api_version:
        return ErrorCode.unsupported_version
    return None


def _edge(timestamp: int, bounds: PartitionBounds, *, read_committed: bool) -> _Result | None:
    """Returns the answer if the bounds alone give it."""
    if timestamp == _LATEST:
        return _Result(offset=bounds.last_stable_offset if read_committed else bounds.high_watermark)
    local_start_offset = Offset(max(bounds.log_start_offset, bounds.local_start_offset))
    if timestamp == _EARLIEST:
        return _Result(offset=bounds.log_start_offset)
    if timestamp == _EARLIEST_LOCAL:
        return _Result(offset=local_start_offset)
    if timestamp == _LATEST_TIERED and local_start_offset > bounds.log_start_offset:
        return _Result(offset=Offset(local_start_offset - 1))
    return _Result() if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD) else None


def _at(found: TimedOffset) -> _Result:
    return _Result(offset=found.offset, timestamp_ms=found.timestamp_ms)


def _respond(
    request: ListOffsetsRequest,
    results: Mapping[tuple[str, int], _Result],
    pause_ms: int,
    failed: ErrorCode = ErrorCode.none,
) -> ListOffsetsResponse:
    nothing = _Result(code=failed)
    return ListOffsetsResponse(
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=pause_ms)),
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _partition(partition, results.get((topic.name, partition.partition_index), nothing))
                    for partition in {
                        partition.partition_index: partition for partition in topic.partitions
                    }.values()
                ),
            )
            for topic in request.topics
        ),
    )


def _partition(asked: ListOffsetsPartition, result: _Result) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=result.code,
        timestamp=i64(result.timestamp_ms),
        offset=i64(result.offset),
        leader_epoch=i32(NO_EPOCH if result.offset == NO_OFFSET else OUR_EPOCH),
    )
