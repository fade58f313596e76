"""Tidelog's own HTTP clients log in to an agent with authentication and ACLs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import SecretStr

from agent.security.acls.settings import AuthorizationSettings
from agent.security.sasl.settings import SaslSettings
from spark_source.agents import Agents, RequestRefused
from spark_source.http_login import HttpLoginSettings, LoginIncomplete, login_headers
from spark_source.settings import SourceSettings
from tests.agent.running import running, until_answered
from tests.agent.security.logins.users import add_user
from tidelog.agents_client import TopicsClient, logged_in
from tidelog.errors import UserError
from tidelog.process.settings import ClientSettings

SETTINGS = SaslSettings(sasl_mechanisms="PLAIN", http_authentication=True, sasl_failed_delay_ms=0)
ROOT: dict[str, Any] = {"http_user": "root", "http_password": SecretStr("sec:rét")}
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(module_database_url: str) -> AsyncIterator[str]:
    for user in ("root", "ann"):
        await add_user(module_database_url, user, "sec:rét")
    authorization = AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.05)
    async with running(module_database_url, sasl_settings=SETTINGS, authorization=authorization) as started:
        found = f"http://127.0.0.1:{started.app.http_port}"
        async with httpx.AsyncClient(base_url=found, timeout=60) as client:
            await until_answered(lambda: _is_ready(client))
            made = await client.post(
                "/v1/topics", json={"name": "seen"}, headers=login_headers(HttpLoginSettings(**ROOT))
            )
            assert made.status_code == 201
        yield found


async def _is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


@module_loop
async def test_the_data_source_logs_in(url: str) -> None:
    found = await asyncio.to_thread(Agents(SourceSettings(http_url=url, **ROOT)).topic, "seen")

    assert found.partitions


@module_loop
async def test_the_data_source_without_a_user_is_told_the_settings(url: str) -> None:
    with pytest.raises(RequestRefused, match="TIDELOG_HTTP_USER"):
        await asyncio.to_thread(Agents(SourceSettings(http_url=url)).topic, "seen")


def _topics(settings: ClientSettings) -> list[str]:
    with TopicsClient(str(settings.http_url), 60, logged_in(settings)) as client:
        return [topic["name"] for topic in client.list()]


@module_loop
async def test_commands_log_in_and_see_what_the_user_may(url: str) -> None:
    ann = ROOT | {"http_user": "ann"}

    assert await asyncio.to_thread(_topics, ClientSettings(http_url=url, **ROOT)) == ["seen"]
    assert await asyncio.to_thread(_topics, ClientSettings(http_url=url, **ann)) == []
    with pytest.raises(UserError) as refused:
        await asyncio.to_thread(_topics, ClientSettings(http_url=url))
    assert "TIDELOG_HTTP_USER" in refused.value.fix


@pytest.mark.parametrize(
    "given",
    [
        {"http_user": "ann"},
        {"http_password": SecretStr("hunter2")},
        {"http_user": "a:b", "http_password": SecretStr("hunter2")},
        {"http_user": "ann", "http_token": SecretStr("hunter2")},
        {"http_token": SecretStr("hunter2\r\nX: y")},
        {"http_token": SecretStr("")},
    ],
)
def test_half_a_login_is_refused_and_no_error_or_text_has_the_secret(given: dict[str, Any]) -> None:
    settings = HttpLoginSettings(**given)

    with pytest.raises(LoginIncomplete) as refused:
        login_headers(settings)
    assert "hunter2" not in str(refused.value) + repr(settings)


def test_a_token_of_a_file_may_end_with_a_new_line() -> None:
    assert login_headers(HttpLoginSettings(http_token=SecretStr("abc\n"))) == {"Authorization": "Bearer abc"}
