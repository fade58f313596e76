"""Transactions of real clients (librdkafka), and readers of what they write, for tests/faults and
`python -m tests.faults.long_transactions`.

Each runs in a thread until `stop`, and remembers what its client was told.
"""

import random
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.faults.transaction_history import End, Place, Transaction, processed
from tidelog.devstack.stack import Stack

PARTITIONS: Final = 6
TIMEOUT_S: Final = 30.0
_JOIN_S: Final = 240.0
_SESSION_MS: Final = 6_000
_ZOMBIE_PAUSE_S: Final = 9.0
"""Longer than a group waits for its member."""


class _Stopped(threading.Thread):
    """A thread that is asked to stop, and whose fault the test shows."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._broken: BaseException | None = None
        self._stop_it = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_it.is_set():
                self._go_on()
        except BaseException as error:  # noqa: BLE001 - raised again in stop
            self._broken = error

    def _go_on(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._stop_it.set()
        self.join(_JOIN_S)
        assert not self.is_alive(), f"{type(self).__name__} hangs"
        if self._broken is not None:
            raise self._broken


def _new_producer(servers: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
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


def _end(producer: Producer, *, aborts: bool) -> End:
    """Commits or aborts until the client says how the transaction ended, or that it cannot know."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often, of all transactions, a writer or a processor does what is rare."""

    aborts: float = 0.2
    zombies: float = 0.02


class Writer(_Stopped):
    """One transactional id: transactions over some partitions, one after another."""

    def __init__(self, servers: str, topic: str, name: str, seed: int, habits: Habits) -> None:
        super().__init__()
        self.done: list[Transaction] = []
        self.zombies_refused = 0
        self._servers = servers
        self._topic = topic
        self._name = name
        self._chance = random.Random(seed)
        self._habits = habits

    def _go_on(self) -> None:
        self._write(self._producer())

    def end_what_is_open(self) -> None:
        """A transaction whose end is unknown may be open still: another producer of the id aborts it."""
        self._producer()

    def _producer(self) -> Producer:
        return _new_producer(self._servers, f"{self._topic}-{self._name}")

    def _write(self, producer: Producer) -> None:
        """Until the producer is fenced or broken: then the next one takes over the id."""
        while not self._stop_it.is_set():
            name = b"%s:%d" % (self._name.encode(), len(self.done))
            partitions = frozenset(self._chance.sample(range(PARTITIONS), self._chance.randint(1, 4)))
            aborts = self._chance.random() < self._habits.aborts
            is_zombie = self._chance.random() < self._habits.zombies
            producer.begin_transaction()
            for partition in partitions:
                producer.produce(self._topic, name, partition=partition)
            if aborts or is_zombie:
                producer.flush(TIMEOUT_S)  # else its records would not even be sent
            successor = self._producer() if is_zombie else None
            end = _end(producer, aborts=aborts)
            if successor is not None and end is End.UNKNOWN:
                end = End.ABORTED  # by the successor, which began before this end was tried
                self.zombies_refused += 1
            self.done.append(Transaction(name=name, partitions=partitions, end=end))
            if successor is not None:
                producer = successor
            elif end is End.UNKNOWN:
                return


class Processor(_Stopped):
    """Reads committed records of a topic in a group, and writes each to two topics, in transactions with the
    offsets that it has read (KIP-447).

    Now and then it pauses in a transaction until the group has given its partitions to another member: then
    its transaction must not commit.
    """

    def __init__(
        self, servers: str, source: str, sinks: Sequence[str], name: str, seed: int, habits: Habits
    ) -> None:
        super().__init__()
        self.committed = 0
        self.refused = 0
        self.hung: list[Producer] = []
        self._servers = servers
        self._source = source
        self._sinks = sinks
        self._name = name
        self._chance = random.Random(seed)
        self._habits = habits

    def _go_on(self) -> None:
        producer = _new_producer(self._servers, f"{self._source}-processor-{self._name}")
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": f"{self._source}-processors",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": _SESSION_MS,
                "max.poll.interval.ms": _SESSION_MS,
                "heartbeat.interval.ms": 500,
                "log_level": 0,
            }
        )
        consumer.subscribe([self._source])
        try:
            while not self._stop_it.is_set() and self._process(consumer, producer):
                pass
        except KafkaException:
            self.refused += 1
        finally:
            consumer.close()

    def _process(self, consumer: Consumer, producer: Producer) -> bool:
        """Returns False if the records have to be read again."""
        messages = [message for message in consumer.consume(200, timeout=0.2) if message.error() is None]
        if not messages:
            return True
        # Before a pause: a member that was put out has no generation to be refused by.
        metadata = consumer.consumer_group_metadata()
        producer.begin_transaction()
        for message in messages:
            (partition, _), value = _processed(message)
            for sink in self._sinks:
                producer.produce(sink, value, partition=partition)
        if self._chance.random() < self._habits.zombies:
            producer.flush(TIMEOUT_S)
            time.sleep(_ZOMBIE_PAUSE_S)
        aborts = self._chance.random() < self._habits.aborts
        if not aborts and not self._sent_offsets(producer, self._positions(messages), metadata):
            return False
        if _end(producer, aborts=aborts) is not End.COMMITTED:
            self.refused += not aborts
            return False
        self.committed += 1
        return True

    def _sent_offsets(self, producer: Producer, positions: list[TopicPartition], metadata: object) -> bool:
        """False if the client hangs, as librdkafka 2.16 does once the group's coordinator has left the
        cluster (its issue 5511). The producer is kept: its end would hang, too.
        """
        answered: Future[None] = Future()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(positions, metadata, TIMEOUT_S)
            except KafkaException as failed:
                answered.set_exception(failed)
            else:
                answered.set_result(None)

        threading.Thread(target=send, daemon=True).start()
        try:
            answered.result(2 * TIMEOUT_S)
        except TimeoutError:
            self.hung.append(producer)
            return False
        return True

    def _positions(self, messages: Sequence[Message]) -> list[TopicPartition]:
        ends: dict[int, int] = {}
        for message in messages:
            (partition, offset), _ = _processed(message)
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return [TopicPartition(self._source, partition, end) for partition, end in ends.items()]


def _processed(message: Message) -> tuple[Place, bytes]:
    """Where the record is, and what is written for it."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return (partition, offset), processed((partition, offset), value)


@dataclass
class Reader(_Stopped):
    """Reads committed data along, all partitions."""

    servers: str
    topic: str
    seen: list[tuple[Place, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    __hash__ = threading.Thread.__hash__

    def _go_on(self) -> None:
        consumer = Consumer(_reading(self.servers, "read_committed"))
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


def _reading(servers: str, isolation: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": servers,
        "group.id": "unused",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "log_level": 0,
    }


def read_all(servers: str, topic: str, isolation: str) -> dict[Place, bytes]:
    consumer = Consumer(_reading(servers, isolation))
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


def read_processed(servers: str, sinks: Sequence[str], records: int) -> dict[str, dict[Place, bytes]]:
    """Reads the sinks again until each has so many records, for at most two minutes."""
    until = time.monotonic() + 120
    while True:
        found = {sink: read_all(servers, sink, "read_committed") for sink in sinks}
        if all(len(read) >= records for read in found.values()) or time.monotonic() > until:
            return found
        time.sleep(1.0)


def harm(stack: Stack, kind: str, chance: random.Random) -> None:
    """Kills or freezes an agent, or kills Postgres. It comes back."""
    victim = chance.randrange(len(stack.agents))
    match kind:
        case "kill":
            stack.kill(victim)
            stack.restart(victim)
        case "freeze":
            stack.agents[victim].signal(signal.SIGSTOP)
            time.sleep(5.0)
            stack.agents[victim].signal(signal.SIGCONT)
        case "postgres":
            stack.postgres.kill()
            stack.postgres.start()
        case _:
            raise ValueError(kind)
