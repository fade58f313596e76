"""Reads committed records of a topic in a group, and writes each to other topics, in transactions with the
offsets that it has read (KIP-447): `python -m tests.faults.transaction_processor` with JSON as `Work` says.

Now and then it pauses in a transaction until the group has given its partitions to another member: then its
transaction must not commit. It prints a line per round: "committed", "refused" or "idle". It ends at the end
of its standard input, or when its producer is broken.

It is a program of its own because its client may hang: librdkafka 2.16 waits without end for a group
coordinator that has left the cluster (its issue 5511), and the close of a consumer may never return, with
Python's lock held.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.faults.transaction_client import TIMEOUT_S, end_transaction, new_producer
from tests.faults.transaction_history import End, Place, processed

_SESSION_MS: Final = 6_000
_ZOMBIE_PAUSE_S: Final = 9.0
"""Longer than a group waits for its member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    servers: str
    source: str
    sinks: Sequence[str]
    name: str
    seed: int
    aborts: float
    zombies: float
    """How often, of all transactions, it aborts or pauses."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def _process_until(ending: threading.Event, work: Work) -> None:
    producer = new_producer(work.servers, f"{work.source}-processor-{work.name}")
    consumer = Consumer(
        {
            "bootstrap.servers": work.servers,
            "group.id": f"{work.source}-processors",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": _SESSION_MS,
            "max.poll.interval.ms": _SESSION_MS,
            "heartbeat.interval.ms": 500,
            "log_level": 0,
        }
    )
    consumer.subscribe([work.source])
    chance, said = random.Random(work.seed), ""
    try:
        while not ending.is_set() and said != "refused":
            said = _process(consumer, producer, work, chance)
            print(said, flush=True)
    except KafkaException:
        print("refused", flush=True)
    consumer.close()


def _process(consumer: Consumer, producer: Producer, work: Work, chance: random.Random) -> str:
    """After "refused" the records have to be read again."""
    messages = [message for message in consumer.consume(200, timeout=0.2) if message.error() is None]
    if not messages:
        return "idle"
    # Before a pause: a member that was put out has no generation to be refused by.
    metadata = consumer.consumer_group_metadata()
    producer.begin_transaction()
    ends: dict[int, int] = {}
    for message in messages:
        (partition, offset), value = _processed(message)
        ends[partition] = max(ends.get(partition, 0), offset + 1)
        for sink in work.sinks:
            producer.produce(sink, value, partition=partition)
    if chance.random() < work.zombies:
        producer.flush(TIMEOUT_S)
        time.sleep(_ZOMBIE_PAUSE_S)
    aborts = chance.random() < work.aborts
    if not aborts:
        positions = [TopicPartition(work.source, partition, end) for partition, end in ends.items()]
        producer.send_offsets_to_transaction(positions, metadata, TIMEOUT_S)
    return "committed" if end_transaction(producer, aborts=aborts) is End.COMMITTED else "refused"


def _processed(message: Message) -> tuple[Place, bytes]:
    """Where the record is, and what is written for it."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return (partition, offset), processed((partition, offset), value)


def main() -> None:
    ending = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    _process_until(ending, Work(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
