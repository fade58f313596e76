"""A coordinator that refuses, falls silent, dies or sends nonsense: its clients get NOT_COORDINATOR, and no
request hangs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from kio.schema.errors import ErrorCode

from agent.kafka.forwarding.forward_protocol import ACCEPTED, HELLO_LENGTH_BYTES, PREFACE, decode_hello
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress
from sequencer.settings import SequencerSettings
from tests.agent.kafka.forwarding.test_forwarding import (
    ADDRESS,
    TOPIC,
    a_commit,
    a_heartbeat,
    a_join,
    an_offset_fetch,
    commit_code,
)
from tests.agent.running import RING, Running, Wire, a_metadata, running
from tests.cache_ring.builders import a_peer_port
from tests.support.waiting import until

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LONG_S = 60.0


@asynccontextmanager
async def a_strange_agent(database_url: str, converse: Conversation) -> AsyncIterator[list[str]]:
    """A member of the cluster whose peer port does what `converse` does. Yields the clients that it was
    named.
    """
    clients: list[str] = []
    open_tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            length = int.from_bytes(await reader.readexactly(HELLO_LENGTH_BYTES), "big")
            clients.append(decode_hello(await reader.readexactly(length)).client)
            await converse(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    sequencer = await Sequencer.open(database_url, SequencerSettings())
    async with a_peer_port(serve, sequencer.agents.peer_secrets) as port:
        address = AgentAddress(
            zone="s",
            kafka_host="strange",
            kafka_port=1,
            peer_host="127.0.0.1",
            peer_port=port,
            http_url="http://strange",
        )
        await sequencer.agents.join(address, LONG_S)
        try:
            yield clients
        finally:
            for task in open_tasks:
                task.cancel()
            await sequencer.close()


def a_group_of_another(agent: Running) -> str:
    membership = agent.app._membership()
    assert membership is not None
    names = (f"elsewhere-{number}" for number in range(1_000))
    return next(name for name in names if membership.ring.coordinator(f"group/{name}") != membership.self_)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Does not accept."""


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
    await reader.read()


async def refuse_in_other_words(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()


async def accept_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ACCEPTED)
    await reader.readexactly(10)


async def accept_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ACCEPTED)
    await reader.read()


async def answer_another_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ACCEPTED)
    await reader.readexactly(10)
    writer.write(b"\x00\x00\x00\x06\x7f\xff\xff\xff\x00\x00")
    await reader.read()


async def answer_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ACCEPTED)
    await reader.readexactly(10)
    writer.write(b"\x7f\xff\xff\xff")
    await reader.read()


@pytest.mark.parametrize(
    "converse",
    [
        hang_up, say_nothing, refuse_in_other_words, accept_and_hang_up, accept_and_say_nothing,
        answer_another_request, answer_without_end,
    ],
)  # fmt: skip
async def test_a_coordinator_that_does_not_answer_gives_not_coordinator(
    database_url: str, converse: Conversation
) -> None:
    impatient: dict[str, Any] = {
        "one_address": ADDRESS,
        "forward_connect_timeout_s": 0.3,
        "forward_timeout_s": 0.3,
    }
    async with (
        a_strange_agent(database_url, converse) as clients,
        running(database_url, **impatient) as agent,
    ):
        await until(lambda: agent.agents_seen == 2)
        group = a_group_of_another(agent)
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata(TOPIC))

        beaten = await wire.ask(a_heartbeat(group))
        refused = await wire.ask(a_commit(group, 1))
        [fetched] = (await wire.ask(an_offset_fetch(group))).groups
        wire.close()

        assert beaten.error_code is commit_code(refused) is ErrorCode.not_coordinator
        assert fetched.error_code is ErrorCode.none, "any agent answers what a coordinator does not"
        assert clients[0] == "{}:{}".format(*wire.writer.get_extra_info("sockname"))
        assert agent.metric("tidelog_forwarded_total", outcome="lost") == 3


async def test_a_port_without_a_listener_gives_not_coordinator(database_url: str) -> None:
    unsuspecting = RING.model_copy(update={"probe_watched": 0})
    async with running(database_url, one_address=ADDRESS, ring_settings=unsuspecting) as agent:
        async with a_strange_agent(database_url, say_nothing):
            await until(lambda: agent.agents_seen == 2)
        wire = await Wire.connect(agent.app.kafka_port)

        beaten = await wire.ask(a_heartbeat(a_group_of_another(agent)))
        wire.close()

        assert beaten.error_code is ErrorCode.not_coordinator


async def test_no_request_waits_for_a_coordinator_that_left_the_cluster(database_url: str) -> None:
    """A JoinGroup may take as long as a rebalance; it ends when the lease of a frozen coordinator does."""
    async with (
        running(database_url, one_address=ADDRESS) as agent,
        a_strange_agent(database_url, accept_and_say_nothing) as clients,
    ):
        await until(lambda: agent.agents_seen == 2)
        wire = await Wire.connect(agent.app.kafka_port)
        waiting = await wire.send(a_join(a_group_of_another(agent)))
        await until(lambda: clients)
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE agents SET lease_until = clock_timestamp() WHERE zone = 's'")

        answer = await wire.receive(waiting)
        wire.close()

        # By then this agent is the coordinator itself: it names the member, whom Kafka's clients then use to
        # join.
        assert answer.error_code is ErrorCode.member_id_required


async def test_a_client_that_hangs_up_cancels_its_forwarded_requests(database_url: str) -> None:
    ended = asyncio.Event()

    async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ACCEPTED)
        await reader.read()
        ended.set()

    async with (
        a_strange_agent(database_url, wait_for_the_end) as clients,
        running(database_url, one_address=ADDRESS) as agent,
    ):
        await until(lambda: agent.agents_seen == 2)
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.send(a_join(a_group_of_another(agent)))
        await until(lambda: clients)

        wire.reset()

        async with asyncio.timeout(60):
            await ended.wait()
        await until(lambda: agent.metric("tidelog_connections") == 0)


async def test_an_agent_that_stops_ends_forwarded_requests(database_url: str) -> None:
    async with (
        a_strange_agent(database_url, accept_and_say_nothing) as clients,
        running(database_url, one_address=ADDRESS) as agent,
    ):
        await until(lambda: agent.agents_seen == 2)
        wire = await Wire.connect(agent.app.kafka_port)
        waiting = await wire.send(a_join(a_group_of_another(agent)))
        await until(lambda: clients)

        await agent.stop()

        assert (await wire.receive(waiting)).error_code is ErrorCode.not_coordinator
        wire.close()
