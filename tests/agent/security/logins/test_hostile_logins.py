"""Clients that never authenticate, or that only want to take what others need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.security.sasl.settings import SaslSettings
from tests.agent.running import Running, Wire, a_metadata, running, until_answered
from tests.agent.security.logins.by_hand import authenticate, handshake, log_in, plain
from tests.agent.security.logins.users import add_user

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAITING = 40
IDLE = 2_000
SETTINGS = SaslSettings(
    sasl_mechanisms="PLAIN,SCRAM-SHA-256",
    sasl_max_unauthenticated=WAITING,
    sasl_failed_delay_ms=10,
    sasl_failed_delay_max_ms=20,
    sasl_large_frames_bytes=600_000,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    await add_user(module_database_url, "ann", "secret")
    async with running(module_database_url, sasl_settings=SETTINGS, max_connections=WAITING + 20) as started:
        yield started


async def connected(agent: Running, opened: AsyncExitStack) -> Wire:
    wire = await Wire.connect(agent.app.kafka_port)
    opened.callback(wire.close)
    return wire


async def test_thousands_of_silent_connections_keep_nobody_out(agent: Running) -> None:
    async with AsyncExitStack() as opened:
        user = await connected(agent, opened)
        await log_in(user, "ann", "secret")
        for _ in range(IDLE // 100):
            await asyncio.gather(*(connected(agent, opened) for _ in range(100)))
            late = await connected(agent, opened)
            assert (await log_in(late, "ann", "secret", "SCRAM-SHA-256")).error_code == ErrorCode.none
            late.close()
            assert agent.metric("tidelog_unauthenticated_connections") <= WAITING
        assert (await user.ask(a_metadata("t"))).topics


async def test_large_frames_of_strangers_delay_no_login(agent: Running) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(10):
            wire = await connected(agent, opened)
            wire.writer.write((500_000).to_bytes(4, "big") + bytes(100_000))

        honest = await connected(agent, opened)

        assert (await log_in(honest, "ann", "secret")).error_code == ErrorCode.none
        memory = agent.app._reached.assembly.parts.request_memory  # type: ignore[union-attr]
        assert memory.used_bytes == 0


async def test_a_large_message_is_refused_and_its_memory_given_back(agent: Running) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(5):  # more than the budget holds at once
            wire = await connected(agent, opened)
            await wire.ask(handshake())
            answer = await wire.ask(authenticate(b"\0ann\0" + b"x" * 400_000))
            assert answer.error_code == ErrorCode.sasl_authentication_failed


async def test_guesses_of_one_host_keep_no_login_from_another_out(agent: Running) -> None:
    async def guess(number: int) -> int:
        wire = await Wire.connect(agent.app.kafka_port)
        try:
            return int((await log_in(wire, "ann", f"guess {number}")).error_code)
        except (ConnectionError, asyncio.IncompleteReadError):
            return -1  # displaced by the next ones
        finally:
            wire.close()

    guesses = asyncio.gather(*(guess(number) for number in range(200)))
    async with AsyncExitStack() as opened:
        honest = Wire(
            *await asyncio.open_connection("127.0.0.1", agent.app.kafka_port, local_addr=("127.0.0.2", 0))
        )
        opened.callback(honest.close)
        assert (await log_in(honest, "ann", "secret", "SCRAM-SHA-256")).error_code == ErrorCode.none

    assert ErrorCode.none not in set(await guesses)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 12, 20])
async def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(agent: Running, length: int) -> None:
    async with AsyncExitStack() as opened:
        wire = await connected(agent, opened)
        await wire.ask(handshake())
        whole = bytes.fromhex("0000001c0024000200000001ffff00") + plain("ann", "secret")
        wire.writer.write(whole[:length])
        await wire.writer.drain()
        wire.reset()

    async def is_empty() -> bool:
        return agent.metric("tidelog_unauthenticated_connections") == 0

    await until_answered(is_empty)


async def test_a_slow_login_is_cut_off(module_database_url: str) -> None:
    settings = SaslSettings(
        sasl_mechanisms="PLAIN", sasl_timeout_s=1.0, sasl_failed_delay_ms=0, sasl_failed_delay_max_ms=0
    )
    async with running(module_database_url, sasl_settings=settings) as impatient:
        silent = await Wire.connect(impatient.app.kafka_port)
        drip = await Wire.connect(impatient.app.kafka_port)
        await drip.ask(handshake())

        assert await silent.is_closed_by_agent()
        assert await drip.is_closed_by_agent()
        silent.close()
        drip.close()


async def test_a_session_that_is_over_takes_only_a_new_login(module_database_url: str) -> None:
    settings = SaslSettings(sasl_mechanisms="PLAIN", connections_max_reauth_ms=2_500)
    async with running(module_database_url, sasl_settings=settings) as agent:
        lapsed, renewed = (
            await Wire.connect(agent.app.kafka_port),
            await Wire.connect(agent.app.kafka_port),
        )
        for wire in (lapsed, renewed):
            answer = await log_in(wire, "ann", "secret")
            assert 0 < answer.session_lifetime.total_seconds() <= 2.5
        await asyncio.sleep(1.1)
        assert (await log_in(renewed, "ann", "secret")).error_code == ErrorCode.none
        await asyncio.sleep(1.6)

        assert (await renewed.ask(a_metadata("t"))).topics
        await lapsed.send(a_metadata("t"))
        assert await lapsed.is_closed_by_agent()
        renewed.close()
        lapsed.close()


async def test_another_user_cannot_take_over_a_session(module_database_url: str) -> None:
    await add_user(module_database_url, "bob", "secret")
    async with running(module_database_url, sasl_settings=SaslSettings(sasl_mechanisms="PLAIN")) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await log_in(wire, "ann", "secret")
        await asyncio.sleep(1.1)

        assert (await log_in(wire, "bob", "secret")).error_code == ErrorCode.sasl_authentication_failed
        assert await wire.is_closed_by_agent()
        wire.close()
