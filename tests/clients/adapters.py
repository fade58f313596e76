"""Four clients behind one interface, so that one test holds for all of them.

An adapter sends and reads through the client's own public interface and changes nothing but names. What a
client cannot express (a header without a value, say) is a property of its adapter: that record is left out
for it alone.
"""

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.support.java import Java
from tests.support.messages import headers_of, place_of, topic_of

DEADLINE_S = 90.0
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record as given to a producer."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A record as a consumer returned it."""

    offset: int
    timestamp_ms: int
    log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers


class Client(Protocol):
    """What each client can do for the tests. `client_id` carries the zone."""

    name: str
    sends_null_header_values: bool
    sends_null_key_with_null_value: bool

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        compression: str,
        client_id: str = "",
    ) -> list[int]:
        """The offsets acknowledged, in the order of `records`."""
        ...

    def consume(
        self, servers: str, topics: Sequence[str], client_id: str = ""
    ) -> Mapping[tuple[str, int], list[Read]]:
        """Reads every partition from its beginning to its end at the time of the call. Raises `TimeoutError`
        after `DEADLINE_S`.
        """
        ...


class Confluent:
    """librdkafka, as confluent-kafka wraps it; idempotent."""

    name = "confluent-kafka"
    sends_null_header_values = True
    sends_null_key_with_null_value = True

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        compression: str,
        client_id: str = "",
    ) -> list[int]:
        settings = {
            "bootstrap.servers": servers,
            "client.id": client_id,
            "compression.type": compression,
            "linger.ms": 5,
        }
        producer = confluent_kafka.Producer(
            {**settings, "enable.idempotence": True, "message.max.bytes": 8_000_000}
        )
        offsets: dict[int, int] = {}
        failures: list[confluent_kafka.KafkaError] = []
        for index, record in enumerate(records):

            def delivered(
                error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message, index: int = index
            ) -> None:
                if error is not None:
                    failures.append(error)
                else:
                    offsets[index] = place_of(message)[1]

            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        left = producer.flush(DEADLINE_S)
        if failures or left:
            raise RuntimeError(f"{left} records without an answer, refused: {failures[:3]}")
        return [offsets[index] for index in range(len(records))]

    def consume(
        self, servers: str, topics: Sequence[str], client_id: str = ""
    ) -> Mapping[tuple[str, int], list[Read]]:
        settings = {
            "bootstrap.servers": servers,
            "client.id": client_id,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
        consumer = confluent_kafka.Consumer({**settings, "fetch.wait.max.ms": 100})
        try:
            known = {
                topic: consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
                for topic in topics
            }
            asked = [
                confluent_kafka.TopicPartition(topic, p, 0) for topic, found in known.items() for p in found
            ]
            ends = {
                (tp.topic, tp.partition): consumer.get_watermark_offsets(tp, timeout=DEADLINE_S)[1]
                for tp in asked
            }
            consumer.assign(asked)
            read: dict[tuple[str, int], list[Read]] = {place: [] for place in ends}
            until = time.monotonic() + DEADLINE_S
            while any(len(records) < ends[place] for place, records in read.items()):
                if time.monotonic() > until:
                    raise TimeoutError(f"read { ({p: len(r) for p, r in read.items()}) } of {ends}")
                for message in consumer.consume(500, timeout=0.2):
                    if message.error() is not None:
                        raise confluent_kafka.KafkaException(message.error())
                    read[topic_of(message), place_of(message)[0]].append(self._read(message))
            return read
        finally:
            consumer.close()

    @staticmethod
    def _read(message: confluent_kafka.Message) -> Read:
        kind, timestamp_ms = message.timestamp()
        return Read(
            offset=place_of(message)[1],
            timestamp_ms=timestamp_ms,
            log_append_time=kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME,
            key=message.key(),
            value=message.value(),
            headers=headers_of(message),
        )


class AioKafka:
    """aiokafka, idempotent."""

    name = "aiokafka"
    sends_null_header_values = True
    sends_null_key_with_null_value = False

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        compression: str,
        client_id: str = "",
    ) -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers,
                client_id=client_id,
                compression_type=None if compression == "none" else compression,
                enable_idempotence=True,
                max_request_size=8_000_000,
                linger_ms=5,
            )
            async with asyncio.timeout(DEADLINE_S), producer:
                acknowledged = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                return [(await acknowledgement).offset for acknowledgement in acknowledged]

        return asyncio.run(run())

    def consume(
        self, servers: str, topics: Sequence[str], client_id: str = ""
    ) -> Mapping[tuple[str, int], list[Read]]:
        async def run() -> Mapping[tuple[str, int], list[Read]]:
            consumer = aiokafka.AIOKafkaConsumer(
                *topics,
                bootstrap_servers=servers,
                client_id=client_id,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            async with asyncio.timeout(DEADLINE_S), consumer:
                asked = [
                    aiokafka.TopicPartition(topic, p)
                    for topic in topics
                    for p in consumer.partitions_for_topic(topic) or ()
                ]
                ends = await consumer.end_offsets(asked)
                read: dict[tuple[str, int], list[Read]] = {(tp.topic, tp.partition): [] for tp in asked}
                while any(len(read[tp.topic, tp.partition]) < end for tp, end in ends.items()):
                    for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                        read[tp.topic, tp.partition] += [_from_python_client(record) for record in records]
                return read

        return asyncio.run(run())


class KafkaPython:
    """kafka-python, idempotent."""

    name = "kafka-python"
    sends_null_header_values = False
    sends_null_key_with_null_value = False

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        compression: str,
        client_id: str = "",
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            client_id=client_id,
            compression_type=None if compression == "none" else compression,
            enable_idempotence=True,
            max_request_size=8_000_000,
            linger_ms=5,
        )
        try:
            acknowledged = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            return [acknowledgement.get(timeout=DEADLINE_S).offset for acknowledgement in acknowledged]
        finally:
            producer.close(timeout=5)

    def consume(
        self, servers: str, topics: Sequence[str], client_id: str = ""
    ) -> Mapping[tuple[str, int], list[Read]]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            client_id=client_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            asked = [
                kafka.TopicPartition(topic, p)
                for topic in topics
                for p in consumer.partitions_for_topic(topic) or ()
            ]
            ends = consumer.end_offsets(asked)
            consumer.assign(asked)
            consumer.seek_to_beginning(*asked)
            read: dict[tuple[str, int], list[Read]] = {(tp.topic, tp.partition): [] for tp in asked}
            until = time.monotonic() + DEADLINE_S
            while any(len(read[tp.topic, tp.partition]) < end for tp, end in ends.items()):
                if time.monotonic() > until:
                    raise TimeoutError(f"read { ({p: len(r) for p, r in read.items()}) } of {ends}")
                for tp, records in consumer.poll(timeout_ms=200).items():
                    read[tp.topic, tp.partition] += [_from_python_client(record) for record in records]
            return read
        finally:
            consumer.close()


def _from_python_client(record: object) -> Read:
    """aiokafka's and kafka-python's records have the same attributes."""
    return Read(
        offset=record.offset,  # type: ignore[attr-defined]
        timestamp_ms=record.timestamp,  # type: ignore[attr-defined]
        log_append_time=record.timestamp_type == 1,  # type: ignore[attr-defined]
        key=record.key,  # type: ignore[attr-defined]
        value=record.value,  # type: ignore[attr-defined]
        headers=tuple((name, value) for name, value in record.headers),  # type: ignore[attr-defined]
    )


class JavaClient:
    """Apache Kafka's own client, through `LogClient.java`; idempotent, as it is by default."""

    name = "java"
    sends_null_header_values = True
    sends_null_key_with_null_value = True

    def __init__(self, java: Java) -> None:
        self._java = java

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        compression: str,
        client_id: str = "",
    ) -> list[int]:
        answers = self.answers(
            servers, topic, partition, records, f"compression.type={compression}", f"client.id={client_id}"
        )
        return [int(answer) for answer in answers]

    def answers(
        self, servers: str, topic: str, partition: int, records: Sequence[Sent], *settings: str
    ) -> list[str]:
        """Per record its offset, or "!" and the name of the client's exception."""
        lines = "".join(f"{partition}\t{_line(record)}\n" for record in records)
        limits = (
            "max.request.size=8000000",
            "buffer.memory=64000000",
            "delivery.timeout.ms=80000",
            "request.timeout.ms=30000",
        )
        arguments = ("produce", topic, f"bootstrap.servers={servers}", *limits, "linger.ms=5", *settings)
        return self._java.run("LogClient", arguments, stdin=lines, timeout_s=DEADLINE_S + 15).split()

    def transact(
        self, servers: str, topic: str, transactional_id: str, lines: str, source: str, group: str
    ) -> None:
        """Carries out one transaction per line, in the form that `LogClient.java` says."""
        settings = (f"bootstrap.servers={servers}", f"transactional.id={transactional_id}")
        arguments = ("transact", topic, source, group, *settings)
        self._java.run("LogClient", arguments, stdin=lines, timeout_s=DEADLINE_S + 15)

    def consume(
        self,
        servers: str,
        topics: Sequence[str],
        client_id: str = "",
        isolation: str = "read_uncommitted",
    ) -> Mapping[tuple[str, int], list[Read]]:
        settings = (
            f"bootstrap.servers={servers}",
            f"client.id={client_id}",
            f"isolation.level={isolation}",
        )
        arguments = ("consume", ",".join(topics), *settings)
        read: dict[tuple[str, int], list[Read]] = {}
        for line in self._java.run("LogClient", arguments, timeout_s=DEADLINE_S + 15).splitlines():
            topic, partition, offset, timestamp_ms, kind, key, value, headers = line.split("\t")
            read.setdefault((topic, int(partition)), []).append(
                Read(
                    offset=int(offset),
                    timestamp_ms=int(timestamp_ms),
                    log_append_time=kind == "LogAppendTime",
                    key=_bytes(key),
                    value=_bytes(value),
                    headers=tuple(_header(header) for header in headers.split(",") if headers),
                )
            )
        return read

    def offsets_for_times(
        self, servers: str, topic: str, timestamps: Sequence[int]
    ) -> dict[int, tuple[int, int] | None]:
        """Per timestamp the offset and timestamp found in partition 0."""
        arguments = ("times", topic, ",".join(map(str, timestamps)), f"bootstrap.servers={servers}")
        answers = (line.split("\t") for line in self._java.run("LogClient", arguments).splitlines())
        return {
            int(asked): None if found == ["-"] else (int(found[0]), int(found[1]))
            for asked, *found in answers
        }


def _line(record: Sent) -> str:
    headers = ",".join(f"{_field(name.encode())[1:]}:{_field(value)}" for name, value in record.headers)
    return "\t".join((str(record.timestamp_ms), _field(record.key), _field(record.value), headers))


def _field(data: bytes | None) -> str:
    return "-" if data is None else "=" + base64.b64encode(data).decode()


def _bytes(field: str) -> bytes | None:
    return None if field == "-" else base64.b64decode(field[1:])


def _header(text: str) -> tuple[str, bytes | None]:
    name, value = text.split(":", 1)
    return base64.b64decode(name).decode(), _bytes(value)
