"""What one client writes through zone a, each of them reads back through zone b, in all five compressions."""

import random
from collections.abc import Mapping

import pytest

from tests.clients.adapters import COMPRESSIONS, Client, Read, Sent
from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried

NAMES = {
    "confluent-kafka": "confluent-kafka",
    "aiokafka": "aiokafka",
    "kafka-python": "kafka-python",
    "java": "kafka-clients",
}
_WRITERS = [
    pytest.param(name, marks=tried(client, "produce: every compression", "produce: idempotent"))
    for name, client in NAMES.items()
]
_READERS = [
    pytest.param(name, marks=tried(client, "consume: assigned partitions")) for name, client in NAMES.items()
]
LAST_TIMESTAMP_MS = 253_402_300_799_999

Written = Mapping[str, tuple[str, list[Sent], Mapping[str, list[int]]]]


def awkward_records(client: Client) -> list[Sent]:
    """Nulls, empties, repeated headers, first and last timestamps, small and large, compressible and not."""
    noise = random.Random(client.name).randbytes(300_000)
    records = [
        Sent(key=b"key", value=b"value", timestamp_ms=1_700_000_000_000),
        Sent(key=None, value=b"no key", timestamp_ms=1_700_000_000_001),
        Sent(key=b"", value=b"empty key", timestamp_ms=1_699_999_999_999),
        Sent(key=b"no value", value=None, timestamp_ms=1),
        Sent(key=b"empty value", value=b"", timestamp_ms=LAST_TIMESTAMP_MS),
        Sent(key=b"", value=b"", timestamp_ms=1_700_000_000_002),
        Sent(
            key=b"headers",
            value=b"in order, repeated, empty, of any script",
            headers=(
                ("b", b"1"),
                ("a", b"2"),
                ("b", b"1"),
                ("b", b"3"),
                ("", b"no name"),
                ("empty", b""),
                ("größe Ж 水", b"\xff\x00"),
            ),
            timestamp_ms=1_700_000_000_003,
        ),
        Sent(key=noise[:70_000], value=noise, timestamp_ms=1_700_000_000_004),
        *(
            Sent(key=b"%d" % i, value=b"%d " % i * 200, timestamp_ms=1_700_000_001_000 + i)
            for i in range(500)
        ),
    ]
    if client.sends_null_header_values:
        headers = (("null", None), ("null", None), ("not", b""))
        records.append(Sent(key=b"null header", value=b"v", headers=headers, timestamp_ms=1_700_000_002_000))
    if client.sends_null_key_with_null_value:
        records.append(Sent(key=None, value=None, timestamp_ms=1_700_000_002_001))
    return records


@pytest.fixture(scope="module")
def written(clients: Mapping[str, Client], new_topic: NewTopic, zone_a: str) -> Written:
    """For each client its topic, what it sent to each partition (one per compression), and the offsets that
    were acknowledged.
    """
    found = {}
    for name, client in clients.items():
        topic, records = new_topic(len(COMPRESSIONS), f"by-{name}"), awkward_records(client)
        offsets = {
            compression: client.produce(
                zone_a, topic, partition, records, compression, client_id="tidelog_zone=a"
            )
            for partition, compression in enumerate(COMPRESSIONS)
        }
        found[name] = (topic, records, offsets)
    return found


@pytest.fixture(scope="module")
def readings(
    clients: Mapping[str, Client], written: Written, zone_b: str
) -> Mapping[str, Mapping[tuple[str, int], list[Read]]]:
    """For each client, everything that it read."""
    topics = [topic for topic, _, _ in written.values()]
    return {
        name: client.consume(zone_b, topics, client_id="tidelog_zone=b") for name, client in clients.items()
    }


@pytest.mark.parametrize("writer", _WRITERS)
@pytest.mark.parametrize("reader", _READERS)
def test_what_one_writes_the_other_reads(
    reader: str, writer: str, written: Written, readings: Mapping[str, Mapping[tuple[str, int], list[Read]]]
) -> None:
    topic, records, offsets = written[writer]
    for partition, compression in enumerate(COMPRESSIONS):
        expected = [
            Read(
                offset=offset,
                timestamp_ms=record.timestamp_ms,
                log_append_time=False,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
            for offset, record in zip(offsets[compression], records, strict=True)
        ]

        assert readings[reader][topic, partition] == expected, compression
        assert offsets[compression] == list(range(len(records)))
