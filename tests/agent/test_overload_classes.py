"""Traffic marked bulk or interactive in overload: real agents over a real S3 endpoint whose link stalls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from kio.schema.errors import ErrorCode

from storage.stores.object_store import StoreSettings
from tests.agent.kafka.apis.administrative_requests import alter as alter_configs
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.kafka.apis.produce.test_produce import with_crc
from tests.agent.quotas.test_enforcement import QUICK, alter
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_produce, partitions_of, running, until_answered
from tests.support.waiting import until

NONE = ErrorCode.none
LARGE = bytes(60_000)
SET = 0


class Link:
    """Passes bytes on to the endpoint. While it stalls, no request gets more bytes through than a bound."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.port = 0
        self._stalls_after: int | None = None
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def stall(self, after_bytes: int | None) -> None:
        self._stalls_after = after_bytes
        self._moved.set()
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Link"]:
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        passed = [0]
        both = [(reader, far_writer, True), (far_reader, writer, False)]
        tasks = [asyncio.create_task(self._pass(*one, passed)) for one in both]
        self._tasks.update(tasks)
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        far_writer.close()
        writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_sent: bool, passed: list[int]
    ) -> None:
        """`passed`: the bytes of the connection's last request, which an answer ends."""
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                passed[0] = passed[0] + len(data) if is_sent else 0
                while is_sent and self._stalls_after is not None and passed[0] > self._stalls_after:
                    await self._moved.wait()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def an_agent(
    database_url: str, store_url: str, store_settings: StoreSettings, **settings: Any
) -> AsyncIterator[tuple[Running, Wire, Link]]:
    """An agent with little memory, and a topic of each class."""
    port = urlsplit(store_url.split("endpoint=")[1]).port
    assert port is not None
    async with Link(port).open() as link:
        given = {"request_memory_bytes": 4_000_000, "max_request_bytes": 1_000_000, **settings}
        async with running(
            database_url,
            store_url.replace(f":{port}", f":{link.port}"),
            quotas=QUICK,
            store_settings=store_settings,
            topic_changes_poll_s=0.05,
            segment_size_bytes=300_000,
            bulk_uploads=2,
            hedge_after_min_s=60,
            throttle_max_ms=0,
            **given,
        ) as agent:
            wire = await Wire.connect(agent.app.kafka_port)
            for topic, mark in (("many", "bulk"), ("soon", "interactive"), ("plain", "normal")):
                configs = [{"name": "tidelog.priority", "value": mark}]
                assert (await create(wire, topic, configs=configs)).error_code is NONE
            await asyncio.sleep(0.5)  # until the agent has noticed that they are new, and forgotten them
            for topic in ("many", "soon", "plain"):
                other = await Wire.connect(agent.app.kafka_port)
                assert await code_of(other, topic) is NONE  # the agent knows the topic and its mark now
                other.close()
            try:
                yield agent, wire, link
            finally:
                link.stall(None)
                wire.close()


async def code_of(wire: Wire, topic: str, client_id: str = "test", **values: Any) -> ErrorCode:
    [answer] = partitions_of(await wire.ask(a_produce(topic, {0: a_batch(b"x")}, **values), client_id))
    return ErrorCode(answer.error_code)


async def flood(port: int, connections: int, requests: int, value: bytes) -> list[Any]:
    """Each connection sends all its requests to the bulk topic, and takes the answers as they come."""

    async def one() -> list[Any]:
        wire = await Wire.connect(port)
        sent: asyncio.Queue[Any] = asyncio.Queue()

        async def send() -> None:
            for _ in range(requests):
                sent.put_nowait(await wire.send(a_produce("many", {0: a_batch(value)}, timeout_s=90)))

        sending = asyncio.create_task(send())
        answers = [partitions_of(await wire.receive(await sent.get()))[0] for _ in range(requests)]
        await sending
        wire.close()
        return answers

    return [
        answer for of_one in await asyncio.gather(*(one() for _ in range(connections))) for answer in of_one
    ]


def bulk_commits(agent: Running) -> float:
    return agent.metric("tidelog_write_wait_seconds_count", lane="bulk")


async def test_bulk_fills_its_bound_and_others_are_served(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, link):
        link.stall(100_000)
        bulk = asyncio.create_task(flood(agent.app.kafka_port, 8, 10, LARGE))
        await until(lambda: agent.metric("tidelog_request_memory_waits_total") >= 8)

        codes = [await code_of(wire, topic) for topic in ("soon", "plain") * 5]

        assert set(codes) == {NONE}
        assert not bulk.done()
        assert agent.metric("tidelog_bulk_memory_bytes") <= 2_000_000
        link.stall(None)
        answers = await bulk
        assert {answer.error_code for answer in answers} == {NONE}
        assert sorted(answer.base_offset for answer in answers) == list(range(1, 81)), "bulk loses nothing"


async def test_many_bulk_connections_with_tiny_requests_fill_no_more(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings, bulk_batches_per_commit=100) as (
        agent,
        wire,
        link,
    ):
        link.stall(3_000)
        bulk = asyncio.create_task(flood(agent.app.kafka_port, 150, 5, bytes(300)))
        await until(lambda: agent.metric("tidelog_request_memory_waits_total") >= 20)

        codes = [await code_of(wire, topic) for topic in ("soon", "plain") * 3]

        assert set(codes) == {NONE}
        link.stall(None)
        assert {answer.error_code for answer in await bulk} == {NONE}


async def test_interactive_fails_fast_while_the_store_stalls(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings, interactive_wait_s=0.4) as (
        agent,
        wire,
        link,
    ):
        link.stall(0)

        first = await code_of(wire, "soon")
        second = await code_of(wire, "soon")
        unmarked = asyncio.create_task(code_of(wire, "plain"))

        assert first is ErrorCode.request_timed_out, "it may still be written"
        assert second is ErrorCode.not_enough_replicas, "it was not written"
        assert agent.metric("tidelog_interactive_refused_total") == 1
        link.stall(None)
        assert await unmarked is NONE, "it waits as long as its own timeout allows"

        async def is_served() -> bool:
            return await code_of(wire, "soon") is NONE

        await until_answered(is_served)


async def test_without_marks_nothing_is_bulk(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, _):
        before = bulk_commits(agent)

        codes = [await code_of(wire, "plain") for _ in range(5)]

        assert set(codes) == {NONE}
        assert bulk_commits(agent) == before


async def test_a_changed_mark_holds_and_the_order_on_a_connection_stays(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, _):
        producer = await Wire.connect(agent.app.kafka_port)
        offsets: list[int] = []

        async def some_more() -> None:
            sent = [await producer.send(a_produce("plain", {0: a_batch(b"x")})) for _ in range(20)]
            for one in sent:
                [answer] = partitions_of(await producer.receive(one))
                assert answer.error_code is NONE
                offsets.append(answer.base_offset)

        async def is_bulk() -> bool:
            before = bulk_commits(agent)
            await some_more()
            return bulk_commits(agent) > before

        async def is_not_bulk() -> bool:
            return not await is_bulk()

        assert not await is_bulk()
        for mark, condition in (("bulk", is_bulk), ("normal", is_not_bulk)):
            await alter_configs(wire, "plain", ("tidelog.priority", SET, mark))
            await until_answered(condition)

        producer.close()
        assert offsets == list(range(1, len(offsets) + 1))


async def test_a_client_marked_bulk_is_bulk_in_every_topic(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, _):
        assert await alter(wire, {"client-id": "nightly"}, tidelog_priority=3) is ErrorCode.invalid_request
        assert await alter(wire, {"client-id": "nightly"}, tidelog_priority=2) is NONE

        async def is_bulk() -> bool:
            assert await code_of(wire, "soon", "nightly") is NONE
            return bulk_commits(agent) > 1

        await until_answered(is_bulk)
        before = bulk_commits(agent)
        other = await Wire.connect(agent.app.kafka_port)
        assert await code_of(other, "soon") is NONE
        other.close()
        assert bulk_commits(agent) == before


async def a_transactional_producer(wire: Wire, name: str) -> tuple[int, int]:
    """Returns producer id and epoch."""
    values = {"transactional_id": name, "transaction_timeout": timedelta(seconds=60)}
    answer = await wire.ask(request(22, 4, producer_id=-1, producer_epoch=-1, **values))
    assert ErrorCode(answer.error_code) is NONE
    return answer.producer_id, answer.producer_epoch


def transactional(topic: str, name: str, producer: tuple[int, int], sequence: int = 0) -> Any:
    plain = a_batch(b"v", producer=(*producer, sequence))
    batch = with_crc(plain[:21] + b"\x00\x10" + plain[23:])
    return a_produce(topic, {0: batch}, version=11, transactional_id=name, timeout_s=90)


async def add_partitions(wire: Wire, name: str, producer: tuple[int, int], *topics: str) -> None:
    producer_id, epoch = producer
    given = {
        "transactional_id": name,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "topics": [{"name": topic, "partitions": (0,)} for topic in topics],
    }
    added = await wire.ask(request(24, 3, **{f"v3_and_below_{key}": of for key, of in given.items()}))
    codes = {one.results_by_partition[0].partition_error_code for one in added.results_by_topic_v3_and_below}
    assert codes == {NONE}


async def end(wire: Wire, name: str, producer: tuple[int, int], *, committed: bool = True) -> ErrorCode:
    producer_id, epoch = producer
    values = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
    return ErrorCode((await wire.ask(request(26, 3, committed=committed, **values))).error_code)


async def end_offset(wire: Wire, topic: str, *, is_committed: bool) -> int:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = request(
        2,
        7,
        replica_id=-1,
        isolation_level=int(is_committed),
        topics=[{"name": topic, "partitions": [partition]}],
    )
    return (await wire.ask(asked)).topics[0].partitions[0].offset  # type: ignore[no-any-return]


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_a_transaction_over_both_lanes_ends_while_bulk_is_full(
    database_url: str, store_url: str, store_settings: StoreSettings, committed: bool
) -> None:
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, link):
        quick, slow = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        producer = await a_transactional_producer(wire, "both")
        await add_partitions(wire, "both", producer, "soon", "many")
        link.stall(100_000)
        bulk = asyncio.create_task(flood(agent.app.kafka_port, 8, 10, LARGE))
        await until(lambda: agent.metric("tidelog_request_memory_waits_total") >= 8)

        [soon] = partitions_of(await quick.ask(transactional("soon", "both", producer)))
        late = await slow.send(transactional("many", "both", producer))
        code = await end(wire, "both", producer, committed=committed)
        again = await end(wire, "both", producer, committed=committed)

        assert (soon.error_code, code, again) == (NONE, NONE, NONE)
        assert not bulk.done(), "it did not wait for bulk"
        assert await end_offset(wire, "soon", is_committed=True) == 3, "the batch before, this one, a marker"
        link.stall(None)
        [of_many] = partitions_of(await slow.receive(late))
        assert of_many.error_code is not NONE, "its transaction has ended: it must join none"
        assert {answer.error_code for answer in await bulk} == {NONE}
        for topic in ("soon", "many"):
            ends = [await end_offset(wire, topic, is_committed=one) for one in (True, False)]
            assert ends[0] == ends[1], "no transaction stays open"
        for one in (quick, slow):
            one.close()


async def test_a_transaction_whose_bulk_batches_wait_ends_with_all_of_them(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    """As clients do it: they end a transaction once all its batches are acknowledged."""
    async with an_agent(database_url, store_url, store_settings) as (agent, wire, link):
        quick, slow = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        producer = await a_transactional_producer(wire, "both")
        await add_partitions(wire, "both", producer, "soon", "many")
        link.stall(100_000)
        bulk = asyncio.create_task(flood(agent.app.kafka_port, 8, 10, LARGE))
        await until(lambda: agent.metric("tidelog_request_memory_waits_total") >= 8)
        late = await slow.send(transactional("many", "both", producer))
        [soon] = partitions_of(await quick.ask(transactional("soon", "both", producer)))
        before = await end_offset(wire, "soon", is_committed=True)
        link.stall(None)

        [of_many] = partitions_of(await slow.receive(late))
        code = await end(wire, "both", producer)

        assert (soon.error_code, of_many.error_code, code) == (NONE, NONE, NONE)
        assert before == 1, "it waited for the end of its transaction"
        await bulk
        for topic in ("soon", "many"):
            ends = [await end_offset(wire, topic, is_committed=one) for one in (True, False)]
            assert ends[0] == ends[1]
        for one in (quick, slow):
            one.close()


async def test_an_agent_with_bulk_full_and_the_store_away_stops(
    database_url: str, store_url: str, store_settings: StoreSettings
) -> None:
    async with an_agent(database_url, store_url, store_settings, drain_timeout_s=1) as (agent, _, link):
        link.stall(0)
        bulk = asyncio.create_task(flood(agent.app.kafka_port, 8, 10, LARGE))
        await until(lambda: agent.metric("tidelog_request_memory_waits_total") >= 8)
        waiting = [
            asyncio.create_task(code_of(await Wire.connect(agent.app.kafka_port), "plain", timeout_s=90))
        ]

        await agent.stop()

        results = await asyncio.gather(bulk, *waiting, return_exceptions=True)
        assert all(isinstance(one, asyncio.IncompleteReadError | ConnectionError) for one in results), (
            "nothing is acknowledged that is not written"
        )
