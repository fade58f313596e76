"""Offsets as clients of other languages commit, fetch, look up, and delete them."""

import pytest

from tests.clients.adapters import Confluent, Sent
from tests.clients.conftest import NewTopic
from tests.clients.foreign import Program
from tests.clients.offering import each_offering

pytestmark = pytest.mark.clients

NOW_MS = 1_700_000_000_000


def _send(servers: str, topic: str, first: int, count: int, partition: int = 0) -> None:
    """Records whose value is their number, a second apart."""
    numbers = range(first, first + count)
    sent = [Sent(key=None, value=b"%d" % i, timestamp_ms=NOW_MS + 1_000 * i) for i in numbers]
    Confluent().produce(servers, topic, partition, sent, "none")


def _asked(partitions: int) -> list[dict[str, int]]:
    return [{"partition": p, "from": -2, "count": 0} for p in range(partitions)]


@each_offering("offsets: by time")
def test_offsets_are_found_by_time(client: Program, new_topic: NewTopic, zone_a: str, zone_b: str) -> None:
    topic = new_topic(1, "times")
    _send(zone_a, topic, 0, 10)
    times = [-2, -1, NOW_MS, NOW_MS + 3_000, NOW_MS + 3_001]

    answer = client.answer("offsets", servers=zone_b, topic=topic, partition=0, times=times)

    assert answer["offsets"] == [0, 10, 0, 3, 4]


@each_offering("offsets: seek")
def test_a_consumer_goes_where_it_seeks(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(1, "seek")
    _send(zone_a, topic, 0, 10)
    whole = [{"partition": 0, "from": -2, "count": 10}]

    said = client.ask(
        "seek", servers=zone_b, group=f"{topic}-group", topic=topic, partitions=whole, offset=4, count=3
    )

    before, after = said[:10], said[11:]
    assert [record["offset"] for record in before] == list(range(10))
    assert [record["offset"] for record in after] == [4, 5, 6]


@each_offering("offsets: commit without membership")
def test_offsets_are_committed_by_one_who_is_no_member(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(2, "simple")
    group = f"{topic}-group"
    _send(zone_a, topic, 0, 10)

    client.answer("commit", servers=zone_a, group=group, topic=topic, offsets={"0": 7, "1": 0})

    committed = client.answer("committed", servers=zone_b, group=group, topic=topic, partitions=_asked(2))
    assert committed["offsets"] == {"0": 7, "1": 0}
    client.answer("commit", servers=zone_b, group=group, topic=topic, offsets={"0": 4})
    committed = client.answer("committed", servers=zone_a, group=group, topic=topic, partitions=_asked(2))
    assert committed["offsets"] == {"0": 4, "1": 0}


@each_offering("admin: delete records")
def test_records_are_deleted(client: Program, new_topic: NewTopic, zone_a: str, zone_b: str) -> None:
    topic = new_topic(1, "deleted")
    _send(zone_a, topic, 0, 10)

    client.answer("delete-records", servers=zone_a, topic=topic, offsets={"0": 6})

    answer = client.answer("offsets", servers=zone_b, topic=topic, partition=0, times=[-2, -1])
    assert answer["offsets"] == [6, 10]
