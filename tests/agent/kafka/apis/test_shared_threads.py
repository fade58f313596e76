"""Checking batches and looking times up: bounded per request, in turns per connection, and only while a
client waits.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import cramjam
import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.parts import Parts
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.read_path.wire import a_list_offsets, request
from tests.agent.running import Running, Wire, a_batch, a_produce, partitions_of, running
from tests.faults.wire import Batch, record
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
BOMBS = 60
BOMB_BYTES = 32 * MIB
BOMB = Batch(attributes=4, records=bytes(cramjam.zstd.compress(record(bytes(BOMB_BYTES)), 19))).encoded()
"""A sound batch: 32 MiB for 1.2 KB on the wire."""
LARGE = a_batch(*[b"%d" % number * 50 for number in range(9_000)], compression=4)


@pytest_asyncio.fixture(loop_scope="module")
async def other(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def small_agent(module_database_url: str) -> AsyncIterator[Running]:
    bounds: dict[str, Any] = {"zone": "b", "max_request_decompressed_bytes": 4 * BOMB_BYTES}
    async with running(module_database_url, **bounds) as started:
        yield started


def bombs(topic: str, **values: Any) -> Any:
    return a_produce(topic, dict.fromkeys(range(BOMBS), BOMB), **values)


def parts_of(agent: Running) -> Parts:
    assembly = agent.app._reached.assembly
    assert assembly is not None
    return assembly.parts


async def records_of(wire: Wire, topic: str, partitions: int = BOMBS) -> int:
    ends = [await wire.ask(a_list_offsets(5, topic, -1, partition)) for partition in range(partitions)]
    return sum(answer.topics[0].partitions[0].offset for answer in ends)


async def test_bombs_of_one_client_do_not_delay_anothers_batches(wire: Wire, other: Wire) -> None:
    await create(wire, "bombed", num_partitions=BOMBS)
    await create(wire, "honest")

    sent = await wire.send(bombs("bombed"))
    exploding = asyncio.create_task(wire.receive(sent))
    for _ in range(3):
        answer = partitions_of(await other.ask(a_produce("honest", {0: LARGE})))
        assert answer[0].error_code is ErrorCode.none
        assert not exploding.done()

    await exploding


async def test_batches_beyond_what_a_request_may_decompress_to_are_refused(small_agent: Running) -> None:
    wire = await Wire.connect(small_agent.app.kafka_port)
    await create(wire, "share", num_partitions=BOMBS + 1)

    asked = a_produce("share", {**dict.fromkeys(range(6), BOMB), 6: a_batch(b"plain")})
    answers = partitions_of(await wire.ask(asked))

    assert [answer.error_code for answer in answers] == [
        *[ErrorCode.none] * 3,
        *[ErrorCode.message_too_large] * 3,
        ErrorCode.none,
    ]
    assert "together" in answers[4].error_message
    wire.close()


async def test_checking_stops_when_the_client_hangs_up(agent: Running, wire: Wire) -> None:
    await create(wire, "left", num_partitions=BOMBS)
    leaving = await Wire.connect(agent.app.kafka_port)
    clients, checking = len(list(agent.app._reached.clients())), parts_of(agent).checking

    await leaving.send(bombs("left"))
    await until(lambda: checking.running)
    leaving.reset()
    await until(lambda: len(list(agent.app._reached.clients())) < clients)

    assert await records_of(wire, "left") == 0


async def test_a_request_whose_time_is_over_before_its_check_fails(wire: Wire) -> None:
    await create(wire, "late", num_partitions=BOMBS)

    answers = partitions_of(await wire.ask(bombs("late", timeout_s=0.03)))

    assert {answer.error_code for answer in answers} == {ErrorCode.request_timed_out}
    assert await records_of(wire, "late") == 0


async def test_times_are_looked_up_in_turns(wire: Wire, other: Wire) -> None:
    large = Batch(
        attributes=4,
        count=2,
        records=bytes(cramjam.zstd.compress(record(b"") + record(bytes(BOMB_BYTES), delta=1))),
    ).encoded()
    small = a_batch(b"1", b"2", compression=4)
    at_ms = 1_700_000_000_000
    for name, partitions, batch in (("long", 16, large), ("short", 1, small)):
        await create(wire, name, num_partitions=partitions)
        answers = partitions_of(await wire.ask(a_produce(name, dict.fromkeys(range(partitions), batch))))
        assert {answer.error_code for answer in answers} == {ErrorCode.none}
    every = request(
        2,
        5,
        replica_id=-1,
        isolation_level=0,
        topics=[
            {"name": "long", "partitions": [{"partition_index": n, "timestamp": at_ms} for n in range(16)]}
        ],
    )

    slow = asyncio.create_task(wire.receive(await wire.send(every)))
    quick = (await other.ask(a_list_offsets(5, "short", at_ms))).topics[0].partitions[0]

    assert not slow.done()
    assert (quick.error_code, quick.offset) == (ErrorCode.none, 0)
    assert {part.offset for part in (await slow).topics[0].partitions} == {0}
