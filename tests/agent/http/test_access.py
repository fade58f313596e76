"""Authentication and authorization of the HTTP side, with a real agent and real requests."""

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator

import httpx
import jwt
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from agent.http.access import CHECKS, OPEN, HttpAccess
from agent.http.app import create_http_app
from agent.http.iceberg import router
from agent.http.parts import HttpParts
from agent.security.acls.settings import AuthorizationSettings
from agent.security.sasl.settings import SaslSettings
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.auditing import an_audit
from tests.agent.running import Running, running, until_answered
from tests.agent.security.logins.users import add_user

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = SaslSettings(
    sasl_mechanisms="PLAIN", http_authentication=True, http_open_metrics=False, sasl_failed_delay_ms=0
)
ROOT = httpx.BasicAuth("root", "secret")
ANN = httpx.BasicAuth("ann", "secret")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    for user in ("root", "ann", "leaver"):
        await add_user(module_database_url, user, "secret")
    authorization = AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.05)
    async with running(module_database_url, sasl_settings=SETTINGS, authorization=authorization) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(agent: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}", timeout=60) as opened:
        await until_answered(lambda: _is_ready(opened))
        for name in ("seen", "hidden"):
            created = await opened.post("/v1/topics", json={"name": name}, auth=ROOT)
            assert created.status_code == 201
        yield opened


async def _is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


async def _token(client: httpx.AsyncClient, user: str = "ann") -> str:
    form = {"grant_type": "client_credentials", "client_id": user, "client_secret": "secret"}
    answer = await client.post("/iceberg/v1/oauth/tokens", data=form)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


def _served() -> list[tuple[str, str]]:
    access = HttpAccess(
        audit=an_audit(),
        logins=lambda: None,
        authorizer=lambda: None,
        has_tls=True,
        allows_plaintext=False,
        open_metrics=False,
    )
    parts = HttpParts(
        audit=an_audit(),
        sequencer=lambda: None,
        checks=(),
        cluster="c",
        zone="a",
        node_id=lambda: None,
        registry=CollectorRegistry(),
        routers=(router(lambda: None, lambda: None, {}),),
        access=access,
    )
    routes = create_http_app(parts).state.routes
    assert all(isinstance(route, Route) for route in routes)
    return [
        (method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()
    ]


async def test_every_route_has_an_entry_in_the_table_of_checks() -> None:
    assert set(_served()) == set(CHECKS)


async def test_no_route_answers_before_a_login_except_the_open_ones(client: httpx.AsyncClient) -> None:
    for method, path in _served():
        if path not in OPEN:
            asked = path.replace("{refused:path}", "x").replace("{", "").replace("}", "")
            assert (await client.request(method, asked)).status_code == 401, path


async def test_live_and_ready_are_open(client: httpx.AsyncClient) -> None:
    assert (await client.get("/live")).status_code == 200
    assert (await client.get("/ready")).status_code == 200


async def test_wrong_passwords_and_unknown_users_get_the_same_answer(client: httpx.AsyncClient) -> None:
    wrong = await client.get("/v1/topics", auth=("ann", "wrong"))
    unknown = await client.get("/v1/topics", auth=("nobody", "wrong"))

    assert wrong.status_code == unknown.status_code == 401
    assert wrong.content == unknown.content


async def test_garbage_is_no_login(client: httpx.AsyncClient) -> None:
    claims = {"sub": "root", "exp": int(time.time()) + 600, "iss": "i", "aud": "a"}
    unsigned = jwt.encode(claims, "", algorithm="none")
    of_others = jwt.encode(claims, "k" * 32, algorithm="HS256")
    token = await _token(client)
    body, signature = token.split(".")[1:]
    forged = base64.urlsafe_b64encode(json.dumps(["root", "SCRAM-SHA-512", 1, 1 << 40]).encode()).decode()
    for header in (
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"a\0b:c\0d").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
        "Basic " + "A" * 40_000,
        "Digest x",
        f"Bearer {unsigned}",
        f"Bearer {of_others}",
        "Bearer tidelog.",
        "Bearer tidelog.x.y",
        f"Bearer tidelog.{forged}.{signature}",
        f"Bearer tidelog.{body}.",
    ):
        answer = await client.get("/v1/topics", headers={"Authorization": header})
        assert answer.status_code == 401, header[:50]
    assert (await client.get("/v1/topics", auth=ANN)).status_code == 200


async def test_topics_that_a_user_may_not_describe_look_unknown(
    client: httpx.AsyncClient, module_database_url: str
) -> None:
    assert (await client.get("/v1/topics", auth=ANN)).json()["topics"] == []
    await _allow(module_database_url, Operation.DESCRIBE, "seen")

    async def is_seen() -> bool:
        return (await client.get("/v1/topics/seen", auth=ANN)).status_code == 200

    await until_answered(is_seen)
    listed = (await client.get("/v1/topics", auth=ANN)).json()["topics"]
    hidden = await client.get("/v1/topics/hidden", auth=ANN)
    missing = await client.get("/v1/topics/hiddem", auth=ANN)

    assert [topic["name"] for topic in listed] == ["seen"]
    assert hidden.status_code == missing.status_code == 404
    assert hidden.text == missing.text.replace("hiddem", "hidden")
    root_missing = await client.get("/v1/topics/hiddem", auth=ROOT)
    assert root_missing.content == missing.content


ODD_TARGETS = (
    "/v1/topics/{}",
    "//v1/topics/{}",
    "/v1//topics/{}",
    "/v1/topics/{}/",
    "/v1/topics//{}",
    "/v1/./topics/{}",
    "/v1/x/../topics/{}",
    "/v1/topics/x%2f..%2f{}",
    "/%76%31/topics/{}",
    "/v1/topics/%2e/{}",
    "/v1/topics/{}%2fcoordinates?partition=0",
    "/v1/topics/{}%00",
    "/v1/topics/{};x",
    "/v1/topics/{}#x",
    "/v1/topics/{}?partition=0",
    "/V1/topics/{}",
    "http://127.0.0.1/v1/topics/{}",
    "/v1/topics/{}/coordinates?partition=0",
    "/v1/topics/{}/coordinates?partition=7",
    "/v1/topics/{}/coordinates",
    "/v1/topics?after={}",
    "/iceberg/v1/namespaces/topics/tables/{}",
    "/iceberg/v1/namespaces/topics/tables/{}?snapshots=refs",
    "/iceberg/v1/namespaces/topics/tables/{}%2fmetrics",
    "/iceberg/v1/x/namespaces/topics/tables/{}",
    "/iceberg//v1/namespaces/topics/tables/{}",
    "/live/../v1/topics/{}",
    "/live%2f..%2fv1/topics/{}",
    "/metrics/../v1/topics/{}",
)


async def raw_answer(agent: Running, method: str, target: str, user: str | None) -> tuple[int, bytes]:
    """Sends the target as it is: clients tidy it up. Returns the status, and the head without its date, and
    the body."""
    login = ""
    if user is not None:
        login = f"Authorization: Basic {base64.b64encode(f'{user}:secret'.encode()).decode()}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.app.http_port)
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n{login}Connection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    lines = answer.split(b"\r\n")
    return int(lines[0].split()[1]), b"\r\n".join(line for line in lines if not line.startswith(b"date:"))


@pytest.mark.parametrize("target", ODD_TARGETS)
async def test_no_spelling_of_a_path_shows_that_a_hidden_topic_exists(
    agent: Running, client: httpx.AsyncClient, target: str
) -> None:
    for user, status in (("root", 200), ("ann", 404)):
        assert (await raw_answer(agent, "GET", "/v1/topics/hidden", user))[0] == status
    for method in ("GET", "HEAD", "OPTIONS", "POST", "PATCH", "PUT", "DELETE", "TRACE"):
        hidden = await raw_answer(agent, method, target.format("hidden"), "ann")
        absent = await raw_answer(agent, method, target.format("absent"), "ann")

        assert (hidden[0], hidden[1].replace(b"hidden", b"absent")) == absent
        assert hidden[0] != 500
        status, _ = await raw_answer(agent, method, target.format("hidden"), None)
        assert status in (400, 401)
    assert (await client.get("/v1/topics/hidden", auth=ROOT)).status_code == 200


async def test_what_no_acl_allows_is_refused(client: httpx.AsyncClient) -> None:
    sink = {
        "sink": "s",
        "run_id": "r",
        "id_prefix": "s-tidelog-sink-1-",
        "transactions": [],
    }
    for method, path, body in (
        ("POST", "/v1/topics", {"name": "mine"}),
        ("POST", "/v1/sinks/commit", sink),
        ("POST", "/v1/sinks/abort", sink),
        ("GET", "/v1/cluster", None),
        ("GET", "/v1/clients", None),
        ("GET", "/metrics", None),
    ):
        answer = await client.request(method, path, json=body, auth=ANN)
        assert answer.status_code == 403, path
        assert answer.json()["error"] == "access_denied"
    for method in ("DELETE", "PATCH"):
        answer = await client.request(method, "/v1/topics/hidden", json={"partitions": 2}, auth=ANN)
        assert answer.status_code == 404
    assert (await client.get("/v1/topics/hidden", auth=ROOT)).json()["partitions"] == 1
    assert (await client.get("/metrics", auth=ROOT)).status_code == 200


async def test_names_inject_no_header_and_leave_no_folder(client: httpx.AsyncClient) -> None:
    for name in ("a%0d%0aX-Evil:%201", "..%2f..%2fetc", "%2e%2e", "a%00b", "%1f"):
        for path in (f"/v1/topics/{name}", f"/iceberg/v1/namespaces/topics/tables/{name}"):
            answer = await client.get(path, auth=ANN)
            assert "x-evil" not in answer.headers
            assert 400 <= answer.status_code < 500


async def test_a_token_of_the_catalog_counts_and_is_renewed(client: httpx.AsyncClient) -> None:
    token = await _token(client)
    exchange = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": token}

    renewed = await client.post("/iceberg/v1/oauth/tokens", data=exchange)
    for one in (token, renewed.json()["access_token"]):
        answer = await client.get("/iceberg/v1/config", headers={"Authorization": f"Bearer {one}"})
        assert answer.status_code == 200


async def test_a_token_ends_with_its_credential(client: httpx.AsyncClient, module_database_url: str) -> None:
    header = {"Authorization": f"Bearer {await _token(client, 'leaver')}"}
    assert (await client.get("/iceberg/v1/config", headers=header)).status_code == 200
    await add_user(module_database_url, "leaver", "another")

    async def is_out() -> bool:
        return (await client.get("/iceberg/v1/config", headers=header)).status_code == 401

    await until_answered(is_out)
    assert (await client.get("/v1/topics", auth=("leaver", "secret"))).status_code == 401


async def test_refused_tokens_have_the_form_of_oauth(client: httpx.AsyncClient) -> None:
    for form, status, word in (
        ({}, 400, "unsupported_grant_type"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"grant_type": "client_credentials"}, 401, "invalid_client"),
        (
            {"grant_type": "client_credentials", "client_id": "ann", "client_secret": "x"},
            401,
            "invalid_client",
        ),
    ):
        answer = await client.post("/iceberg/v1/oauth/tokens", data=form)
        assert (answer.status_code, answer.json()["error"]) == (status, word)


async def test_pyiceberg_logs_in_by_client_credentials(client: httpx.AsyncClient) -> None:
    import asyncio

    from pyiceberg.catalog.rest import RestCatalog

    uri = f"{client.base_url}/iceberg"

    def listed() -> list[tuple[str, ...]]:
        catalog = RestCatalog("t", uri=uri, credential="ann:secret")
        return list(catalog.list_namespaces())

    assert await asyncio.to_thread(listed) == [("topics",)]


async def _allow(database_url: str, operation: Operation, topic: str) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        acl = Acl(
            resource_type=ResourceType.TOPIC,
            pattern_type=PatternType.LITERAL,
            name=topic,
            principal="User:ann",
            host="*",
            operation=operation,
            permission=Permission.ALLOW,
        )
        await sequencer.acls.add([acl], 1_000)
    finally:
        await sequencer.close()


async def test_a_token_is_not_renewed_for_longer_than_a_login_lasts(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = "urn:ietf:params:oauth:grant-type:token-exchange"
    form = {"grant_type": grant, "subject_token": await _token(client)}
    assert (await client.post("/iceberg/v1/oauth/tokens", data=form)).status_code == 200

    monkeypatch.setattr("agent.security.logins.http_logins._LONGEST_RENEWED_S", 0)

    assert (await client.post("/iceberg/v1/oauth/tokens", data=form)).status_code == 401


async def test_a_large_form_of_a_stranger_is_refused_before_it_is_read(client: httpx.AsyncClient) -> None:
    form = b"grant_type=client_credentials&client_id=ann&client_secret=secret&scope=" + b"%41" * 100_000
    headers = {"content-type": "application/x-www-form-urlencoded"}

    answer = await client.post("/iceberg/v1/oauth/tokens", content=form, headers=headers)

    assert answer.status_code == 400
    assert "more than 32768 bytes" in answer.json()["error_description"]


async def test_a_stranger_that_leaves_in_its_form_is_no_error_of_the_agent(
    agent: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_answered() -> bool:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}") as asking:
            return (await asking.get("/live")).status_code == 200

    _, writer = await asyncio.open_connection("127.0.0.1", agent.app.http_port)
    writer.write(b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\ngrant")
    await asyncio.sleep(0.2)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.2)

    assert await is_answered()
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []
