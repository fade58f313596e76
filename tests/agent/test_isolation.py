"""No client can harm another: its queries of the database delay neither other clients nor the agent
itself.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from kio.schema.errors import ErrorCode

from sequencer.client import SequencerSettings
from tests.agent.kafka.apis.administrative_requests import TIMEOUT, create, delete, grow
from tests.agent.read_path.wire import a_list_offsets, request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running
from tests.support.waiting import until

PATIENT = SequencerSettings(database_statement_timeout_ms=120_000, database_answer_timeout_s=120.0)
"""A statement that waits for a lock keeps its connection for longer than the test takes."""
RENEWALS_S = 1.0
CONNECTIONS = 12
PIPELINED = 128
NO_PAUSE = timedelta(0)


@asynccontextmanager
async def held(database_url: str, table: str) -> AsyncIterator[None]:
    """Makes every statement that reads the table wait."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


async def pipelined(agent: Running, question: Any) -> tuple[Wire, list[tuple[int, Any]]]:
    wire = await Wire.connect(agent.app.kafka_port)
    return wire, [await wire.send(question) for _ in range(PIPELINED)]


def offsets_of(answers: Sequence[Any]) -> list[Any]:
    return [answer.topics[0].partitions[0] for answer in answers]


async def test_leases_and_writes_go_on_while_clients_pipeline_more_list_offsets_than_may_wait(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(database_url, sequencer_settings=PATIENT) as agent:
        modest = await Wire.connect(agent.app.kafka_port)
        await create(modest, "orders")
        await modest.ask(a_produce("orders", {0: a_batch(b"v")}))
        membership = agent.app._membership()
        assert membership is not None
        async with held(database_url, "doubts"):
            greedy = [await pipelined(agent, a_list_offsets(5, "orders", -1)) for _ in range(CONNECTIONS)]
            began_s = asyncio.get_running_loop().time()

            await until(lambda: (membership.last_renewal_s or 0.0) > began_s + RENEWALS_S)
            written = await modest.ask(a_produce("orders", {0: a_batch(b"v")}))

            assert membership.is_serving()
            assert partitions_of(written)[0].error_code is ErrorCode.none
        answers = [[await wire.receive(one) for one in sent] for wire, sent in greedy]
        newest = offsets_of([await modest.ask(a_list_offsets(5, "orders", -1))])
        for wire in (modest, *(wire for wire, _ in greedy)):
            wire.close()

    found = [partition for of_one in answers for partition in offsets_of(of_one)]
    assert {partition.error_code for partition in found} <= {ErrorCode.none, ErrorCode.kafka_storage_error}
    assert {partition.offset for partition in found if partition.error_code is ErrorCode.none} <= {1, 2}
    assert [partition.offset for partition in newest] == [2]
    assert max(answer.throttle_time for of_one in answers for answer in of_one) > NO_PAUSE
    lines = [record for record in caplog.records if record.getMessage().startswith("list offsets")]
    assert len(lines) <= 2, "a line at most in ten seconds"


async def test_a_client_that_overloads_the_database_is_asked_to_pause_in_every_api(
    database_url: str,
) -> None:
    group_configs = request(74, 1, resource_types=(32,))
    async with running(database_url, sequencer_settings=PATIENT) as agent:
        async with held(database_url, "group_configs"):
            greedy = [await pipelined(agent, group_configs) for _ in range(CONNECTIONS)]
        answers = [await wire.receive(one) for wire, sent in greedy for one in sent]
        for wire, _ in greedy:
            wire.close()

    assert max(answer.throttle_time for answer in answers) > NO_PAUSE


async def test_equal_questions_of_many_connections_are_one_statement(database_url: str) -> None:
    async with running(database_url) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await create(wire, "orders")
        await wire.ask(a_list_offsets(5, "orders", -1))
        assert agent.app._reached.assembly is not None
        bounds = agent.app._reached.assembly.parts.bounds
        before = bounds.statements
        async with held(database_url, "doubts"):
            asking = [await pipelined(agent, a_list_offsets(5, "orders", -1)) for _ in range(3)]
            await until(lambda: bounds.statements > before)
        answers = [await other.receive(one) for other, sent in asking for one in sent]
        for other in (wire, *(other for other, _ in asking)):
            other.close()

    assert [partition.offset for partition in offsets_of(answers)] == [0] * 3 * PIPELINED
    assert bounds.statements - before <= 20


async def test_only_a_client_that_creates_topics_too_fast_is_refused_with_a_pause(
    database_url: str,
) -> None:
    async with running(database_url, topic_mutations_per_s=0.01, topic_mutation_burst=10) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        first = await ask_to_create(wire, "first", partitions=11)
        refused = await ask_to_create(wire, "second")
        again = await ask_to_create(wire, "first")
        other = await ask_to_create(wire, "third", client_id="another")

        assert [answer.topics[0].error_code for answer in (first, refused, other)] == [
            ErrorCode.none,
            ErrorCode.throttling_quota_exceeded,
            ErrorCode.none,
        ]
        assert timedelta(seconds=90) < refused.throttle_time <= first.throttle_time <= timedelta(seconds=100)
        assert other.throttle_time == NO_PAUSE
        assert again.topics[0].error_code in {
            ErrorCode.throttling_quota_exceeded,
            ErrorCode.topic_already_exists,
        }
        assert (await grow(wire, "first", 12)).error_code is ErrorCode.throttling_quota_exceeded
        assert (await delete(wire, 6, name="first")).error_code is ErrorCode.throttling_quota_exceeded
        wanted = await wire.ask(a_metadata("fourth"))
        assert wanted.topics[0].error_code is ErrorCode.leader_not_available, "it is asked for again later"
        assert NO_PAUSE < wanted.throttle_time <= timedelta(seconds=1)
        wire.close()


async def test_a_client_of_an_older_version_waits_for_its_turn(database_url: str) -> None:
    async with running(database_url, topic_mutations_per_s=10, topic_mutation_burst=1) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        made = [await create(wire, f"old-{number}", version=5) for number in range(5)]
        wire.close()

    assert [topic.error_code for topic in made] == [ErrorCode.none] * 5


async def ask_to_create(wire: Wire, name: str, *, partitions: int = 1, client_id: str = "test") -> Any:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": (),
        "configs": [],
    }
    return await wire.ask(request(19, 7, topics=[topic], timeout=TIMEOUT, validate_only=False), client_id)


async def test_a_reader_that_looks_up_twice_for_every_poll_is_not_slowed_down(database_url: str) -> None:
    """As Spark's Kafka source does: it asks where the partition begins and ends after each 500 records."""
    async with running(database_url) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await create(wire, "orders")
        answers = [
            await wire.ask(a_list_offsets(5, "orders", timestamp))
            for _ in range(600)
            for timestamp in (-2, -1)
        ]
        wire.close()

    assert {answer.throttle_time for answer in answers} == {NO_PAUSE}


async def test_only_a_connection_that_looks_up_too_fast_is_slowed_down(database_url: str) -> None:
    async with running(database_url, lookups_per_connection_s=50, lookup_burst_s=0.5) as agent:
        greedy, modest = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
        await create(modest, "orders")
        question = a_list_offsets(5, "orders", -1)

        sent = [await greedy.send(question) for _ in range(PIPELINED)]
        other = await modest.ask(question)
        answers = [await greedy.receive(one) for one in sent]
        for wire in (greedy, modest):
            wire.close()

    assert {partition.error_code for partition in offsets_of([*answers, other])} == {ErrorCode.none}
    assert max(answer.throttle_time for answer in answers) > NO_PAUSE
    assert other.throttle_time == NO_PAUSE
