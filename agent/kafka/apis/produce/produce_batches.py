"""Checks the batches of a Produce request: from a client's bytes to a `PendingBatch` or a refusal for each
partition (docs/design/write-path.md#validation).

Bad input gets the protocol's error only for its partition. Plain batches are checked on the event loop, in a
few native calls for all of them. Batches that must be decompressed, or are large, are checked in a thread.
All waiting happens before the ordered hand-over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from kio.schema.errors import ErrorCode
from numpy.typing import NDArray

from agent.error_codes import ProduceResult, invalid_batch_code
from agent.kafka.context import RequestContext
from agent.kafka.routing.current_leaders import leader_elsewhere
from agent.kafka.routing.routing import UsesRouting, moved_partitions
from agent.kafka.uses import UsesChecking, UsesLoneCheck
from agent.settings import AgentSettings
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topics import Topic
from storage.batches.batch_validation import (
    LAST_TIMESTAMP_MS,
    NO_TIMESTAMP_MS,
    BatchFault,
    BatchLimits,
    InvalidBatch,
    InvalidRecord,
)
from storage.batches.produced_batches import BatchChecks
from storage.batches.record_batch import Compression
from storage.identifiers import Partition, TopicId
from storage.segments.segment_batches import PARTITION, TOPIC, PendingBatches


class UsesChecks(UsesRouting, UsesChecking, UsesLoneCheck, Protocol):
    """The parts that the checks use."""


_TWICE = ProduceResult(
    code=ErrorCode.invalid_request, message="the request names the partition more than once"
)
_UNAUTHORIZED = ProduceResult(code=ErrorCode.topic_authorization_failed)
NO_ROOM = ProduceResult(
    code=ErrorCode.not_enough_replicas,
    message="there is no memory now for what the topic's compression.type makes of the batches: try again",
)
_PLAIN_IS_CHEAPER = 64
"""Checking plain bytes takes about this many times less than checking bytes that must be decompressed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AskedBatches:
    """The batches of a request.

    `topics` are the topics that it names, None for an unknown one and for one of `unauthorized`, the places
    of those that the client may not write. `counts` has the number of its partitions for each topic. For each
    of all partitions, `partitions` (int64) has its number, `places` (int64, shape (partitions, 2)) the start
    and the end of its bytes in the frame, and `are_compressed` (bool) whether these must be decompressed.
    """

    frame: memoryview
    topics: Sequence[Topic | None]
    unauthorized: Collection[int]
    counts: Sequence[int]
    partitions: NDArray[np.int64]
    places: NDArray[np.int64]
    are_compressed: NDArray[np.bool_]

    @property
    def topic_of(self) -> NDArray[np.int64]:
        """For each partition the index of its topic (int64)."""
        if len(self.counts) == 1:  # numpy is slower for the most frequent case, one small batch
            return np.zeros(self.counts[0], np.int64)
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Accepted:
    """The valid batches, and a refusal for each of the request's partitions without one."""

    batches: PendingBatches
    numbers: Sequence[int]
    """The request's partition of each batch."""
    times_ms: Sequence[int]
    """The time that the log gave to each batch, if its topic uses LogAppendTime."""
    refusals: Mapping[int, ProduceResult]


def without(accepted: Accepted, refused: Mapping[int, ProduceResult]) -> Accepted:
    """Returns the batches without those of refused topics. Topics without batches stay in `topic_ids`."""
    columns = accepted.batches.columns
    topics = columns[TOPIC].tolist()
    kept = [index for index, topic in enumerate(topics) if topic not in refused]
    refusals = {
        accepted.numbers[index]: refused[topic] for index, topic in enumerate(topics) if topic in refused
    }
    return Accepted(
        batches=replace(
            accepted.batches,
            columns=np.take(columns, kept, axis=1),
            data=[accepted.batches.data[index] for index in kept],
        ),
        numbers=[accepted.numbers[index] for index in kept],
        times_ms=[accepted.times_ms[index] for index in kept],
        refusals={**accepted.refusals, **refusals},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What a topic requires of batches now."""

    limits: BatchLimits
    log_append_time_ms: int
    compression: Compression | None = None
    """None: as the producer sent it."""


def accept_lone(
    topic: Topic, partition: int, records: memoryview, context: RequestContext[UsesChecks]
) -> Accepted | None:
    """Returns the only batch of a request if it is certainly accepted and needs no wait. None: use `accept`,
    which takes ten times as long.
    """
    if not 0 <= partition < topic.partition_count or moved_partitions(context, topic.topic_id, (partition,)):
        return None
    rules = _rules_of(topic, context.settings.validation_loop_decompressed_bytes, _now_ms())
    if rules.log_append_time_ms != NO_TIMESTAMP_MS or rules.compression not in (None, Compression.NONE):
        return None
    columns = context.parts.lone_check.columns(records, rules.limits, partition)
    if columns is None:
        return None
    batches = PendingBatches(topic_ids=(topic.topic_id,), columns=columns, data=(records,))
    return Accepted(batches=batches, numbers=(0,), times_ms=(NO_TIMESTAMP_MS,), refusals={})


class ClientGone(Exception):
    """The client hung up before its batches were checked. Nothing of the request is written."""


async def accept(
    asked: AskedBatches,
    unknown_topic: ErrorCode,
    context: RequestContext[UsesChecks],
    deadline_s: float,
    *,
    needs_client: bool,
) -> Accepted | ProduceResult:
    """`needs_client`: stop once the client has hung up. Raises ClientGone, or TimeoutError at `deadline_s` on
    the loop's clock.
    """
    settings = context.settings
    request = _Request(asked, _misplaced(asked, unknown_topic, context), settings)
    is_small = not request.recompresses and request.effort_bytes() < settings.validation_thread_bytes
    if is_small and request.checks.step(settings.validation_loop_decompressed_bytes, at_least_one=False):
        return request.accepted()

    def is_unwanted() -> bool:
        return needs_client and context.connection.is_gone

    def step() -> bool:
        return is_unwanted() or request.checks.step(settings.validation_slice_bytes)

    # Few bytes may decompress to many. The event loop must not do that, because all clients wait for it.
    async with asyncio.timeout_at(deadline_s):
        while not await context.parts.checking.run_for(context.connection.connection_id, step):
            pass
    if is_unwanted():
        raise ClientGone
    accepted = request.accepted()
    grown_bytes = sum(map(len, accepted.batches.data)) - len(asked.frame) if request.recompresses else 0
    return accepted if grown_bytes <= 0 or context.memory.try_grow(grown_bytes) else NO_ROOM


def _without(refused: Collection[int], count: int) -> NDArray[np.int64]:
    everyone = np.arange(count)
    return np.delete(everyone, list(refused)) if refused else everyone


def _misplaced(
    asked: AskedBatches, unknown_topic: ErrorCode, context: RequestContext[UsesChecks]
) -> dict[int, ProduceResult]:
    """Returns refusals of batches that cannot go to their partitions, whatever their contents are."""
    refusals: dict[int, ProduceResult] = {}
    twice = _named_twice(asked)
    end = 0
    for number, (topic, count) in enumerate(zip(asked.topics, asked.counts, strict=True)):
        start, end = end, end + count
        if topic is None:
            refusal = _UNAUTHORIZED if number in asked.unauthorized else ProduceResult(code=unknown_topic)
            refusals.update(dict.fromkeys(range(start, end), refusal))
            continue
        partitions = asked.partitions[start:end].tolist()
        placed = {
            partition
            for index, partition in enumerate(partitions, start)
            if 0 <= partition < topic.partition_count and index not in twice
        }
        moved = moved_partitions(context, topic.topic_id, placed)
        if len(placed) == count and not moved:
            continue
        for index, partition in enumerate(partitions, start):
            if not 0 <= partition < topic.partition_count:
                refusals[index] = ProduceResult(code=ErrorCode.unknown_topic_or_partition)
            elif index in twice:
                refusals[index] = _TWICE
            elif partition in moved:
                refusals[index] = _moved(topic, Partition(partition), context)
    return refusals


def _moved(topic: Topic, partition: Partition, context: RequestContext[UsesChecks]) -> ProduceResult:
    """Returns a refusal without a leader if the leader is this agent: a client that gets a leader does not
    ask for Metadata.
    """
    leader = leader_elsewhere(context, topic.topic_id, partition)
    return ProduceResult(
        code=ErrorCode.not_leader_or_follower,
        message="another agent stopped answering"
        if leader is None
        else "another agent takes this partition now",
        leader=leader,
    )


def _named_twice(asked: AskedBatches) -> frozenset[int]:
    """Returns the entries whose partition another entry names, too."""
    if len(asked.partitions) == 1:
        return frozenset()
    firsts: dict[TopicId | None, int] = {}
    numbers = [
        firsts.setdefault(None if topic is None else topic.topic_id, len(firsts)) for topic in asked.topics
    ]
    places = list(zip(np.repeat(numbers, asked.counts).tolist(), asked.partitions.tolist(), strict=True))
    if len(set(places)) == len(places):
        return frozenset()
    times_named = Counter(places)
    return frozenset([index for index, place in enumerate(places) if times_named[place] > 1])


class _Request:
    """One request's batches, from their bytes in the frame to the accepted batches."""

    def __init__(
        self, asked: AskedBatches, refusals: dict[int, ProduceResult], settings: AgentSettings
    ) -> None:
        at_ms = _now_ms()
        self._asked = asked
        self._refusals = refusals
        self._wanted = _without(refusals, len(asked.places))
        """The batches that are not refused for their place."""
        self._rules = [_rules_of(topic, settings.max_decompressed_bytes, at_ms) for topic in asked.topics]
        self._topic_of = asked.topic_of[self._wanted]
        self.recompresses = any(rule.compression is not None for rule in self._rules)
        self.checks = BatchChecks(
            asked.frame,
            asked.places[self._wanted],
            asked.are_compressed[self._wanted],
            [rule.limits for rule in self._rules],
            self._topic_of,
            append_times_ms=[rule.log_append_time_ms for rule in self._rules],
            compressions=[rule.compression for rule in self._rules],
            most_bytes=settings.max_request_decompressed_bytes,
            most_bytes_of_one=settings.max_decompressed_bytes,
        )

    def effort_bytes(self) -> int:
        """The effort of the checks, in bytes that must be decompressed."""
        places = self._asked.places
        sizes = places[:, 1] - places[:, 0]
        efforts = np.where(self._asked.are_compressed, sizes, sizes // _PLAIN_IS_CHEAPER)
        return int((efforts[self._wanted] if self._refusals else efforts).sum())

    def accepted(self) -> Accepted:
        """Returns the outcome once all batches are checked."""
        asked, checked = self._asked, self.checks.checked
        wanted, topic_of = self._wanted, self._topic_of
        times_ms = np.array([rule.log_append_time_ms for rule in self._rules], np.int64)[topic_of]
        columns, data = checked.columns, checked.data
        columns[PARTITION] = asked.partitions[wanted]
        if checked.refused:
            sound = _without(checked.refused, len(wanted))
            columns, data = np.take(columns, sound, axis=1), [data[index] for index in sound.tolist()]
            topic_of, times_ms, numbers = topic_of[sound], times_ms[sound], wanted[sound]
        else:
            numbers = wanted
        used = [0] if len(asked.topics) == 1 else np.unique(topic_of).tolist()
        columns[TOPIC] = np.searchsorted(used, topic_of)
        invalid = {
            int(wanted[index]): _invalid(
                refused, asked.topics[self._topic_of[index]], asked.partitions[wanted[index]]
            )
            for index, refused in checked.refused.items()
        }
        return Accepted(
            batches=PendingBatches(
                topic_ids=tuple(
                    [topic.topic_id for number in used if (topic := asked.topics[number]) is not None]
                ),
                columns=columns,
                data=data,
            ),
            numbers=numbers.tolist(),
            times_ms=times_ms.tolist(),
            refusals=self._refusals | invalid,
        )


def _invalid(refused: InvalidBatch, topic: Topic | None, partition: int) -> ProduceResult:
    message, records = refused.message, refused.records
    if refused.fault is BatchFault.NO_KEY and topic is not None:
        # Kafka's words, which some tools look for.
        message = (
            f"Compacted topic cannot accept message without key in topic partition {topic.name}-{partition}."
        )
        records = tuple([InvalidRecord(index=record.index, message=message) for record in records])
    return ProduceResult(code=invalid_batch_code(refused.fault), message=message, records=records)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=1024)
def _config_of(settings: tuple[tuple[str, str], ...]) -> TopicConfig:
    return TopicConfig.of(dict(settings))


def _rules_of(topic: Topic | None, max_decompressed_bytes: int, now_ms: int) -> _Rules:
    """Producers' times are bounded only for topics that keep them."""
    if topic is None:  # its batches are refused already
        return _Rules(limits=BatchLimits(), log_append_time_ms=NO_TIMESTAMP_MS)
    config = _config_of(tuple(topic.config.items()))
    gives_times = config.message_timestamp_type == "LogAppendTime"
    earliest_ms = NO_TIMESTAMP_MS if gives_times else now_ms - config.message_timestamp_before_max_ms
    latest_ms = LAST_TIMESTAMP_MS if gives_times else now_ms + config.message_timestamp_after_max_ms
    limits = BatchLimits(
        max_message_bytes=config.max_message_bytes,
        max_decompressed_bytes=max(max_decompressed_bytes, config.max_message_bytes),
        earliest_timestamp_ms=max(NO_TIMESTAMP_MS, earliest_ms),
        latest_timestamp_ms=min(LAST_TIMESTAMP_MS, latest_ms),
        needs_keys=config.is_compacted,
    )
    return _Rules(
        limits=limits,
        log_append_time_ms=now_ms if gives_times else NO_TIMESTAMP_MS,
        compression=config.compression,
    )
