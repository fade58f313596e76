"""Logins of commands reach no address over plain HTTP that the user did not name."""

import asyncio

import pytest
from typer.testing import CliRunner

from agent.security.sasl.settings import SaslSettings
from tests.agent.running import running
from tests.agent.security.logins.users import add_user
from tidelog.agents_client import may_send_login
from tidelog.cli import app

NAMED = "http://agents.example:8080"


@pytest.mark.parametrize(
    ("url", "may"),
    [
        (f"{NAMED}/", True),
        ("http://AGENTS.example:8080", True),
        ("https://10.0.0.1:8080", True),
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost:1", True),
        ("http://10.0.0.1:8080", False),
        ("http://agents.example:8081", False),
        ("http://agents.example", False),
        ("http://127.0.0.1.example:8080", False),
        ("http://127.0.0.1@10.0.0.1:8080", False),
        ("http://localhost.example", False),
    ],
)
def test_a_login_goes_over_tls_to_the_named_address_or_within_the_machine(url: str, may: bool) -> None:
    assert may_send_login(url, named=NAMED) is may


async def test_clients_sends_no_login_to_a_plain_address_that_an_agent_names(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_user(database_url, "ann", "secret")
    settings = SaslSettings(sasl_mechanisms="PLAIN", http_authentication=True)
    elsewhere = "http://192.0.2.7:8080"
    async with running(database_url, sasl_settings=settings, advertised_http_url=elsewhere) as agent:
        monkeypatch.setenv("TIDELOG_HTTP_URL", f"http://127.0.0.1:{agent.app.http_port}")
        monkeypatch.setenv("TIDELOG_HTTP_USER", "ann")
        monkeypatch.setenv("TIDELOG_HTTP_PASSWORD", "secret")

        shown = await asyncio.to_thread(CliRunner().invoke, app, ["clients"])

    assert shown.exit_code == 0, shown.output
    assert f"its address {elsewhere} is plain HTTP, so it gets no login" in shown.stderr
    assert "TIDELOG_HTTP_TLS" in shown.stderr
    assert "secret" not in shown.output
