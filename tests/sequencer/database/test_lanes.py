"""Leases, reservations, commits and housekeeping continue while clients use all their connections and more
clients wait.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import psycopg
import pytest

from sequencer.client import Sequencer, SequencerSettings
from sequencer.cluster.agents import AgentAddress
from sequencer.database.database import SequencerUnavailable
from sequencer.database.errors import TooManyWait
from sequencer.database.fair_queue import ASKED_BY, Asker
from sequencer.database.lanes import Lane
from storage.identifiers import Partition, TopicId
from tests.sequencer.builders import accepted, reserved
from tests.sequencer.housekeeping.housekeeping import observed, records_of
from tests.support.waiting import until

AN_ADDRESS = AgentAddress(
    zone="a", kafka_host="here", kafka_port=1, peer_host="here", peer_port=2, http_url="http://here"
)
MANY = 50
NARROW = SequencerSettings(database_pool_size=2, database_pool_reads=1, database_pool_timeout_s=60.0)
READERS = NARROW.database_pool_size - 1
"""One connection is left to writes."""


@asynccontextmanager
async def opened(database_url: str, settings: SequencerSettings) -> AsyncIterator[Sequencer]:
    sequencer = await Sequencer.open(database_url, settings)
    try:
        yield sequencer
    finally:
        await sequencer.close()


@asynccontextmanager
async def locked(database_url: str, table: str) -> AsyncIterator[None]:
    """Every reader of the table waits."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


def asked_by(asker: Asker, ask: Callable[[], Awaitable[object]]) -> "asyncio.Task[object]":
    async def asking() -> object:
        ASKED_BY.set(asker)
        return await ask()

    return asyncio.create_task(asking())


async def waiting_for_locks(database_url: str) -> int:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
            "wait_event_type = 'Lock'"
        )
        [(count,)] = await cursor.fetchall()
        return int(count)


async def test_what_an_agent_lives_by_never_waits_for_a_connection_that_clients_have(
    database_url: str, sequencer: Sequencer
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    key = (topic.topic_id, Partition(0))
    async with opened(database_url, SequencerSettings()) as agent:
        itself = await agent.agents.join(AN_ADDRESS, 60.0)
        async with locked(database_url, "doubts"):
            clients = [asyncio.create_task(agent.coordinates.bounds([key])) for _ in range(MANY)]
            async with asyncio.timeout(60):
                most = SequencerSettings().database_pool_size - 1
                while await waiting_for_locks(database_url) < most:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            async with asyncio.timeout(SequencerSettings().database_pool_timeout_s * 10):
                assert await agent.agents.renew(itself.node_id, itself.incarnation, 60.0)
                segment = await reserved(agent, [records_of(topic)])
                [answer] = await agent.commits.commit([segment])
                assert await agent.jobs.claim("a job", uuid4(), lease_s=60.0) is not None
                await observed(agent)
                assert not (await agent.cluster.health()).complaints()

            assert accepted(answer).outcomes
            assert not any(client.done() for client in clients)
        await asyncio.gather(*clients)


async def test_a_client_that_comes_alone_is_served_before_the_rest_of_one_that_asks_for_much(
    database_url: str, sequencer: Sequencer
) -> None:
    key = ((await sequencer.topics.create("orders", 1, {})).topic_id, Partition(0))
    served: list[str] = []

    async def ask(agent: Sequencer, name: str) -> None:
        await agent.coordinates.bounds([key])
        served.append(name)

    async with opened(database_url, NARROW) as agent:
        async with locked(database_url, "doubts"):
            greedy = [
                asked_by(Asker("greedy", number % 12), lambda: ask(agent, "greedy")) for number in range(MANY)
            ]
            await asyncio.sleep(0)
            modest = asked_by(Asker("modest", 99), lambda: ask(agent, "modest"))
            await asyncio.sleep(0)
        await asyncio.gather(*greedy, modest)

    assert served.index("modest") <= NARROW.database_pool_size + 2


async def test_past_the_bound_the_client_with_most_waiting_is_refused_and_no_other(
    database_url: str, sequencer: Sequencer
) -> None:
    key = ((await sequencer.topics.create("orders", 1, {})).topic_id, Partition(0))
    settings = NARROW.model_copy(update={"database_pool_max_waiting": 10})
    async with opened(database_url, settings) as agent:

        async def ask() -> object:
            return await agent.coordinates.bounds([key])

        async with locked(database_url, "doubts"):
            greedy = [asked_by(Asker("greedy", 0), ask) for _ in range(MANY)]
            await until(lambda: sum(task.done() for task in greedy) == MANY - READERS - 10)
            modest = [asked_by(Asker("modest", 99), ask) for _ in range(3)]
            await until(lambda: sum(task.done() for task in greedy) == MANY - READERS - 10 + 3)
            assert agent.database.used_share(Asker("greedy", 0)) > agent.database.used_share(
                Asker("modest", 99)
            )
        answers = await asyncio.gather(*greedy, return_exceptions=True)
        assert all(key in answer for answer in await asyncio.gather(*modest))  # type: ignore[operator]

    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert len(refused) == MANY - READERS - 10 + 3
    assert all(isinstance(error, TooManyWait) for error in refused)


@pytest.mark.parametrize("turns_later", range(4))
async def test_a_place_given_to_a_call_that_is_cancelled_goes_to_the_next(
    database_url: str, turns_later: int
) -> None:
    async with opened(database_url, NARROW) as agent:
        release = asyncio.Event()

        async def hold() -> None:
            async with agent.database.connection():
                await release.wait()

        holders = [asyncio.create_task(hold()) for _ in range(READERS)]
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(agent.coordinates.bounds([])) for _ in range(4)]
        await asyncio.sleep(0.05)

        release.set()
        for _ in range(turns_later):
            await asyncio.sleep(0)
        for task in waiting[:2]:
            task.cancel()

        await asyncio.gather(*holders)
        async with asyncio.timeout(60):
            assert await asyncio.gather(*waiting[2:]) == [{}, {}]
            for _ in range(2 * NARROW.database_pool_size):
                assert await agent.coordinates.bounds([]) == {}


async def test_calls_that_wait_for_a_connection_in_vain_say_so(database_url: str) -> None:
    settings = SequencerSettings(database_pool_size=2, database_pool_timeout_s=0.1)
    async with opened(database_url, settings) as agent, contextlib.AsyncExitStack() as held:
        for _ in range(READERS):
            await held.enter_async_context(agent.database.connection())

        with pytest.raises(
            SequencerUnavailable, match=r"all connections for reads to Postgres at .* were busy"
        ):
            await agent.topics.by_id([TopicId(uuid4())])


async def test_calls_that_read_for_long_may_write_meanwhile(database_url: str) -> None:
    """As the journal does: each holds a connection that reads one moment, and takes another to write."""
    async with opened(database_url, SequencerSettings(database_pool_timeout_s=60.0)) as agent:

        async def read_and_write(job: int) -> None:
            housekeeping = agent.database.on(Lane.HOUSEKEEPING)
            async with housekeeping.connection():
                await housekeeping.write(
                    "UPDATE topic_changes SET changes = changes + %(job)s::bigint", job=job
                )

        async with asyncio.timeout(60):
            await asyncio.gather(*(read_and_write(job) for job in range(10)))
