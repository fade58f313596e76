"""librdkafka logs in with each mechanism, and is kept out without the right proof."""

import uuid
from collections.abc import AsyncIterator

import confluent_kafka
import pytest
import pytest_asyncio

from agent.security.sasl.settings import SaslSettings
from sequencer.security.credentials import ScramMechanism
from tests.agent.running import Running, running
from tests.agent.security.logins.users import add_user, as_user, login_error, produced

pytestmark = pytest.mark.asyncio(loop_scope="module")

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    settings = SaslSettings(sasl_mechanisms=",".join(MECHANISMS), sasl_failed_delay_ms=10)
    async with running(module_database_url, sasl_settings=settings) as started:
        yield started


def a_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def message_of(error: str) -> str:
    """Without the client's address and the time."""
    return error.partition("SASL authentication error")[2].partition("(after")[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_user_with_the_right_password_produces(
    mechanism: str, agent: Running, module_database_url: str
) -> None:
    user = a_name("ann")
    await add_user(module_database_url, user, "pa=ss, word ü")

    before = agent.metric("tidelog_logins_total", mechanism=mechanism, outcome="done")

    await produced(agent.bootstrap, a_name("topic"), as_user(mechanism, user, "pa=ss, word ü"))

    assert agent.metric("tidelog_logins_total", mechanism=mechanism, outcome="done") > before


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(
    mechanism: str, agent: Running, module_database_url: str
) -> None:
    user = a_name("bob")
    await add_user(module_database_url, user, "right")

    wrong = await login_error(agent.bootstrap, as_user(mechanism, user, "wrong"), until="Authentication")
    unknown = await login_error(
        agent.bootstrap, as_user(mechanism, a_name("nobody"), "wrong"), until="Authentication"
    )

    assert message_of(wrong) == message_of(unknown)


@pytest.mark.parametrize("name", ["a=b", "a,b", "=2C", "ü,=3D="])
async def test_names_with_commas_and_equals_signs_log_in(
    name: str, agent: Running, module_database_url: str
) -> None:
    await add_user(module_database_url, name, "secret", ScramMechanism.SHA_256)

    await produced(agent.bootstrap, a_name("topic"), as_user("SCRAM-SHA-256", name, "secret"))


async def test_a_client_without_sasl_gets_nothing(agent: Running) -> None:
    with pytest.raises(confluent_kafka.KafkaException, match="_MSG_TIMED_OUT"):
        await produced(agent.bootstrap, a_name("topic"), {"message.timeout.ms": 2_000})
