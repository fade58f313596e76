"""Transactions of real clients (librdkafka), and readers of what they write, for tests/faults and
`python -m tests.faults.long_transactions`.

Each runs in a thread until `stop`, and remembers what its client was told.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, Queue
from typing import IO, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.faults.transaction_client import TIMEOUT_S, end_transaction, new_producer
from tests.faults.transaction_history import End, Place, Transaction
from tests.faults.transaction_processor import Work
from tidelog.devstack.stack import Stack

PARTITIONS: Final = 6
_JOIN_S: Final = 240.0
_SILENCE_S: Final = 150.0
"""A processor that says nothing for so long hangs: no wait of its client is longer than 120 seconds."""


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
        return new_producer(self._servers, f"{self._topic}-{self._name}")

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
            end = end_transaction(producer, aborts=aborts)
            if successor is not None and end is End.UNKNOWN:
                end = End.ABORTED  # by the successor, which began before this end was tried
                self.zombies_refused += 1
            self.done.append(Transaction(name=name, partitions=partitions, end=end))
            if successor is not None:
                producer = successor
            elif end is End.UNKNOWN:
                return


class Processor(_Stopped):
    """A `transaction_processor`, as a process. If it ends, another one takes over its transactional id; if it
    hangs, it is killed first."""

    def __init__(
        self, servers: str, source: str, sinks: Sequence[str], name: str, seed: int, habits: Habits
    ) -> None:
        super().__init__()
        self.committed = 0
        self.refused = 0
        self.hung = 0
        self._chance = random.Random(seed)
        self._work = Work(
            servers=servers,
            source=source,
            sinks=sinks,
            name=name,
            seed=seed,
            aborts=habits.aborts,
            zombies=habits.zombies,
        )

    def _go_on(self) -> None:
        work = replace(self._work, seed=self._chance.getrandbits(32))
        command = [sys.executable, "-m", "tests.faults.transaction_processor", work.as_json()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            lines: Queue[str] = Queue()
            reading = threading.Thread(target=_put_lines, args=(process.stdout, lines), daemon=True)
            reading.start()
            try:
                while line := lines.get(timeout=_SILENCE_S):
                    self.committed += line == "committed\n"
                    self.refused += line == "refused\n"
                    if self._stop_it.is_set() and not process.stdin.closed:
                        process.stdin.close()
            except Empty:
                self.hung += 1
            finally:
                process.kill()
                reading.join()


def _put_lines(stream: IO[str], lines: "Queue[str]") -> None:
    """Each line, and an empty one at the end."""
    for line in stream:
        lines.put(line)
    lines.put("")


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
        until = time.monotonic() + 120
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
