"""Consumers that count bytes and look at no record: one Fetch at a time on each connection.

They check only that the offsets of a partition have no gaps, because that costs nothing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.load.frames import (
    BadAnswer,
    FetchedPartition,
    FetchLimits,
    FetchRequests,
    batches_in,
    fetched_partitions,
)
from benchmarks.load.processes import Window
from benchmarks.load.producers import Target
from benchmarks.load.threads import in_threads
from benchmarks.load.wire import Wire

_RETRIABLE = frozenset({3, 5, 6, 7, 56, 78})
"""Unknown topic, no leader, not leader, timed out, storage error, offset not available."""
_RETRY_S = 0.05
_MOST_ERRORS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One answer with records. `ages_ms`: the time since each batch was sent."""

    at_s: float
    bytes: int
    records: int
    ages_ms: tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class Consumed:
    arrivals: list[Arrival] = field(default_factory=list)
    fetches: int = 0
    errors: int = 0
    ended_s: float = 0.0
    cpu_s: float = 0.0
    """CPU of the process that consumed."""

    def add(self, other: "Consumed") -> None:
        self.arrivals += other.arrivals
        self.fetches += other.fetches
        self.errors += other.errors
        self.ended_s = max(self.ended_s, other.ended_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """`start`: offsets to begin at, by default 0. `stop`: offsets at which the consumer is done."""

    topic: str
    partitions: tuple[int, ...]
    start: Mapping[int, int] = field(default_factory=dict)
    stop: Mapping[int, int] = field(default_factory=dict)
    limits: FetchLimits = field(default_factory=FetchLimits)
    again: bool = False
    """When done, begin again from the start, until the window ends."""


def consume(target: Target, subscriptions: Sequence[Subscription], window: Window) -> Consumed:
    """Uses a connection and a thread per subscription, until the window ends or all `stop`s are reached."""
    total = Consumed()
    for result in in_threads(lambda subscription: _consume(target, subscription, window), subscriptions):
        total.add(result)
    total.cpu_s = time.process_time()
    return total


def _consume(target: Target, subscription: Subscription, window: Window) -> Consumed:
    wire = Wire.open(target.host, target.port, target.client_id)
    asked = FetchRequests(subscription.topic, subscription.partitions, target.client_id, subscription.limits)
    for partition, offset in subscription.start.items():
        asked.move(partition, offset)
    seen = Consumed()
    behind = {
        partition for partition, offset in subscription.stop.items() if asked.offsets[partition] < offset
    }
    while time.monotonic() < window.end_s:
        if not behind and subscription.stop:
            if not subscription.again:
                break
            behind = set(subscription.stop)
            for partition in subscription.partitions:
                asked.move(partition, subscription.start.get(partition, 0))
        wire.send(asked.next(wire.next_id()))
        answer = wire.receive()
        at_s, now_ms = time.monotonic(), time.time() * 1000
        seen.fetches += 1
        if not asked.follow(answer):
            continue
        taken, records, ages = 0, 0, []
        for fetched in fetched_partitions(answer):
            if fetched.error:
                _bear(fetched, seen)
            start = asked.offsets[fetched.partition]
            end = start
            for batch in batches_in(fetched.records):
                if batch.base_offset > end or batch.end <= start:
                    raise BadAnswer(
                        f"partition {fetched.partition}: asked for {end}, got {batch.base_offset}"
                    )
                end = batch.end
                taken += batch.size
                ages.append(now_ms - batch.sent_ms)
            if end > start:
                records += end - start
                asked.move(fetched.partition, end)
                if end >= subscription.stop.get(fetched.partition, 1 << 62):
                    behind.discard(fetched.partition)
        if taken:
            seen.arrivals.append(Arrival(at_s=at_s, bytes=taken, records=records, ages_ms=tuple(ages)))
            seen.ended_s = at_s
    wire.close()
    return seen


def _bear(fetched: FetchedPartition, seen: Consumed) -> None:
    seen.errors += 1
    if fetched.error not in _RETRIABLE or seen.errors > _MOST_ERRORS:
        raise BadAnswer(f"Fetch of partition {fetched.partition}: error {fetched.error}")
    time.sleep(_RETRY_S)
