"""A Produce response beyond its code: faulty records, times, the new leader, and limits that a topic sets."""

import struct
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from kafka.record import MemoryRecordsBuilder
from kio.schema.errors import ErrorCode

from tests.agent.kafka.apis.produce.test_produce import GOOD, a_topic, produced, with_crc
from tests.agent.read_path.wire import a_fetch, request
from tests.agent.running import (
    Running,
    Wire,
    a_batch,
    a_metadata,
    a_produce,
    partitions_of,
    running,
    until_answered,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR_MS = 3_600_000


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def a_batch_at(*timestamps_ms: int) -> bytes:
    """A batch with one record at each of these times."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    for timestamp_ms in timestamps_ms:
        builder.append(timestamp=timestamp_ms, key=None, value=b"x")
    builder.close()
    return bytes(builder.buffer())


@pytest.mark.parametrize("version", [8, 9, 12])
async def test_each_record_with_a_forbidden_timestamp_is_named(wire: Wire, version: int) -> None:
    topic = await a_topic(wire, f"bounds-{version}", message_timestamp_after_max_ms="60000")
    late = a_batch_at(now_ms(), now_ms() + 120_000, now_ms() - 120_000, now_ms() + 180_000)

    answer = await produced(wire, topic.name, late, version=version)

    assert (answer.error_code, answer.base_offset) == (ErrorCode.invalid_timestamp, -1)
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert "timestamp" in answer.record_errors[0].batch_index_error_message
    assert answer.error_message


async def test_timestamps_are_bounded_by_default_an_hour_ahead_and_not_behind(wire: Wire) -> None:
    topic = await a_topic(wire, "default-bounds")

    async def code_of(timestamp_ms: int) -> ErrorCode:
        batch = a_batch(b"x", timestamp_ms=timestamp_ms)
        return (await produced(wire, topic.name, batch)).error_code  # type: ignore[no-any-return]

    assert await code_of(0) is ErrorCode.none
    assert await code_of(now_ms() + HOUR_MS - 60_000) is ErrorCode.none
    assert await code_of(now_ms() + HOUR_MS + 60_000) is ErrorCode.invalid_timestamp


async def test_old_timestamps_are_refused_where_the_topic_says_so_but_not_missing_ones(wire: Wire) -> None:
    topic = await a_topic(wire, "before", message_timestamp_before_max_ms="1000")

    old = await produced(wire, topic.name, a_batch(b"x", timestamp_ms=now_ms() - 60_000))
    new = await produced(wire, topic.name, a_batch(b"x", timestamp_ms=now_ms()))
    none = await produced(wire, topic.name, a_batch(b"x", timestamp_ms=-1))

    assert [answer.error_code for answer in (old, new, none)] == [
        ErrorCode.invalid_timestamp,
        ErrorCode.none,
        ErrorCode.none,
    ]


async def test_bounds_of_timestamps_say_nothing_where_the_log_gives_the_times(wire: Wire) -> None:
    topic = await a_topic(
        wire, "append-bounds", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000"
    )

    assert (await produced(wire, topic.name, a_batch(b"x", timestamp_ms=5))).error_code is ErrorCode.none


async def test_a_record_that_makes_no_sense_is_named(wire: Wire) -> None:
    topic = await a_topic(wire, "record-errors")
    batch = bytearray(a_batch(b"a", b"b", b"c"))
    batch[61 + 2 * (1 + (batch[61] >> 1)) + 3] = 0x14  # the third record's offset delta

    answer = await produced(wire, topic.name, with_crc(bytes(batch)))

    assert answer.error_code is ErrorCode.invalid_record
    assert [(error.batch_index, bool(error.batch_index_error_message)) for error in answer.record_errors] == [
        (2, True)
    ]


async def test_a_batch_that_does_not_begin_at_offset_0_is_refused(wire: Wire) -> None:
    topic = await a_topic(wire, "base-offset")

    answer = await produced(wire, topic.name, struct.pack(">q", 1) + GOOD[8:])

    assert answer.error_code is ErrorCode.invalid_record
    assert "base offset" in answer.error_message


async def test_a_partition_named_twice_is_refused_and_others_are_not(wire: Wire) -> None:
    topic = await a_topic(wire, "twice", partitions=2)
    asked = a_produce(topic.name, {0: GOOD, 1: GOOD})
    [data] = asked.topic_data
    twice = type(data)(name=topic.name, partition_data=(*data.partition_data, data.partition_data[0]))

    answer = await wire.ask(request(0, 9, **{**_values(asked), "topic_data": [_values(twice)]}))

    assert [part.error_code for part in partitions_of(answer)] == [
        ErrorCode.invalid_request,
        ErrorCode.none,
        ErrorCode.invalid_request,
    ]


def _values(of: Any) -> dict[str, Any]:
    """Returns the fields of one of kio's classes, nested, as `request` takes them."""
    return {
        name: [_values(item) for item in value] if isinstance(value, tuple) else value
        for name in of.__dataclass_fields__
        for value in (getattr(of, name),)
    }


async def test_max_message_bytes_is_the_topics(wire: Wire) -> None:
    small = await a_topic(wire, "small", max_message_bytes="200")
    large = await a_topic(wire, "large", max_message_bytes="3000000")

    assert (await produced(wire, small.name, a_batch(b"x" * 100))).error_code is ErrorCode.none
    assert (await produced(wire, small.name, a_batch(b"x" * 200))).error_code is ErrorCode.message_too_large
    assert (await produced(wire, large.name, a_batch(b"x" * 2_900_000))).error_code is ErrorCode.none


async def test_a_repeat_under_log_append_time_is_answered_with_the_time_of_the_first(wire: Wire) -> None:
    topic = await a_topic(wire, "append-time-repeated", message_timestamp_type="LogAppendTime")
    batch = a_batch(b"x", producer=(501, 0, 0), timestamp_ms=1)

    first = await produced(wire, topic.name, batch)
    await until_answered(lambda: _is_later_than(first.log_append_time))
    again = await produced(wire, topic.name, batch)

    assert (again.error_code, again.base_offset, again.log_append_time) == (
        ErrorCode.none,
        0,
        first.log_append_time,
    )


async def _is_later_than(when: datetime) -> bool:
    return datetime.now(UTC) > when + timedelta(milliseconds=5)


async def test_a_repeat_under_create_time_is_answered_without_a_time(wire: Wire) -> None:
    topic = await a_topic(wire, "create-time-repeated")
    batch = a_batch(b"x", producer=(502, 0, 0))

    answers = [await produced(wire, topic.name, batch) for _ in range(2)]

    assert [(answer.base_offset, answer.log_append_time) for answer in answers] == [(0, None), (0, None)]


async def test_a_topic_created_again_has_a_new_id_and_the_old_id_is_an_error(wire: Wire) -> None:
    old = await a_topic(wire, "made-anew")
    assert (
        await produced(wire, old.name, GOOD, version=13, topic_id=old.topic_id)
    ).error_code is ErrorCode.none

    await wire.ask(request(20, 5, topic_names=("made-anew",), timeout=timedelta(seconds=30)))
    new = await a_topic(wire, "made-anew")
    stale = await produced(wire, old.name, GOOD, version=13, topic_id=old.topic_id)
    fresh = await produced(wire, old.name, GOOD, version=13, topic_id=new.topic_id)

    assert stale.error_code is ErrorCode.unknown_topic_id
    assert (fresh.error_code, fresh.base_offset) == (ErrorCode.none, 0)


async def _partition_of(wire: Wire, topic: Any, other: Running) -> int | None:
    """Returns a partition that Metadata, as this connection's agent answers it, routes to the other agent."""
    metadata = await wire.ask(a_metadata(topic.name))
    ports = {broker.node_id: broker.port for broker in metadata.brokers}
    of_other = [
        partition.partition_index
        for partition in metadata.topics[0].partitions
        if ports.get(partition.leader_id) == other.app.kafka_port
    ]
    return of_other[0] if of_other else None


async def test_the_error_for_a_moved_partition_names_its_new_leader(database_url: str) -> None:
    async with running(database_url) as first, running(database_url) as second:
        wire = await Wire.connect(first.app.kafka_port)
        topic = await a_topic(wire, "moved", partitions=16)
        await until_answered(lambda: _is_known(wire, topic, second))
        moved = await _partition_of(wire, topic, second)
        assert moved is not None
        wire.close()

        for version, tells_where in ((9, False), (10, True), (13, True)):
            wire = await Wire.connect(first.app.kafka_port)
            answer = await wire.ask(
                a_produce(topic.name, {moved: GOOD}, version=version, topic_id=topic.topic_id)
            )
            check_told(answer, partitions_of(answer)[0], second, tells_where=tells_where)
            wire.close()
        for version, tells_where in ((11, False), (16, True), (18, True)):
            wire = await Wire.connect(first.app.kafka_port)
            answer = await wire.ask(a_fetch(version, topic, *([0] * (moved + 1))))
            check_told(answer, answer.responses[0].partitions[moved], second, tells_where=tells_where)
            wire.close()


def check_told(answer: Any, partition: Any, leader: Running, *, tells_where: bool) -> None:
    assert partition.error_code is ErrorCode.not_leader_or_follower
    if tells_where:
        [endpoint] = answer.node_endpoints
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (
            endpoint.node_id,
            0,
        )
        assert (endpoint.host, endpoint.port, endpoint.rack) == ("127.0.0.1", leader.app.kafka_port, "a")


async def _is_known(wire: Wire, topic: Any, other: Running) -> bool:
    return await _partition_of(wire, topic, other) is not None


async def test_a_connection_is_redirected_again_when_a_partition_moves_again(database_url: str) -> None:
    async with running(database_url) as first:
        wire = await Wire.connect(first.app.kafka_port)
        topic = await a_topic(wire, "to-and-fro", partitions=64)
        everything: dict[int, bytes | None] = dict.fromkeys(range(64), GOOD)
        moved: list[set[int]] = []
        for _ in range(2):
            async with running(database_url) as second:
                await until_answered(partial(_is_known, wire, topic, second))
                answer = partitions_of(await wire.ask(a_produce(topic.name, everything)))
                moved.append(
                    {part.index for part in answer if part.error_code is ErrorCode.not_leader_or_follower}
                )
            await until_answered(lambda: _all_are_taken(wire, topic.name, everything))
        wire.close()

        assert moved[0] & moved[1]


async def _all_are_taken(wire: Wire, topic: str, batches: dict[int, bytes | None]) -> bool:
    metadata = await wire.ask(a_metadata(topic))
    # Asked last: the agent is alone by now.
    answer = partitions_of(await wire.ask(a_produce(topic, batches)))
    return len(metadata.brokers) == 1 and all(part.error_code is ErrorCode.none for part in answer)
