"""Connections that change between bulk and other traffic while the store stalls: order, memory and time."""

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
from kio.schema.errors import ErrorCode

from agent.traffic_class import BULK_FOR_S
from storage.stores.object_store import StoreSettings
from tests.agent.quotas.test_enforcement import alter
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, until_answered
from tests.agent.test_overload_classes import LARGE, an_agent, bulk_commits, code_of, flood
from tests.support.waiting import until

NONE = ErrorCode.none
SMALL_SEGMENTS = 3_000
"""A link that stalls after so many bytes lets segments of a few small batches through."""


async def mark_nightly(agent: Running, wire: Wire) -> None:
    """Marks the client id `nightly` bulk."""
    assert await alter(wire, {"client-id": "nightly"}, tidelog_priority=2) is NONE

    async def is_bulk() -> bool:
        before = bulk_commits(agent)
        assert await code_of(wire, "soon", "nightly") is NONE
        return bulk_commits(agent) > before

    await until_answered(is_bulk)


async def test_a_refused_request_between_two_classes_keeps_their_order(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, link):
        await mark_nightly(agent, wire)
        link.stall(SMALL_SEGMENTS)
        producer, other = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]

        sent = [
            await producer.send(a_produce("plain", {0: a_batch(LARGE)})),
            await producer.send(a_produce("plain", {99: a_batch(b"x")})),
            await producer.send(a_produce("plain", {0: a_batch(b"x")}), "nightly"),
        ]

        for _ in range(5):  # bulk gets through
            assert await code_of(other, "many") is NONE
        link.stall(None)
        answers = [partitions_of(await producer.receive(one))[0] for one in sent]
        assert [answer.error_code for answer in answers] == [NONE, ErrorCode.unknown_topic_or_partition, NONE]
        assert answers[0].base_offset < answers[2].base_offset


async def test_what_waits_for_bulk_holds_no_memory_that_others_need(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, link):
        link.stall(SMALL_SEGMENTS)
        producers = [await Wire.connect(agent.app.kafka_port) for _ in range(8)]
        sent: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in producers]
        for producer, to in zip(producers, sent, strict=True):
            to.put_nowait(await producer.send(a_produce("many", {0: a_batch(LARGE)})))
        await asyncio.sleep(BULK_FOR_S + 0.1)

        async def send(producer: Wire, to: asyncio.Queue[Any]) -> None:
            for _ in range(10):
                to.put_nowait(await producer.send(a_produce("plain", {0: a_batch(LARGE)})))

        sending = [asyncio.create_task(send(*each)) for each in zip(producers, sent, strict=True)]
        await until(lambda: agent.metric("tidelog_request_memory_waits_total") >= 4)

        assert [await code_of(wire, topic) for topic in ("soon", "plain") * 3] == [NONE] * 6
        link.stall(None)
        codes = [
            partitions_of(await producer.receive(await to.get()))[0].error_code
            for producer, to in zip(producers, sent, strict=True)
            for _ in range(11)
        ]
        await asyncio.gather(*sending)
        assert codes == [NONE] * 88
        await until(lambda: agent.metric("tidelog_bulk_memory_bytes") == 0)


async def test_a_request_waits_for_earlier_bulk_no_longer_than_its_timeout(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings, interactive_wait_s=0.4) as (
        agent,
        _,
        link,
    ):
        producer = await Wire.connect(agent.app.kafka_port)
        link.stall(0)

        assert await code_of(producer, "many", timeout_s=0.3) is ErrorCode.request_timed_out
        await asyncio.sleep(BULK_FOR_S)
        assert await code_of(producer, "plain", timeout_s=0.3) is ErrorCode.request_timed_out
        assert await code_of(producer, "soon") is ErrorCode.request_timed_out

        link.stall(None)
        sent = await producer.send(a_produce("plain", {0: a_batch(b"x")}))
        [answer] = partitions_of(await producer.receive(sent))
        assert answer.error_code is NONE
        assert answer.base_offset == 1, "the one that timed out was not written"


async def test_interactive_records_that_want_no_answer_wait_and_are_written(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings, interactive_wait_s=0.4) as (
        agent,
        wire,
        link,
    ):
        producer = await Wire.connect(agent.app.kafka_port)
        link.stall(0)
        assert await code_of(wire, "soon") is ErrorCode.request_timed_out
        await asyncio.sleep(0.2)

        await producer.send(a_produce("soon", {0: a_batch(b"x")}, acks=0))
        await producer.ask(a_metadata("soon"))

        link.stall(None)
        written: list[int] = []

        async def is_served() -> bool:
            [answer] = partitions_of(await wire.ask(a_produce("soon", {0: a_batch(b"x")})))
            written.append(answer.base_offset)
            return answer.error_code is NONE

        await until_answered(is_served)
        assert written[-1] == 3, "the one that timed out and the one without an answer are there"


async def test_a_partial_frame_of_bulk_goes_when_bulk_needs_its_memory(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(
        database_url, store_url, store_settings, receive_timeout_s=60, receive_timeout_when_full_s=0.3
    ) as (agent, _, _):
        begun = b"\0\0\0\x09\0\0\0\x01\xff\xff\0" + b"\0\xff\xff\0\0\x10\0\x02\x05many" + bytes(5_000)
        silent = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        for one in silent:
            one.writer.write((950_000).to_bytes(4, "big") + begun)
        await until(lambda: agent.metric("tidelog_bulk_memory_bytes") == 1_900_000)

        [answer] = await flood(agent.app.kafka_port, 1, 1, bytes(300_000))

        assert answer.error_code is NONE
        assert await silent[0].is_closed_by_agent()


async def test_an_agent_that_ends_while_bulk_is_full_answers_all_that_it_wrote(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    acknowledged = 0

    async def produce(port: int) -> None:
        nonlocal acknowledged
        wire = await Wire.connect(port)
        sent: asyncio.Queue[Any] = asyncio.Queue()

        async def send() -> None:
            with suppress(ConnectionError):
                while True:
                    sent.put_nowait(await wire.send(a_produce("many", {0: a_batch(LARGE)}, timeout_s=90)))

        sending = asyncio.create_task(send())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                [answer] = partitions_of(await wire.receive(await sent.get()))
                assert answer.error_code is NONE
                acknowledged += 1
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        wire.close()

    async with an_agent(database_url, store_url, store_settings, drain_timeout_s=60) as (agent, _, link):
        link.stall(SMALL_SEGMENTS)
        producing = [asyncio.create_task(produce(agent.app.kafka_port)) for _ in range(8)]
        await until(lambda: agent.metric("tidelog_bulk_waiting_connections") >= 4)
    await asyncio.wait_for(asyncio.gather(*producing), 60)

    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        found = await connection.execute(
            "SELECT high_watermark FROM partitions JOIN topics USING (topic_id) WHERE name = 'many'"
            " AND partition = 0"
        )
        assert await found.fetchone() == (acknowledged + 1,)
    assert acknowledged >= 8
