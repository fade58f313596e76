"""Agents killed and frozen while they clean a compacted topic and merge it, under load.

A producer updates and deletes keys; a consumer reads along from the start and keeps a table. Another one
begins anew again and again. At the end both have what the last acknowledged record of each key says, and
every record that is still there is where it was written.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.faults.conftest import LEASES, create_topic, wait_until_doctor_finds_nothing
from tests.faults.test_merging import LEASE_S, MERGES, QUICK_GARBAGE
from tests.support.key_file import key_line
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack

PARTITIONS = 3
KEYS = 400
HARMS = 4
CLEANINGS = {
    "TIDELOG_CLEAN_INTERVAL_S": "0.2",
    "TIDELOG_CLEAN_LEASE_S": str(LEASE_S),
    "TIDELOG_CLEAN_KEYS_BYTES": "8192",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "600000",
}

pytestmark = pytest.mark.faults

Records = dict[tuple[int, int], tuple[bytes, bytes | None]]
"""By partition and offset: key and value."""


@dataclass
class Updates:
    """What was acknowledged, by partition and offset."""

    seed: int
    records: Records = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def acknowledge(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        partition, offset, key = message.partition(), message.offset(), message.key()
        assert partition is not None
        assert offset is not None
        assert isinstance(key, bytes)
        value = message.value()
        assert value is None or isinstance(value, bytes)
        self.records[partition, offset] = key, value

    def table(self) -> dict[bytes, bytes]:
        """The last value of each key."""
        table: dict[bytes, bytes | None] = {}
        for place in sorted(self.records):
            key, value = self.records[place]
            table[key] = value
        return {key: value for key, value in table.items() if value is not None}

    def ends(self) -> dict[int, int]:
        return {
            partition: max((offset for at, offset in list(self.records) if at == partition), default=-1)
            for partition in range(PARTITIONS)
        }


class Writer(threading.Thread):
    """Writes until `stop`. Ordered and without duplicates, as the table needs it."""

    def __init__(self, servers: str, topic: str, updates: Updates) -> None:
        super().__init__()
        self._topic = topic
        self._updates = updates
        self._stop_it = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.timeout.ms": 120_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        chance = random.Random(self._updates.seed)
        number = 0
        while not self._stop_it.is_set():
            for _ in range(40):
                number += 1
                key = chance.randrange(KEYS)
                value = None if chance.random() < 0.1 else b"%d of %d" % (number, key)
                self._producer.produce(
                    self._topic, key=b"%d" % key, value=value, partition=key % PARTITIONS,
                    on_delivery=self._updates.acknowledge,
                )  # fmt: skip
            self._producer.poll(0)
            self._stop_it.wait(0.05)
        assert self._producer.flush(120) == 0

    def stop(self) -> None:
        self._stop_it.set()
        self.join(180)
        assert not self.is_alive()


@dataclass
class Read:
    """A table that one reading from the start made, and what it saw."""

    table: dict[bytes, bytes] = field(default_factory=dict)
    records: Records = field(default_factory=dict)


def read_from_the_start(servers: str, topic: str, updates: Updates) -> Read:
    """Up to the last record that was acknowledged when it began."""
    until = updates.ends()
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    client.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    read, reached, ends_s = Read(), dict.fromkeys(until, -1), time.monotonic() + 120
    while any(reached[partition] < end for partition, end in until.items()):
        assert time.monotonic() < ends_s, f"{until} was not reached, but {reached}"
        message = client.poll(1.0)
        if message is None:
            continue
        partition = message.partition()
        assert partition is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF or error.retriable(), error
            if error.code() == KafkaError._PARTITION_EOF:
                reached[partition] = max(reached[partition], (message.offset() or 0) - 1)
            continue
        key, value, offset = message.key(), message.value(), message.offset()
        assert isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        assert offset is not None
        assert offset > reached[partition]
        reached[partition] = offset
        read.records[partition, offset] = key, value
        if value is None:
            read.table.pop(key, None)
        else:
            read.table[key] = value
    client.close()
    return read


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "encrypted"])
@pytest.mark.timeout(600)
def test_agents_killed_and_frozen_while_they_clean_lose_and_move_nothing(
    new_stack: Callable[..., Stack], tmp_path: Path, is_encrypted: bool
) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text(key_line("first"))
    keys = {"TIDELOG_ENCRYPTION_PROVIDER": "file", "TIDELOG_ENCRYPTION_KEY": str(key_file)}
    environment = {**LEASES, **MERGES, **QUICK_GARBAGE, **CLEANINGS, **keys}
    stack = new_stack(agents=2, agent_environment=environment)
    servers = stack.addresses.bootstrap
    encryption = {"tidelog.encryption": "on"} if is_encrypted else {}
    topic = create_topic(servers, PARTITIONS, {**COMPACTED, **encryption})
    [seed] = seeds(1)
    chance = random.Random(seed)
    updates = Updates(seed)
    writer = Writer(servers, topic, updates)
    writer.start()
    fewest = 1.0
    try:
        for harm in range(HARMS):
            time.sleep(chance.uniform(1.0, 3.0))
            _harm(stack, chance.randrange(2), freeze=harm == 1)
            fewest = min(fewest, _share_read(servers, topic, updates))
    finally:
        writer.stop()
    assert updates.refused == []

    ends_s = time.monotonic() + 90
    while fewest > 0.5:  # the load has ended, and cleaning goes on
        assert time.monotonic() < ends_s, f"{fewest:.0%} of {len(updates.records)} records are still there"
        time.sleep(0.5)
        fewest = min(fewest, _share_read(servers, topic, updates))
    last = read_from_the_start(servers, topic, updates)
    assert last.table == updates.table()
    print(f"{len(updates.records)} records were written, {len(last.records)} are there")
    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)


def _share_read(servers: str, topic: str, updates: Updates) -> float:
    """Reads all, checks it against what was written, and returns how much of that is left."""
    before = dict(updates.records)
    read = read_from_the_start(servers, topic, updates)
    for place, record in read.records.items():
        assert updates.records.get(place, record) == record, place
    # A record that is gone has a later one of its key, perhaps one written since the reading ended.
    gone = {place for place in before if place not in read.records} - _with_later(before, read.records)
    ends_s = time.monotonic() + 10
    while gone := gone - _with_later(before, dict(updates.records)):
        assert time.monotonic() < ends_s, {place: before[place] for place in gone}
        time.sleep(0.1)
    return len(read.records) / max(1, len(before))


def _with_later(before: Records, records: Records) -> set[tuple[int, int]]:
    """The places in `before` whose key has a later record in `records`."""
    last: dict[bytes, int] = {}
    for (_, offset), (key, _) in records.items():
        last[key] = max(last.get(key, -1), offset)
    return {place for place, (key, _) in before.items() if last.get(key, -1) > place[1]}


def _harm(stack: Stack, victim: int, *, freeze: bool) -> None:
    """Kills an agent and starts it again, or stops its process for longer than its claims last."""
    if freeze:
        stack.agents[victim].signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        stack.agents[victim].signal(signal.SIGCONT)
    else:
        stack.kill(victim)
        stack.restart(victim)
