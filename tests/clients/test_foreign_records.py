"""Records that clients of other languages write and read: every compression, idempotent, any acks, by
assignment.
"""

from typing import Any

import confluent_kafka
import pytest

from tests.clients.adapters import COMPRESSIONS, DEADLINE_S, Confluent, Read, Sent
from tests.clients.conftest import NewTopic
from tests.clients.foreign import Program
from tests.clients.offering import each_offering
from tests.faults.wire import HEADER, Wire, fetch

pytestmark = pytest.mark.clients

PARTITIONS = 3
NOW_MS = 1_700_000_000_000


def _records(prefix: str, count: int = 30) -> list[dict[str, Any]]:
    """As a program takes them, in turn over the partitions; some without a key, some without a value."""
    return [
        {
            "partition": i % PARTITIONS,
            "key": None if i % 5 == 0 else f"key-{i}",
            "value": None if i % 7 == 6 else f"{prefix}-{i}" * 20,
            "headers": [["trace", f"{i}"], ["source", "söme"]] if i % 2 else [],
            "timestamp_ms": NOW_MS + i,
        }
        for i in range(count)
    ]


def _plain(records: list[dict[str, Any]], partition: int) -> list[tuple[object, ...]]:
    """What must come back of a partition, in order."""
    return [
        (r["timestamp_ms"], r["key"], r["value"], [tuple(header) for header in r["headers"]])
        for r in records
        if r["partition"] == partition
    ]


def _read(found: list[Read]) -> list[tuple[object, ...]]:
    return [
        (
            read.timestamp_ms,
            None if read.key is None else read.key.decode(),
            None if read.value is None else read.value.decode(),
            [(name, (value or b"").decode()) for name, value in read.headers],
        )
        for read in found
    ]


@each_offering("produce: every compression")
def test_records_of_every_compression_are_read_as_they_were_written(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(PARTITIONS, "compressed")
    sent: list[Any] = []
    for compression in COMPRESSIONS:
        records = _records(f"{client.client}-{compression}")
        settings = {
            "compression": compression,
            "acks": "all",
            "idempotent": False,
            "client_id": "tidelog_zone=a",
        }

        answer = client.answer("produce", servers=zone_a, topic=topic, records=records, **settings)

        before = len(sent) // PARTITIONS
        assert answer["offsets"] == [before + i // PARTITIONS for i in range(len(records))], compression
        sent += records

    found = Confluent().consume(zone_b, [topic])

    for partition in range(PARTITIONS):
        assert _read(found[topic, partition]) == _plain(sent, partition)


@each_offering("produce: idempotent")
def test_an_idempotent_producer_writes_each_record_once_under_its_id(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic, records = new_topic(PARTITIONS, "idempotent"), _records(client.client, 300)
    settings = {"compression": "lz4", "acks": "all", "idempotent": True}

    answer = client.answer("produce", servers=f"{zone_a},{zone_b}", topic=topic, records=records, **settings)

    assert answer["offsets"] == [i // PARTITIONS for i in range(len(records))]
    found = Confluent().consume(zone_b, [topic])
    for partition in range(PARTITIONS):
        assert _read(found[topic, partition]) == _plain(records, partition)
    host, port = zone_a.split(":")
    with Wire((host, int(port))) as wire:
        batch = bytes(wire.ask(*fetch(topic, 0, 0)).responses[0].partitions[0].records)
    *_, producer_id, producer_epoch, base_sequence, _ = HEADER.unpack_from(batch)
    assert (producer_id >= 0, producer_epoch, base_sequence) == (True, 0, 0)


@each_offering("produce: acks 0, 1 and all")
def test_records_arrive_whichever_acknowledgement_is_asked_for(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    for acks in ("0", "1", "all"):
        topic, records = new_topic(PARTITIONS, f"acks-{acks}"), _records(client.client)

        client.answer(
            "produce",
            servers=zone_a,
            topic=topic,
            records=records,
            compression="none",
            acks=acks,
            idempotent=False,
        )

        assert sorted(_timestamps(zone_b, topic, len(records))) == [r["timestamp_ms"] for r in records], acks


def _timestamps(servers: str, topic: str, count: int) -> list[int]:
    """Of the first `count` records: without an acknowledgement they may still be on their way."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        found: list[int] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=DEADLINE_S)
            assert messages, f"nothing came after {len(found)} records"
            found += [message.timestamp()[1] for message in messages]
        return found
    finally:
        consumer.close()


def _send(servers: str, topic: str, records: list[dict[str, Any]], compression: str = "zstd") -> None:
    for partition in range(PARTITIONS):
        sent = [
            Sent(
                key=None if r["key"] is None else str(r["key"]).encode(),
                value=None if r["value"] is None else str(r["value"]).encode(),
                headers=tuple((name, value.encode()) for name, value in r["headers"]),
                timestamp_ms=int(str(r["timestamp_ms"])),
            )
            for r in records
            if r["partition"] == partition
        ]
        Confluent().produce(servers, topic, partition, sent, compression)


@each_offering("consume: assigned partitions")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_assigned_partitions_are_read_as_they_were_written(
    client: Program, compression: str, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic, records = new_topic(PARTITIONS, "assigned"), _records("confluent")
    _send(zone_a, topic, records, compression)
    ranges = [{"partition": p, "from": -2, "count": len(records) // PARTITIONS} for p in range(PARTITIONS)]

    read = client.ask("consume", servers=zone_b, topic=topic, partitions=ranges)

    for partition in range(PARTITIONS):
        mine = [r for r in read if r["partition"] == partition]
        assert [r["offset"] for r in mine] == list(range(len(mine)))
        assert [
            (r["timestamp_ms"], r["key"], r["value"], [tuple(header) for header in r["headers"]])
            for r in mine
        ] == _plain(records, partition)
