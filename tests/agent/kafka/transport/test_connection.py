"""Connections by hand: pipelining, order, budgets, and bad input that closes only its own connection."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from tests.agent.read_path.wire import a_fetch, request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running
from tests.support.seeds import seeds
from tests.support.waiting import until

API_VERSIONS = b"\x00\x12"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


def closed(agent: Running, reason: str) -> float:
    return agent.metric("tidelog_connections_closed_total", reason=reason)


BAD_STREAMS = {
    "a negative length": b"\xff\xff\xff\xff",
    "a length of nothing": b"\x00\x00\x00\x00",
    "a length above the limit": b"\x7f\xff\xff\xff",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "an unknown api": b"\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff",
    "an unknown version": b"\x00\x00\x00\x0a\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff",
    "a version only advertised": b"\x00\x00\x00\x0a\x00\x00\x00\x02\x00\x00\x00\x01\xff\xff",
    "a truncated body": b"\x00\x00\x00\x0c\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff\x00\x00",
    "a body of garbage": b"\x00\x00\x00\x20\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x00" + b"\x9f" * 21,
}


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_a_bad_stream_is_closed_and_others_go_on(agent: Running, wire: Wire, name: str) -> None:
    closed_before = closed(agent, "bad_request")
    bad = await Wire.connect(agent.app.kafka_port)

    bad.writer.write(BAD_STREAMS[name])

    assert await bad.is_closed_by_agent()
    assert closed(agent, "bad_request") == closed_before + 1
    assert (await wire.ask(a_metadata())).brokers


async def test_requests_before_a_bad_one_are_still_answered(agent: Running, wire: Wire) -> None:
    await wire.ask(a_metadata("before-the-bad"))
    mixed = await Wire.connect(agent.app.kafka_port)

    sent = await mixed.send(a_produce("before-the-bad", {0: a_batch(b"x")}))
    mixed.writer.write(b"\xff\xff\xff\xff")

    assert partitions_of(await mixed.receive(sent))[0].base_offset == 0
    assert await mixed.is_closed_by_agent()


async def test_random_bytes_never_break_more_than_their_connection(agent: Running, wire: Wire) -> None:
    broken_before = agent.metric("tidelog_request_failures_total", api="Metadata")
    [seed] = seeds(1)
    chance = random.Random(seed)
    for _ in range(200):
        bad = await Wire.connect(agent.app.kafka_port)
        body = chance.randbytes(62)
        if body[:2] == API_VERSIONS:
            continue  # which is answered, whatever follows
        bad.writer.write(len(body).to_bytes(4, "big") + body)
        bad.writer.write_eof()
        assert await bad.is_closed_by_agent()
        bad.close()

    assert (await wire.ask(a_metadata())).brokers
    assert agent.metric("tidelog_request_failures_total", api="Metadata") == broken_before
    await until(lambda: agent.metric("tidelog_connections") == 1)


async def test_a_half_sent_frame_holds_nothing_once_its_client_is_gone(module_database_url: str) -> None:
    async with running(module_database_url, zone="half") as agent:
        half = await Wire.connect(agent.app.kafka_port)
        half.writer.write((50_000_000).to_bytes(4, "big") + b"\x00" * 20_000)
        await until(lambda: agent.metric("tidelog_request_memory_bytes") == 50_000_000)

        half.close()

        await until(lambda: agent.metric("tidelog_request_memory_bytes") == 0)


@pytest.mark.parametrize("api_key", [15, 42])
async def test_null_where_groups_are_named_closes_its_connection_and_holds_nothing(
    module_database_url: str, api_key: int
) -> None:
    """DescribeGroups and DeleteGroups, version 0: kio reads a null where none is allowed."""
    null = api_key.to_bytes(2, "big") + b"\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff"
    async with running(module_database_url, zone="null") as agent:
        for _ in range(3):
            bad = await Wire.connect(agent.app.kafka_port)
            bad.writer.write(len(null).to_bytes(4, "big") + null)
            assert await bad.is_closed_by_agent()

        half = await Wire.connect(agent.app.kafka_port)
        half.writer.write((50_000_000).to_bytes(4, "big") + b"\x00" * 20_000)

        await until(lambda: agent.metric("tidelog_request_memory_bytes") == 50_000_000)
        half.close()


async def test_a_frame_announced_and_not_sent_holds_nothing(module_database_url: str) -> None:
    async with running(module_database_url, zone="announced", request_memory_bytes=200_000_000) as agent:
        liars = [await Wire.connect(agent.app.kafka_port) for _ in range(10)]
        for liar in liars:
            liar.writer.write((100_000_000).to_bytes(4, "big") + b"\x00" * 1000)
        honest = await Wire.connect(agent.app.kafka_port)

        for _ in range(5):
            assert (await honest.ask(a_metadata())).brokers

        assert agent.metric("tidelog_request_memory_waits_total") == 0
        for liar in liars:
            liar.close()


async def test_a_client_that_stops_in_the_middle_of_a_frame_is_closed(module_database_url: str) -> None:
    async with running(module_database_url, zone="slow", receive_timeout_s=0.2) as agent:
        slow = await Wire.connect(agent.app.kafka_port)
        slow.writer.write(b"\x00\x00\x10\x00" + b"\x00" * 10)

        assert await slow.is_closed_by_agent()
        assert closed(agent, "receive_timeout") == 1


async def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not(
    module_database_url: str,
) -> None:
    async with running(module_database_url, zone="idle", idle_timeout_s=1.0) as agent:
        idle = await Wire.connect(agent.app.kafka_port)
        waiting = await Wire.connect(agent.app.kafka_port)
        topic = (await waiting.ask(a_metadata("waited-for", version=12))).topics[0]
        fetch = a_fetch(12, topic, 0, max_wait=timedelta(seconds=3.5))

        sent = await waiting.send(fetch)

        assert await idle.is_closed_by_agent()
        assert (await waiting.receive(sent)).responses


async def test_one_connection_more_than_allowed_is_closed_at_once(module_database_url: str) -> None:
    async with running(module_database_url, zone="few", max_connections=1) as agent:
        first = await Wire.connect(agent.app.kafka_port)
        await first.ask(a_metadata())

        second = await Wire.connect(agent.app.kafka_port)

        assert await second.is_closed_by_agent()
        assert (await first.ask(a_metadata())).brokers


async def test_responses_leave_in_request_order_even_if_a_later_one_is_ready_first(wire: Wire) -> None:
    topic = (await wire.ask(a_metadata("pipeline", version=12))).topics[0]

    waiting = await wire.send(a_fetch(12, topic, 0, max_wait=timedelta(seconds=0.5)))
    quick = [await wire.send(a_metadata()) for _ in range(20)]

    await wire.receive(waiting)
    for one in quick:
        assert (await wire.receive(one)).brokers


async def test_a_waiting_fetch_does_not_delay_a_produce_behind_it(wire: Wire) -> None:
    """The produce starts while the fetch waits. Its records end that wait, both on one connection."""
    topic = (await wire.ask(a_metadata("woken", version=12))).topics[0]
    # Now the agent need not ask where the partition ends.
    await wire.ask(a_fetch(12, topic, 0, max_wait=timedelta(0)))

    fetch = await wire.send(a_fetch(12, topic, 0, max_wait=timedelta(seconds=15)))
    produce = await wire.send(a_produce("woken", {0: a_batch(b"news")}))
    fetched = await wire.receive(fetch)
    produced = await wire.receive(produce)

    assert fetched.responses[0].partitions[0].records
    assert partitions_of(produced)[0].base_offset == 0


async def test_a_connection_is_not_read_past_its_budget_and_goes_on_when_there_is_room(
    module_database_url: str,
) -> None:
    """Forty requests of 50 kB through a budget of 200 kB for the whole agent."""
    async with running(
        module_database_url, zone="tight", linger_ms=50, put_budget_burst=1, put_budget_per_s=0.001,
        max_request_bytes=200_000, request_memory_bytes=200_000,
    ) as agent:  # fmt: skip
        wires = [await Wire.connect(agent.app.kafka_port) for _ in range(4)]
        await wires[0].ask(a_metadata("tight"))

        async def send_all(wire: Wire) -> list[int]:
            async def receive_all() -> list[int]:
                return [partitions_of(await wire.receive(await one))[0].base_offset for one in sent]

            sent: list[asyncio.Task[tuple[int, object]]] = []
            lock = asyncio.Lock()

            async def send() -> tuple[int, object]:
                async with lock:
                    return await wire.send(a_produce("tight", {0: a_batch(b"x" * 50_000)}))

            sent += [asyncio.create_task(send()) for _ in range(10)]
            return await receive_all()

        offsets = [offset for found in await asyncio.gather(*map(send_all, wires)) for offset in found]

        assert sorted(offsets) == list(range(40))
        assert agent.metric("tidelog_request_memory_waits_total") > 0


async def test_small_requests_count_with_the_memory_of_their_objects(module_database_url: str) -> None:
    """A hundred requests of a hundred bytes, which take half a megabyte, through a budget of 200 kB."""
    async with running(
        module_database_url, zone="small", linger_ms=50, put_budget_burst=1, put_budget_per_s=0.001,
        max_request_bytes=200_000, request_memory_bytes=200_000,
    ) as agent:  # fmt: skip
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("small"))

        sent = [await wire.send(a_produce("small", {0: a_batch(b"x")})) for _ in range(100)]
        offsets = [partitions_of(await wire.receive(one))[0].base_offset for one in sent]

        assert offsets == list(range(100))
        assert agent.metric("tidelog_request_memory_waits_total") > 0
        await until(lambda: agent.metric("tidelog_request_memory_bytes") == 0)


async def test_a_client_that_does_not_read_its_answers_is_not_read_and_then_disconnected(
    module_database_url: str,
) -> None:
    async with running(
        module_database_url,
        zone="deaf",
        write_buffer_bytes=1000,
        max_requests_in_flight=4,
        send_timeout_s=0.5,
    ) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        topic = (await wire.ask(a_metadata("deaf", version=12))).topics[0]
        for _ in range(12):
            await wire.ask(a_produce("deaf", {0: a_batch(b"x" * 1_000_000)}))

        everything = {"partition_max_bytes": 50_000_000}
        for _ in range(20):
            await wire.send(a_fetch(12, topic, 0, max_bytes=50_000_000, partition=everything))

        await until(lambda: closed(agent, "send_timeout") == 1)


async def test_produce_requests_are_carried_out_after_their_client_hangs_up(
    agent: Running, wire: Wire
) -> None:
    await wire.ask(a_metadata("hung-up"))
    leaving = await Wire.connect(agent.app.kafka_port)

    for number in range(5):
        await leaving.send(a_produce("hung-up", {0: a_batch(b"%d" % number)}, acks=0))
    leaving.writer.write_eof()
    assert await leaving.is_closed_by_agent()
    after = await wire.ask(a_produce("hung-up", {0: a_batch(b"last")}))

    assert partitions_of(after)[0].base_offset == 5


async def test_requests_of_one_connection_may_be_many(wire: Wire) -> None:
    sent = [await wire.send(request(18, 0)) for _ in range(500)]

    for one in sent:
        assert (await wire.receive(one)).api_keys
