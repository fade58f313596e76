"""Produces the flights through one zone, consumes them through another, and compares record by record.

The producer's acknowledgements say where each record went (partition, offset); the consumer must find exactly
those records there, at offsets without gaps, and records of one partition must lie in the order in which they
were produced.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidelog.demo.flights import Flight, digest
from tidelog.errors import UserError
from tidelog.kafka_client import as_user_error, assigned_partitions, client_config

_FLUSH_S = 60.0
_SILENCE_S = 30.0
Progress = Callable[[int], None]


@dataclass(slots=True)
class Produced:
    """What was acknowledged: for each partition the records' digests by offset, in order of
    acknowledgement.
    """

    records: int = 0
    value_bytes: int = 0
    by_partition: dict[int, dict[int, bytes]] = field(default_factory=dict)
    out_of_order: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the consumer found, compared with what was acknowledged."""

    records: int
    missing: int
    unexpected: int
    different: int
    out_of_order: int
    seconds: float

    @property
    def holds(self) -> bool:
        """True if every record came once, unchanged, at its offset."""
        return not (self.missing or self.unexpected or self.different or self.out_of_order)


def produce_flights(
    flights: Iterable[Flight],
    *,
    bootstrap: str,
    zone: str,
    topic: str,
    on_progress: Progress = lambda _: None,
) -> Produced:
    """Idempotent, zstd, keyed; returns when every record is acknowledged. Raises `UserError` on a failed
    delivery.
    """
    produced = Produced()
    more: dict[str, Any] = {
        "enable.idempotence": True,
        "compression.type": "zstd",
        "linger.ms": 20,
        "batch.num.messages": 10_000,
        "queue.buffering.max.messages": 100_000,
    }
    producer = Producer(client_config(bootstrap, zone, **more))
    began = time.monotonic()
    highest: dict[int, int] = {}  # partition -> highest offset acknowledged

    def acknowledge(content: bytes) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                produced.failures.append(error.str())
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            # librdkafka calls back in the order of produce(), per partition.
            produced.out_of_order += offset <= highest.get(partition, -1)
            highest[partition] = offset
            produced.by_partition.setdefault(partition, {})[offset] = content

        return delivered

    for flight in flights:
        delivered = acknowledge(digest(flight.key, flight.value))
        while True:
            try:
                producer.produce(
                    topic, flight.value, flight.key, timestamp=flight.timestamp_ms, on_delivery=delivered
                )
                break
            except BufferError:  # the queue is full: wait for acknowledgements
                producer.poll(0.2)
        produced.records += 1
        produced.value_bytes += len(flight.value)
        if produced.records % 1_000 == 0:
            producer.poll(0)
            on_progress(produced.records)
    unsent = producer.flush(_FLUSH_S)
    if produced.failures or unsent:
        raise UserError(
            f"{len(produced.failures) + unsent:,} of {produced.records:,} records were not acknowledged"
            f" ({produced.failures[0] if produced.failures else 'no answer'})."
        )
    on_progress(produced.records)
    produced.seconds = time.monotonic() - began
    return produced


def consume_and_compare(
    produced: Produced, *, bootstrap: str, zone: str, topic: str, on_progress: Progress = lambda _: None
) -> Comparison:
    """Reads the topic from the beginning to its end as the agents of `zone` know it."""
    more: dict[str, Any] = {"group.id": "unused", "enable.auto.commit": False, "fetch.max.bytes": 16_777_216}
    consumer = Consumer(client_config(bootstrap, zone, **more))
    began = time.monotonic()
    try:
        ends = _assign_all(consumer, bootstrap, topic)
        waiting = {partition: dict(found) for partition, found in produced.by_partition.items()}
        tally = _Tally(bootstrap=bootstrap, next_offset=dict.fromkeys(ends, 0))
        heard = time.monotonic()
        while any(tally.next_offset[partition] < end for partition, end in ends.items()):
            messages = consumer.consume(num_messages=10_000, timeout=0.5)
            for message in messages:
                tally.take(message, waiting)
            if messages:
                heard = time.monotonic()
                on_progress(tally.records)
            elif time.monotonic() - heard > _SILENCE_S:
                break  # records that did not come count as missing
    finally:
        consumer.close()
    return Comparison(
        records=tally.records,
        missing=sum(map(len, waiting.values())),
        unexpected=tally.unexpected,
        different=tally.different,
        out_of_order=tally.out_of_order + produced.out_of_order,
        seconds=time.monotonic() - began,
    )


@dataclass(slots=True)
class _Tally:
    bootstrap: str
    next_offset: dict[int, int]
    records: int = 0
    unexpected: int = 0
    different: int = 0
    out_of_order: int = 0

    def take(self, message: Message, waiting: dict[int, dict[int, bytes]]) -> None:
        """Compares one record and takes it off the list."""
        error = message.error()
        if error is not None:
            raise as_user_error(error, self.bootstrap)
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.records += 1
        self.out_of_order += offset != self.next_offset[partition]
        self.next_offset[partition] = offset + 1
        expected = waiting.get(partition, {}).pop(offset, None)
        if expected is None:
            self.unexpected += 1
        elif expected != digest(_bytes(message.key()), _bytes(message.value())):
            self.different += 1


def _assign_all(consumer: Consumer, bootstrap: str, topic: str) -> dict[int, int]:
    """Assigns every partition from offset 0. Returns the end of each."""
    partitions = assigned_partitions(consumer, bootstrap, topic, _SILENCE_S)
    ends = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SILENCE_S)[1]
        for partition in partitions
    }
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return ends


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
