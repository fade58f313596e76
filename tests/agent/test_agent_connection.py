"""`tidelog groups` behind TLS and logins: streams groups are asked for over a connection of its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from kio.schema.list_groups.v5.request import ListGroupsRequest

from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from tests.agent.running import Running, running
from tests.agent.security.logins.users import add_user
from tests.support.certificates import Authority
from tidelog.agent_connection import connected
from tidelog.errors import UserError
from tidelog.groups_client import GroupsClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSWORD = "a pass=word, of groups"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str, authority: Authority) -> AsyncIterator[Running]:
    await add_user(module_database_url, "a=n,n", PASSWORD)
    own = authority.issue()
    listeners = ListenerSettings(
        security_protocol="SASL_SSL",
        tls_certificate_file=str(own.certificate),
        tls_key_file=str(own.key),
    )
    sasl = SaslSettings(sasl_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", sasl_failed_delay_ms=10)
    async with running(
        module_database_url,
        sasl_settings=sasl,
        listener_settings=listeners,
        advertised_host="localhost",
    ) as started:
        yield started


def options_of(authority: Authority, mechanism: str, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority.file,
        "sasl.mechanism": mechanism,
        "sasl.username": "a=n,n",
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_groups_are_listed_over_tls_with_a_login(
    agent: Running, authority: Authority, mechanism: str
) -> None:
    options = options_of(authority, mechanism)

    found = await asyncio.to_thread(
        lambda: GroupsClient(f"localhost:{agent.app.kafka_port}", 30.0, options).list()
    )

    assert found == []


@pytest.mark.parametrize(
    ("mechanism", "more", "said"),
    [
        ("SCRAM-SHA-256", {"sasl_password": "another pass=word"}, "refuses the login"),
        ("PLAIN", {"sasl_password": "another pass=word"}, "refuses the login"),
        ("GSSAPI", {}, "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("PLAIN", {"ssl_keystore_location": "k"}, "ssl.keystore.location"),
        ("PLAIN", {"ssl_ca_location": "/nowhere"}, "files of the options"),
    ],
)
async def test_what_cannot_be_done_as_the_options_say_fails(
    agent: Running, authority: Authority, mechanism: str, more: dict[str, str], said: str
) -> None:
    def ask() -> None:
        options = options_of(authority, mechanism, **more)
        with connected(("localhost", agent.app.kafka_port), options, 30.0) as connection:
            connection.ask(ListGroupsRequest(states_filter=(), types_filter=("streams",)))

    with pytest.raises(UserError) as failed:
        await asyncio.to_thread(ask)

    assert said in str(failed.value)
    assert "pass=word" not in str(failed.value)


async def test_an_agent_of_another_ca_is_refused(agent: Running, tmp_path: Path) -> None:
    options = options_of(Authority.make(tmp_path / "other"), "PLAIN")

    def ask() -> None:
        with connected(("localhost", agent.app.kafka_port), options, 30.0):
            pass

    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        await asyncio.to_thread(ask)
