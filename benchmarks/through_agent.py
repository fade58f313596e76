"""Throughput, latency and CPU through a running agent, with librdkafka as the client, on the same machine."""

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import confluent_kafka
import confluent_kafka.admin
import psutil

from tidelog.agent_process import AgentProcess
from tidelog.stack import Stack

PARTITIONS = 6
RECORD_BYTES = 1_000
_DEADLINE_S = 120.0
_LATENCY_RECORDS_PER_S = 500
_WARM_UP_RECORDS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes of values moved, and what it took."""

    bytes: int
    seconds: float
    agent_cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.agent_cpu_s / (self.bytes / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds from handing a record to the client to its acknowledgement."""

    p50_ms: float
    p99_ms: float


def create_topic(stack: Stack) -> str:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": stack.addresses.bootstrap})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin.create_topics([confluent_kafka.admin.NewTopic(name, PARTITIONS, 1)])[name].result(30)  # type: ignore[attr-defined]
    return name


def _cpu_s(agents: Sequence[AgentProcess]) -> float:
    times = [psutil.Process(agent.pid).cpu_times() for agent in agents]
    return sum(time.user + time.system for time in times)


def _producer(agent: AgentProcess, **settings: object) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": agent.address.bootstrap,
            "client.id": f"tidelog_zone={agent.address.zone}",
            "enable.idempotence": True,
            "message.max.bytes": 1_000_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
            **settings,
        }
    )


def produce(stack: Stack, agent: AgentProcess, topic: str, size_bytes: int) -> Transfer:
    """Random, uncompressed records of 1 kB, as fast as one client can."""
    producer = _producer(agent, **{"linger.ms": 20})
    pool = os.urandom(RECORD_BYTES * 1024)
    values = [
        pool[start : start + RECORD_BYTES] for start in range(0, len(pool), 977) if start + RECORD_BYTES <= len(pool)
    ]
    _send(producer, topic, values, _WARM_UP_RECORDS)
    count = size_bytes // RECORD_BYTES
    before, started = _cpu_s(stack.agents), time.perf_counter()
    _send(producer, topic, values, count)
    return Transfer(
        bytes=count * RECORD_BYTES,
        seconds=time.perf_counter() - started,
        agent_cpu_s=_cpu_s(stack.agents) - before,
    )


def _send(producer: confluent_kafka.Producer, topic: str, values: Sequence[bytes], count: int) -> None:
    failures: list[confluent_kafka.KafkaError] = []
    delivered = 0

    def answered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        nonlocal delivered
        delivered += 1
        if error is not None:
            failures.append(error)

    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic, values[number % len(values)], partition=number // 500 % PARTITIONS, on_delivery=answered
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(_DEADLINE_S)
    assert delivered == count, f"{delivered} of {count} answered"
    assert not failures, f"{len(failures)} refused: {failures[:3]}"


def consume(stack: Stack, agent: AgentProcess, topic: str) -> Transfer:
    """Everything in `topic`, by one client in the agent's zone."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.address.bootstrap,
            "client.id": f"tidelog_zone={agent.address.zone}",
            "group.id": "unused",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        partitions = [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        wanted = sum(consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions)
        before, started, records = _cpu_s(stack.agents), time.perf_counter(), 0
        consumer.assign(partitions)
        while records < wanted:
            assert time.perf_counter() - started < _DEADLINE_S, f"consumed {records} of {wanted}"
            records += len(consumer.consume(10_000, timeout=0.2))
        return Transfer(
            bytes=wanted * RECORD_BYTES,
            seconds=time.perf_counter() - started,
            agent_cpu_s=_cpu_s(stack.agents) - before,
        )
    finally:
        consumer.close()


def acknowledgement_latency(agent: AgentProcess, topic: str, seconds: float) -> Latency:
    """Steady small records, far from saturation."""
    producer = _producer(agent, **{"linger.ms": 0})
    taken_ms: list[float] = []
    payload = os.urandom(200)

    producer.produce(topic, payload)  # connects, and takes a producer id
    producer.flush(_DEADLINE_S)

    def send(started: float) -> None:
        producer.produce(
            topic,
            payload,
            on_delivery=lambda error, _: taken_ms.append((time.perf_counter() - started) * 1000) if not error else None,
        )

    started = time.perf_counter()
    sent = 0
    while (elapsed := time.perf_counter() - started) < seconds:
        while sent < elapsed * _LATENCY_RECORDS_PER_S:
            send(time.perf_counter())
            sent += 1
        producer.poll(0.001)
    producer.flush(_DEADLINE_S)
    assert len(taken_ms) == sent, f"{sent - len(taken_ms)} of {sent} records were refused"
    ordered = sorted(taken_ms)
    return Latency(p50_ms=ordered[len(ordered) // 2], p99_ms=ordered[int(len(ordered) * 0.99)])
