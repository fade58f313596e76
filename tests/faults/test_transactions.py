"""Transactions while agents are killed and frozen: each is seen whole or not at all."""

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.conftest import LEASES, create_topic
from tests.faults.transaction_history import End, Place, Transaction, faults
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PARTITIONS = 6
PRODUCERS = 4
ENVIRONMENT = {
    **LEASES,
    "TIDELOG_TRANSACTION_TIMEOUT_INTERVAL_S": "0.5",
}
TIMEOUT_S = 30.0

pytestmark = pytest.mark.faults


class Writer(threading.Thread):
    """One transactional id: transactions over some partitions, one after another, until `stop`."""

    def __init__(self, servers: str, topic: str, name: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.done: list[Transaction] = []
        self.broken: BaseException | None = None
        self._servers = servers
        self._topic = topic
        self._name = name
        self._chance = random.Random(seed)
        self._stop_it = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_it.is_set():
                self._write(self._producer())
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.broken = error

    def stop(self) -> None:
        self._stop_it.set()
        self.join(180)
        assert not self.is_alive()
        if self.broken is not None:
            raise self.broken

    def end_what_is_open(self) -> None:
        """A transaction whose end is unknown may be open still: another producer of the id aborts it."""
        self._producer()

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": f"{self._topic}-{self._name}",
                "transaction.timeout.ms": 20_000,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        until = time.monotonic() + 120
        while True:
            try:
                producer.init_transactions(TIMEOUT_S)
            except KafkaException as failed:
                if not failed.args[0].retriable() or time.monotonic() > until:
                    raise
            else:
                return producer

    def _write(self, producer: Producer) -> None:
        """Until the producer is fenced or broken: then the next one takes over the id."""
        while not self._stop_it.is_set():
            name = b"%s:%d" % (self._name.encode(), len(self.done))
            partitions = frozenset(self._chance.sample(range(PARTITIONS), self._chance.randint(1, 4)))
            aborts = self._chance.random() < 0.2
            producer.begin_transaction()
            for partition in partitions:
                producer.produce(self._topic, name, partition=partition)
            if aborts:
                producer.flush(TIMEOUT_S)  # else its records would not even be sent
            end = self._end(producer, aborts=aborts)
            self.done.append(Transaction(name=name, partitions=partitions, end=end))
            if end is End.UNKNOWN:
                return

    def _end(self, producer: Producer, *, aborts: bool) -> End:
        until = time.monotonic() + 60
        while True:
            try:
                if aborts:
                    producer.abort_transaction(TIMEOUT_S)
                    return End.ABORTED
                producer.commit_transaction(TIMEOUT_S)
            except KafkaException as failed:
                error: KafkaError = failed.args[0]
                if error.txn_requires_abort():
                    aborts = True
                elif not error.retriable() or time.monotonic() > until:
                    return End.UNKNOWN
            else:
                return End.COMMITTED


@dataclass
class Reader(threading.Thread):
    """Reads committed data along, all partitions, until `stop`."""

    servers: str
    topic: str
    seen: list[tuple[Place, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_it = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
        while not self._stop_it.is_set():
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            self.seen.append(((partition, offset), value))
        consumer.close()

    def stop(self) -> None:
        self._stop_it.set()
        self.join(30)
        assert not self.is_alive()


def read_all(servers: str, topic: str, isolation: str) -> dict[Place, bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[Place, bytes] = {}
    at_end: set[int] = set()
    until = time.monotonic() + 120
    while len(at_end) < PARTITIONS:
        assert time.monotonic() < until, f"only {sorted(at_end)} were read to their ends"
        message = consumer.poll(1.0)
        if message is None:
            continue
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                at_end.add(partition)
            continue
        value = message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        found[partition, offset] = value
    consumer.close()
    return found


@pytest.mark.timeout(400)
def test_transactions_are_whole_while_agents_die_and_freeze(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack(agents=2, agent_environment=ENVIRONMENT)
    servers = stack.addresses.bootstrap
    topic = create_topic(servers, PARTITIONS)
    [seed] = seeds(1)
    chance = random.Random(seed)
    writers = [Writer(servers, topic, f"p{number}", seed + number) for number in range(PRODUCERS)]
    reader = Reader(servers, topic)
    for thread in (*writers, reader):
        thread.start()

    for harm in ("kill", "freeze", "kill"):
        time.sleep(chance.uniform(2.0, 4.0))
        victim = chance.randrange(2)
        if harm == "freeze":
            stack.agents[victim].signal(signal.SIGSTOP)
            time.sleep(5.0)
            stack.agents[victim].signal(signal.SIGCONT)
        else:
            stack.kill(victim)
            stack.restart(victim)
    time.sleep(2.0)
    for writer in writers:
        writer.stop()
        writer.end_what_is_open()
    time.sleep(2.0)
    reader.stop()

    transactions = [transaction for writer in writers for transaction in writer.done]
    committed = sum(transaction.end is End.COMMITTED for transaction in transactions)
    print(f"{len(transactions)} transactions, {committed} committed, {len(reader.seen)} records read along")
    final = read_all(servers, topic, "read_committed")
    assert faults(transactions, final, [reader.seen]) == []
    assert committed > 50
    everything = read_all(servers, topic, "read_uncommitted")
    assert any("was aborted" in fault for fault in faults(transactions, everything)), (
        "the checker sees aborts"
    )
