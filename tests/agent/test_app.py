"""The life of an agent: it waits for what is away, serves while its lease holds, and drains before it
ends.
"""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from cache_ring.settings import CacheRingSettings
from sequencer.client import Sequencer, SequencerSettings
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from storage.stores.object_store import StoreSettings
from tests.agent.running import (
    Running,
    Wire,
    a_batch,
    a_memory_store,
    a_metadata,
    a_produce,
    partitions_of,
    running,
    until_answered,
)
from tests.support.waiting import until
from tidelog.embedded.postgres import EmbeddedPostgres

WAITS_FOR_TOPICS = (
    "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'topics'::regclass"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
IMPATIENT = SequencerSettings(database_pool_timeout_s=0.3, database_connect_timeout_s=2)


async def readiness(agent: Running) -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{agent.app.http_port}/ready", timeout=60)
        return answer.status_code, answer.json()


async def until_not_ready(agent: Running, reason: str) -> None:
    """Waits until /ready answers 503 and says why."""
    async with asyncio.timeout(60):
        while True:
            if agent.app.http_port:
                status, body = await readiness(agent)
                if status == 503 and reason in body["message"]:
                    return
            await asyncio.sleep(0.05)


async def until_ready(agent: Running) -> None:
    async def ready() -> bool:
        return (await readiness(agent))[0] == 200

    await until_answered(ready)


async def both_are_seen(wire: Wire) -> None:
    """Waits until this agent knows two agents."""

    async def seen() -> bool:
        return len((await wire.ask(a_metadata())).brokers) == 2

    await until_answered(seen)


def a_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_an_agent_whose_database_is_away_says_so_and_stops_on_request() -> None:
    nowhere = f"postgresql://postgres@127.0.0.1:{a_free_port()}/x"

    async with running(nowhere, wait_started=False, sequencer_settings=IMPATIENT) as agent:
        await until_not_ready(agent, "cannot reach Postgres")
        assert not agent.app.started.is_set()
        await agent.stop()


async def test_ready_and_the_log_say_why_postgres_refuses_an_agent(
    postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if a health checker waits for an answer less long than an agent does for a connection."""
    reason = 'database "nobody_made_it" does not exist'

    async with running(postgres.url("nobody_made_it"), wait_started=False) as agent:
        await until_not_ready(agent, reason)
        await until(lambda: any(reason in str(getattr(record, "reason", "")) for record in caplog.records))
        await agent.stop()


async def test_an_agent_whose_store_is_away_says_so_and_stops_on_request(database_url: str) -> None:
    keys: dict[str, Any] = {"s3_access_key": "x", "s3_secret_key": "y"}
    store = StoreSettings(**keys, s3_attempts=1, s3_call_timeout_s=1.0)
    nowhere = f"s3://bucket/x?endpoint=http://127.0.0.1:{a_free_port()}"

    async with running(database_url, nowhere, wait_started=False, store_settings=store) as agent:
        await until_not_ready(agent, "store")
        assert not agent.app.started.is_set()
        await agent.stop()


async def test_an_agent_waits_for_its_database_to_be_migrated(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE unmigrated")
    url = postgres.url("unmigrated")

    async with running(url, wait_started=False, connect_backoff_s=0.05) as agent:
        await until_not_ready(agent, "tidelog migrate")
        await migrate(url, MigrationSettings())
        await until(agent.app.started.is_set)
        await until_ready(agent)


@pytest.mark.superuser
async def test_a_database_that_may_lose_what_it_acknowledged_keeps_the_agent_from_serving(
    database_url: str,
) -> None:
    name = database_url.split("?")[0].rsplit("/", 1)[1]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")

    async with running(database_url, wait_started=False) as agent:
        await until_not_ready(agent, "synchronous_commit")
        await agent.stop()


async def test_an_agent_with_a_store_of_another_database_says_so_and_does_not_serve(
    database_url: str,
) -> None:
    first, other = a_memory_store(), a_memory_store()
    async with running(database_url, first):
        pass

    async with running(database_url, other, wait_started=False, connect_backoff_s=0.05) as agent:
        await until_not_ready(agent, f"The first agent had them in {first}")
        assert not agent.app.started.is_set()
        await agent.stop()

    async with running(database_url, first) as agent:
        await until_ready(agent)


async def test_two_agents_see_each_other_and_route_by_the_zone_in_the_client_id(database_url: str) -> None:
    store = a_memory_store()
    async with (
        running(database_url, store, zone="a") as first,
        running(database_url, store, zone="b") as second,
    ):
        wire = await Wire.connect(first.app.kafka_port)

        async def leader_port(client_id: str) -> int:
            answer = await wire.ask(a_metadata("routed"), client_id)
            ports = {broker.node_id: broker.port for broker in answer.brokers}
            [partition] = answer.topics[0].partitions
            assert len(partition.replica_nodes) == len(ports)
            return int(ports[partition.leader_id])

        await both_are_seen(wire)
        assert await leader_port("tidelog_zone=a") == first.app.kafka_port
        assert await leader_port("app,diskless_az=b") == second.app.kafka_port
        assert await leader_port("nothing said") == first.app.kafka_port
        assert await leader_port("tidelog_zone=elsewhere") in (first.app.kafka_port, second.app.kafka_port)
        racks = {broker.port: broker.rack for broker in (await wire.ask(a_metadata())).brokers}
        assert racks == {first.app.kafka_port: "a", second.app.kafka_port: "b"}


async def test_an_agent_that_joins_during_a_metadata_request_is_a_broker_if_it_leads(
    database_url: str, sequencer: Sequencer
) -> None:
    store = a_memory_store()
    async with running(database_url, store, zone="a") as first, contextlib.AsyncExitStack() as opened:
        await sequencer.topics.create("joined", 4, {})
        wire = await Wire.connect(first.app.kafka_port)
        async with sequencer.database.transaction() as held:
            await held.execute("LOCK TABLE topics IN ACCESS EXCLUSIVE MODE")
            asked = await wire.send(a_metadata("joined"), "tidelog_zone=b")
            await until_answered(lambda: sequencer.database.run(WAITS_FOR_TOPICS))
            second = await opened.enter_async_context(running(database_url, store, zone="b"))
            await until(lambda: first.agents_seen == 2)
        answer = await wire.receive(asked)

        ports = {broker.node_id: broker.port for broker in answer.brokers}
        leaders = {ports[partition.leader_id] for partition in answer.topics[0].partitions}
        assert leaders == {second.app.kafka_port}


async def test_a_moved_partition_is_refused_for_a_moment_and_then_served(
    database_url: str,
) -> None:
    """The client says zone b, but writes through the agent in zone a."""
    store = a_memory_store()
    async with (
        running(database_url, store, zone="a", redirect_window_s=3.0) as first,
        running(database_url, store, zone="b"),
    ):
        wire = await Wire.connect(first.app.kafka_port)
        await wire.ask(a_metadata("moved"))
        await both_are_seen(wire)

        async def produce(client_id: str) -> ErrorCode:
            answer = await wire.ask(a_produce("moved", {0: a_batch(b"x")}), client_id)
            return partitions_of(answer)[0].error_code  # type: ignore[no-any-return]

        assert await produce("tidelog_zone=a") is ErrorCode.none
        assert await produce("tidelog_zone=b") is ErrorCode.not_leader_or_follower
        assert await produce("tidelog_zone=b") is ErrorCode.not_leader_or_follower

        async def is_served() -> bool:
            return await produce("tidelog_zone=b") is ErrorCode.none

        await until_answered(is_served)


async def test_draining_answers_every_request_in_flight(database_url: str, sequencer: Sequencer) -> None:
    """Without the drain nothing would be sealed for a minute. Every acknowledged record is there."""
    async with running(database_url, linger_ms=60_000, put_budget_burst=1, put_budget_per_s=0.001) as agent:
        wires = [await Wire.connect(agent.app.kafka_port) for _ in range(3)]
        await wires[0].ask(a_metadata("drained"))
        await wires[0].ask(a_produce("drained", {0: a_batch(b"takes the only token")}))
        sent = [
            (wire, await wire.send(a_produce("drained", {0: a_batch(b"x")})))
            for wire in wires
            for _ in range(20)
        ]
        await until(lambda: agent.metric("tidelog_requests_total", api="Produce") == 61)

        stopping = asyncio.create_task(agent.stop())
        answers = [partitions_of(await wire.receive(one))[0] for wire, one in sent]
        await stopping

        assert {answer.error_code for answer in answers} == {ErrorCode.none}
        assert sorted(answer.base_offset for answer in answers) == list(range(1, 61))
        for wire in wires:
            assert await wire.is_closed_by_agent()
    topic = (await sequencer.topics.by_name(["drained"]))["drained"]
    [bounds] = (await sequencer.coordinates.bounds([(topic.topic_id, 0)])).values()  # type: ignore[list-item]
    assert bounds.high_watermark == 61
    assert await sequencer.agents.live() == ()


async def test_an_agent_that_cannot_renew_its_lease_stops_serving_and_serves_again(
    database_url: str, postgres: EmbeddedPostgres
) -> None:
    name = database_url.split("?")[0].rsplit("/", 1)[1]
    ring = CacheRingSettings(membership_lease_s=3.0, membership_renew_s=0.2, membership_margin_s=0.5)
    async with running(database_url, ring_settings=ring, sequencer_settings=IMPATIENT) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        assert (await wire.ask(a_metadata())).brokers
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )

            assert await wire.is_closed_by_agent()
            assert await (await Wire.connect(agent.app.kafka_port)).is_closed_by_agent()
            await until_not_ready(agent, "")
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

        await until_ready(agent)
        again = await Wire.connect(agent.app.kafka_port)
        assert (await again.ask(a_metadata())).brokers


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_librdkafka_writes_and_reads_every_compression(
    database_url: str, store_url: str, store_settings: StoreSettings, compression: str
) -> None:
    async with running(database_url, store_url, store_settings=store_settings) as agent:
        written = [b"%s value %d" % (compression.encode(), number) * 20 for number in range(500)]

        offsets = await asyncio.to_thread(produce_all, agent.bootstrap, compression, written)
        read = await asyncio.to_thread(consume_all, agent.bootstrap, len(written))

        assert sorted(offsets) == list(range(500))
        assert read == written
        # One small batch would do too if librdkafka had not dared to compress it.
        stored = agent.metric("tidelog_put_bytes_total")
        plain = sum(map(len, written))
        assert stored < plain / 2 if compression != "none" else stored > plain


def produce_all(bootstrap: str, compression: str, values: list[bytes]) -> list[int]:
    offsets = []

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": compression,
            "linger.ms": 20,
        }
    )
    for value in values:
        producer.produce("compressed", value=value, partition=0, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    return offsets


def consume_all(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("compressed", 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        messages = consumer.consume(count, timeout=15)
        assert messages, "the rest did not come"
        assert all(message.error() is None for message in messages)
        values += [message.value() or b"" for message in messages]
    consumer.close()
    return values


async def test_a_local_directory_serves_as_a_store(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, f"file://{tmp_path}") as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("local"))

        answer = await wire.ask(a_produce("local", {0: a_batch(b"x")}))

        assert partitions_of(answer)[0].base_offset == 0
        assert [path for path in tmp_path.rglob("*") if path.is_file()]  # noqa: ASYNC240 - a test may wait
