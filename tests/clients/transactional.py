"""Transactions through each client's own public interface, so that one test holds for all clients."""

import asyncio
import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.clients.adapters import DEADLINE_S, JavaClient
from tests.clients.foreign import Program
from tests.support.messages import place_of, value_of

Values = dict[int, list[str]]
"""Per partition, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Records as partition and value. `offset` is what the group commits in partition 0 of a source."""

    records: tuple[tuple[int, str], ...]
    commit: bool
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """The topic that a group reads while it writes transactions."""

    source: str
    group: str


class Transactional(Protocol):
    """What each client can do for the tests."""

    def transact(
        self,
        servers: str,
        topic: str,
        transactional_id: str,
        transactions: Sequence[Transaction],
        of: Transform | None = None,
    ) -> None:
        """Carries out the transactions of one producer, one after another."""
        ...

    def read(self, servers: str, topic: str, counts: Sequence[int], *, committed: bool) -> Values:
        """Reads the first records of each partition: as many of partition p as `counts[p]`. Isolation is that
        of committed or of uncommitted records. Raises after `DEADLINE_S`.
        """
        ...


class Confluent:
    """librdkafka, as confluent-kafka wraps it. What other clients write and read is compared with it."""

    def read(self, servers: str, topic: str, partitions: Sequence[int], *, committed: bool) -> Values:
        """Reads each of these partitions to the end that this isolation shows."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "isolation.level": _isolation(committed),
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        read: Values = {partition: [] for partition in partitions}
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in read])
        at_end: set[int | None] = set()
        until = time.monotonic() + DEADLINE_S
        try:
            while len(at_end) < len(partitions):
                assert time.monotonic() < until, f"only {at_end} of {partitions} partitions ended"
                message = consumer.poll(1.0)
                error = None if message is None else message.error()
                if error is not None and message is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    at_end.add(message.partition())
                elif message is not None:
                    read[place_of(message)[0]].append(value_of(message).decode())
            return read
        finally:
            consumer.close()

    def committed_offset(self, servers: str, of: Transform) -> int:
        settings = {"bootstrap.servers": servers, "group.id": of.group}
        consumer = confluent_kafka.Consumer(settings)
        try:
            place = confluent_kafka.TopicPartition(of.source, 0)
            (found,) = consumer.committed([place], timeout=DEADLINE_S)
            assert found.error is None, found.error
            return found.offset
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A client in another language."""

    program: Program

    def transact(
        self,
        servers: str,
        topic: str,
        transactional_id: str,
        transactions: Sequence[Transaction],
        of: Transform | None = None,
    ) -> None:
        asked = [
            {
                "records": [{"partition": partition, "value": value} for partition, value in one.records],
                "offset": one.offset,
                "commit": one.commit,
            }
            for one in transactions
        ]
        transform: dict[str, Any] = {} if of is None else {"source": of.source, "group": of.group}
        self.program.answer(
            "transact",
            servers=servers,
            topic=topic,
            transactional_id=transactional_id,
            transactions=asked,
            **transform,
        )

    def read(self, servers: str, topic: str, counts: Sequence[int], *, committed: bool) -> Values:
        asked = [
            {"partition": partition, "from": -2, "count": count} for partition, count in enumerate(counts)
        ]
        isolation = _isolation(committed)
        # Only a client that cannot read without a group joins this one. It commits nothing.
        group = f"{topic}-{isolation}-{sum(counts)}"
        read: Values = {partition: [] for partition in range(len(counts))}
        for record in self.program.ask(
            "consume", servers=servers, topic=topic, partitions=asked, group=group, isolation=isolation
        ):
            read[record["partition"]].append(record["value"])
        return read


class AioKafka:
    """aiokafka."""

    def transact(
        self,
        servers: str,
        topic: str,
        transactional_id: str,
        transactions: Sequence[Transaction],
        of: Transform | None = None,
    ) -> None:
        async def run() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
            async with asyncio.timeout(DEADLINE_S), producer:
                for one in transactions:
                    await producer.begin_transaction()
                    for partition, value in one.records:
                        await producer.send_and_wait(topic, value.encode(), partition=partition)
                    if of is not None:
                        place = aiokafka.TopicPartition(of.source, 0)
                        await producer.send_offsets_to_transaction({place: one.offset}, of.group)
                    await (producer.commit_transaction() if one.commit else producer.abort_transaction())

        asyncio.run(run())

    def read(self, servers: str, topic: str, counts: Sequence[int], *, committed: bool) -> Values:
        async def run() -> Values:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=servers,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level=_isolation(committed),
            )
            read: Values = {partition: [] for partition in range(len(counts))}
            async with asyncio.timeout(DEADLINE_S), consumer:
                consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in read])
                while _is_short(read, counts):
                    for place, records in (await consumer.getmany(timeout_ms=200)).items():
                        read[place.partition] += [record.value.decode() for record in records]
            return read

        return asyncio.run(run())


class KafkaPython:
    """kafka-python."""

    def transact(
        self,
        servers: str,
        topic: str,
        transactional_id: str,
        transactions: Sequence[Transaction],
        of: Transform | None = None,
    ) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
        try:
            producer.init_transactions()
            for one in transactions:
                producer.begin_transaction()
                sent = [
                    producer.send(topic, value.encode(), partition=partition)
                    for partition, value in one.records
                ]
                for acknowledgement in sent:
                    acknowledgement.get(timeout=DEADLINE_S)
                if of is not None:
                    offsets = {
                        kafka.TopicPartition(of.source, 0): kafka.OffsetAndMetadata(one.offset, "", -1)
                    }
                    producer.send_offsets_to_transaction(offsets, of.group)
                if one.commit:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        finally:
            producer.close(timeout=5)

    def read(self, servers: str, topic: str, counts: Sequence[int], *, committed: bool) -> Values:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=_isolation(committed),
        )
        read: Values = {partition: [] for partition in range(len(counts))}
        until = time.monotonic() + DEADLINE_S
        try:
            consumer.assign([kafka.TopicPartition(topic, partition) for partition in read])
            while _is_short(read, counts):
                assert time.monotonic() < until, f"read {read}, and {counts} were asked for"
                for place, records in consumer.poll(timeout_ms=200).items():
                    read[place.partition] += [record.value.decode() for record in records]
            return read
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApacheKafka:
    """Apache Kafka's own client."""

    client: JavaClient

    def transact(
        self,
        servers: str,
        topic: str,
        transactional_id: str,
        transactions: Sequence[Transaction],
        of: Transform | None = None,
    ) -> None:
        self.client.transact(
            servers,
            topic,
            transactional_id,
            "".join(_line(one, with_offset=of is not None) for one in transactions),
            *(("-", "-") if of is None else (of.source, of.group)),
        )

    def read(self, servers: str, topic: str, counts: Sequence[int], *, committed: bool) -> Values:
        """Reads to the end, which the client itself asks for."""
        found = self.client.consume(servers, [topic], isolation=_isolation(committed))
        return {
            partition: [(record.value or b"").decode() for record in found.get((topic, partition), [])]
            for partition in range(len(counts))
        }


def _line(one: Transaction, *, with_offset: bool) -> str:
    records = ",".join(
        f"{partition}:={base64.b64encode(value.encode()).decode()}" for partition, value in one.records
    )
    return f"{'commit' if one.commit else 'abort'}\t{one.offset if with_offset else '-'}\t{records}\n"


def _is_short(read: Values, counts: Sequence[int]) -> bool:
    return any(len(read[partition]) < count for partition, count in enumerate(counts))


def _isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"
