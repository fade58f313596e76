"""Fetch and ListOffsets of two running agents in zones a and b, by hand in every version and with
confluent-kafka.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
import pytest_asyncio
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode
from pydantic import SecretStr

from agent.app import App
from agent.settings import AgentSettings
from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId
from storage.stores.object_store import StoreSettings
from storage.stores.open_store import open_store
from tests.agent.read_path.a_log import NOON_MS, RING, ALog, a_batch
from tests.agent.read_path.wire import a_fetch, a_list_offsets, ask
from tests.support.messages import place_of, value_of
from tests.support.postgres import OWNER, TEMPLATE
from tests.support.s3 import BUCKET, settings_of
from tests.support.settings import all_settings
from tests.support.waiting import until
from tidelog.embedded.postgres import EmbeddedPostgres
from tidelog.embedded.s3_endpoint import S3Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count(1)
SPECIAL_TIMES = {-3: (7, (3, NOON_MS + 90)), -4: (8, (0, -1)), -5: (9, (-1, -1)), -6: (11, (-1, -1))}
"""The version since which each is known, and the answer."""


@dataclass(kw_only=True)
class Agents:
    a: App
    b: App
    log: ALog
    topic: Topic

    async def fetch(self, version: int, *offsets: int, app: App | None = None, **values: Any) -> list[Any]:
        """The partitions of the answer."""
        answer = await ask((app or self.a).kafka_port, a_fetch(version, self.topic, *offsets, **values))
        assert getattr(answer, "error_code", ErrorCode.none) is ErrorCode.none
        assert getattr(answer, "session_id", 0) == 0
        return list(answer.responses[0].partitions)

    async def list_offsets(self, version: int, timestamp: int, **values: Any) -> Any:
        answer = await ask(self.a.kafka_port, a_list_offsets(version, self.topic.name, timestamp, **values))
        return answer.topics[0].partitions[0]


@asynccontextmanager
async def running(database_url: str, store_url: str, store: StoreSettings, zone: str) -> AsyncIterator[App]:
    settings = AgentSettings(
        database_url=SecretStr(database_url),
        store_url=store_url,
        zone=zone,
        kafka_port=0,
        http_port=0,
        linger_ms=20,
        drain_timeout_s=10,
    )
    app, stopping = App(all_settings(agent=settings, store=store, ring=RING)), asyncio.Event()
    task = asyncio.create_task(app.run(stopping))
    try:
        async with asyncio.timeout(60):
            await app.started.wait()
        yield app
    finally:
        stopping.set()
        await asyncio.wait_for(task, 60)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The database and the store of this module's agents."""

    database_url: str
    store_url: str
    store_settings: StoreSettings

    def running(self, zone: str) -> AbstractAsyncContextManager[App]:
        return running(self.database_url, self.store_url, self.store_settings, zone)


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, s3_endpoint: S3Endpoint) -> Iterator[Place]:
    """A database and a prefix for this module only, because starting agents takes longer than all its
    tests.
    """
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE tidelog_fetch_api OWNER {OWNER} TEMPLATE {TEMPLATE}")
        yield Place(
            database_url=postgres.url("tidelog_fetch_api"),
            store_url=s3_endpoint.store_url(BUCKET, "fetch-api"),
            store_settings=settings_of(s3_endpoint),
        )
        connection.execute("DROP DATABASE tidelog_fetch_api WITH (FORCE)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(place: Place) -> AsyncIterator[tuple[App, App]]:
    async with place.running("a") as a, place.running("b") as b:
        for app in (a, b):
            await until(partial(_sees_both, app))
        yield a, b


@pytest_asyncio.fixture(loop_scope="module")
async def agents(both: tuple[App, App], place: Place) -> AsyncIterator[Agents]:
    """Both agents, and a new topic for each test."""
    sequencer = await Sequencer.open(place.database_url, SequencerSettings())
    store = await open_store(place.store_url, place.store_settings)
    log = await ALog(sequencer=sequencer, store=store, name=f"orders-{next(_numbers)}").create(partitions=2)
    yield Agents(a=both[0], b=both[1], log=log, topic=(await sequencer.topics.by_name([log.name]))[log.name])
    await store.close()
    await sequencer.close()


def _ring(app: App) -> Any:
    assembly = app._reached.assembly
    assert assembly is not None
    return assembly.parts.membership.ring


async def test_every_version_of_fetch_returns_the_records(agents: Agents) -> None:
    await agents.log.write(["a", "b"], ["c"])
    await agents.log.write(["d"])
    expected = None

    for version in range(4, 19):
        full, empty = await agents.fetch(version, 0, 0)

        assert (full.error_code, full.high_watermark, full.last_stable_offset) == (ErrorCode.none, 4, 4)
        assert (empty.error_code, empty.high_watermark, len(empty.records or b"")) == (ErrorCode.none, 0, 0)
        assert full.aborted_transactions is None
        records = bytes(full.records)
        expected = expected or records
        assert records == expected
    assert expected is not None
    assert len(expected) == len(a_batch(["a", "b"], [1, 1])) + 2 * len(a_batch(["c"], [1]))


async def test_errors_are_per_partition_with_offset_minus_one(agents: Agents) -> None:
    await agents.log.write(["a"])
    nobody = Topic(topic_id=TopicId(UUID(int=5)), name="nobody", **_rest(agents.topic))

    fine, past, missing = await agents.fetch(12, 0, 9, 0)
    by_name = (await ask(agents.a.kafka_port, a_fetch(12, nobody, 0))).responses[0].partitions[0]
    by_id = (await ask(agents.a.kafka_port, a_fetch(13, nobody, 0))).responses[0].partitions[0]
    [fenced] = await agents.fetch(12, 0, partition={"current_leader_epoch": 3})

    assert fine.error_code is ErrorCode.none
    assert past.error_code is ErrorCode.offset_out_of_range
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    assert by_name.error_code is ErrorCode.unknown_topic_or_partition
    assert by_id.error_code is ErrorCode.unknown_topic_id
    assert fenced.error_code is ErrorCode.unknown_leader_epoch
    for failed in (past, missing, by_name, by_id, fenced):
        assert (failed.high_watermark, failed.last_stable_offset, failed.log_start_offset) == (-1, -1, -1)


def _rest(topic: Topic) -> dict[str, Any]:
    return {"partition_count": 1, "config": {}, "created_at": topic.created_at}


async def test_a_fetch_session_cannot_be_continued(agents: Agents) -> None:
    for session_id in (0, 5):
        continued = a_fetch(12, agents.topic, 0, session_id=session_id, session_epoch=1)

        answer = await ask(agents.a.kafka_port, continued)

        assert (answer.error_code, answer.responses) == (ErrorCode.fetch_session_id_not_found, ())


@pytest.mark.parametrize("session_id", [-1, 0, 5])
@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_a_fetch_that_asks_for_or_ends_a_session_is_a_full_request(
    agents: Agents, session_id: int, session_epoch: int
) -> None:
    """segmentio/kafka-go sends -1 for both."""
    asked = a_fetch(12, agents.topic, 0, session_id=session_id, session_epoch=session_epoch)

    answer = await ask(agents.a.kafka_port, asked)

    assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)
    assert [part.error_code for part in answer.responses[0].partitions] == [ErrorCode.none]


async def test_a_client_of_another_zone_is_sent_to_that_zones_agent(agents: Agents) -> None:
    await agents.log.write(["a"])
    other = _ring(agents.a).partition_leader("b", agents.topic.topic_id, 0)

    [sent_on] = await agents.fetch(12, 0, rack_id="b")
    [served_there] = await agents.fetch(12, 0, rack_id="b", app=agents.b)
    [unknown_zone] = await agents.fetch(12, 0, rack_id="nowhere")

    assert (sent_on.preferred_read_replica, len(sent_on.records or b"")) == (other.node_id, 0)
    assert (sent_on.error_code, sent_on.high_watermark) == (ErrorCode.none, 1)
    for served in (served_there, unknown_zone):
        assert (served.preferred_read_replica, len(served.records) > 0) == (-1, True)


async def test_read_committed_gets_no_aborted_transactions(agents: Agents) -> None:
    await agents.log.write(["a"])

    [committed] = await agents.fetch(12, 0, isolation_level=1)

    assert (committed.aborted_transactions, len(committed.records) > 0) == ((), True)


async def test_a_reader_with_an_unknown_epoch_gets_the_diverging_epoch(agents: Agents) -> None:
    await agents.log.write(["a"])

    [diverging] = await agents.fetch(12, 0, partition={"last_fetched_epoch": 4})

    assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (0, 1)
    assert len(diverging.records or b"") == 0


async def test_a_waiting_fetch_wakes_when_the_other_zone_writes_and_when_the_agent_stops(
    agents: Agents, place: Place
) -> None:
    patient = a_fetch(12, agents.topic, 0, max_wait=timedelta(seconds=100))
    waiting = asyncio.create_task(ask(agents.b.kafka_port, patient))
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{agents.a.kafka_port}", "client.id": "tidelog_zone=a"}
    )
    producer.produce(agents.topic.name, b"value", partition=0)
    await asyncio.to_thread(producer.flush, 30)

    woken = (await asyncio.wait_for(waiting, 30)).responses[0].partitions[0]
    assert woken.high_watermark == 1

    async with place.running("a") as stopping:
        late = a_fetch(12, agents.topic, 1, max_wait=timedelta(seconds=100), rack_id="a")
        assembly = stopping._reached.assembly
        assert assembly is not None
        cut_short = asyncio.create_task(ask(stopping.kafka_port, late))
        await until(lambda: assembly.parts.reads.counts.waits == 1)
    assert (await cut_short).responses[0].partitions[0].high_watermark == 1


async def test_list_offsets_in_every_version(agents: Agents) -> None:
    await agents.log.write(["a", "b"], timestamps_ms=[NOON_MS, NOON_MS + 50])
    await agents.log.write(["c", "d", "e"], timestamps_ms=[NOON_MS + 10, NOON_MS + 90, NOON_MS + 60])

    async def offset_and_time(version: int, timestamp: int) -> tuple[int, int]:
        found = await agents.list_offsets(version, timestamp)
        assert found.error_code is ErrorCode.none
        return found.offset, found.timestamp

    for version in range(1, 12):
        assert await offset_and_time(version, -1) == (5, -1)
        assert await offset_and_time(version, -2) == (0, -1)
        assert await offset_and_time(version, 0) == (0, NOON_MS)
        assert await offset_and_time(version, NOON_MS + 50) == (1, NOON_MS + 50)
        assert await offset_and_time(version, NOON_MS + 51) == (3, NOON_MS + 90)
        assert await offset_and_time(version, NOON_MS + 91) == (-1, -1)
        for special, (since, expected) in SPECIAL_TIMES.items():
            if version >= since:
                assert await offset_and_time(version, special) == expected
            else:
                refused = await agents.list_offsets(version, special)
                assert refused.error_code is ErrorCode.unsupported_version


async def test_times_below_the_log_start_are_not_found(agents: Agents) -> None:
    await agents.log.write(["a", "b", "c"], timestamps_ms=[NOON_MS, NOON_MS + 500, NOON_MS + 1])
    await agents.log.write(["d"], timestamps_ms=[NOON_MS + 2])
    async with agents.log.sequencer.database.transaction() as connection:
        await connection.execute(
            "UPDATE partitions SET log_start_offset = 2 WHERE topic_id = %s AND partition = 0",
            (agents.topic.topic_id,),
        )

    assert (await agents.list_offsets(7, NOON_MS)).offset == 2
    assert (await agents.list_offsets(7, NOON_MS + 100)).offset == -1
    latest = await agents.list_offsets(7, -3)
    assert (latest.offset, latest.timestamp) == (3, NOON_MS + 2)


async def test_list_offsets_of_unknown_partitions(agents: Agents) -> None:
    assert (await agents.list_offsets(7, -1, partition=9)).error_code is ErrorCode.unknown_topic_or_partition
    fenced = await agents.list_offsets(7, -1, current_leader_epoch=2)

    assert (fenced.error_code, fenced.offset) == (ErrorCode.unknown_leader_epoch, -1)


async def test_confluent_kafka_reads_through_zone_b_what_it_wrote_through_zone_a(agents: Agents) -> None:
    count = 2000
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{agents.a.kafka_port}",
            "client.id": "tidelog_zone=a",
            "enable.idempotence": True,
            "compression.type": "zstd",
        }
    )
    for number in range(count):
        producer.produce(
            agents.topic.name, f"value-{number}".encode(), key=str(number % 7).encode(), partition=number % 2
        )
    assert await asyncio.to_thread(producer.flush, 60) == 0

    b = agents.b._reached.assembly
    assert b is not None
    before = b.parts.reads.counts.bytes_out
    values = await asyncio.to_thread(_consume, agents.b.kafka_port, agents.topic.name, count)

    assert [sorted(values[partition]) for partition in (0, 1)] == [values[partition] for partition in (0, 1)]
    assert {number for partition in values.values() for number in partition} == set(range(count))
    assert b.parts.reads.counts.bytes_out > before, "the client was sent to its own zone"


def _consume(port: int, topic: str, count: int) -> dict[int, list[int]]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "none",
            "client.id": "tidelog_zone=b",
            "client.rack": "b",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    values: dict[int, list[int]] = {0: [], 1: []}
    try:
        for _ in range(200):
            for message in consumer.consume(500, timeout=0.5):
                assert message.error() is None, message.error()
                place, offset = place_of(message)
                assert offset == len(values[place])
                values[place].append(int(value_of(message).removeprefix(b"value-")))
            if sum(map(len, values.values())) == count:
                break
    finally:
        consumer.close()
    return values


def _sees_both(app: App) -> bool:
    return len(_ring(app).agents) == 2
