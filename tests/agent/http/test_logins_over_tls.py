"""Logins of the HTTP side over TLS, with a real agent: a provider's tokens, the catalog's, ACLs of a table,
and the answers 403, 429 and 503.
"""

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from agent.security.acls.authorizer import Rights
from agent.security.acls.settings import AuthorizationSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.logins import http_logins
from agent.security.sasl.settings import SaslSettings
from agent.security.sasl.steps import SaslRefused
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from storage.stores.object_store import StoreSettings
from storage.stores.open_store import open_store
from tests.agent.http.test_iceberg import published
from tests.agent.running import Running, _the_store_of, running, until_answered
from tests.agent.security.logins.test_token_logins import Provider, a_settings, now_token
from tests.agent.security.logins.users import add_user
from tests.support.certificates import Authority
from tests.support.postgres import OWN_FOR_YEARS

pytestmark = pytest.mark.asyncio(loop_scope="module")
CATALOG = "/iceberg/v1/namespaces/topics/tables"
GUESSES = 1_000
DELAY_MS = 6_000
"""Longer than a test, so that failed logins wait until it ends."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    started = Provider()
    yield started
    started.server.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str, provider: Provider, authority: Authority) -> AsyncIterator[Running]:
    for user in ("root", "ann", "bob", "cid", "dee"):
        await add_user(module_database_url, user, "secret")
    certificate = authority.issue()
    async with running(
        module_database_url,
        sasl_settings=a_settings(
            provider.url,
            sasl_mechanisms="PLAIN,OAUTHBEARER",
            http_authentication=True,
            sasl_failed_delay_ms=DELAY_MS,
            sasl_failed_delay_max_ms=DELAY_MS,
        ),
        authorization=AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.05),
        listener_settings=ListenerSettings(
            security_protocol="SASL_PLAINTEXT",
            http_tls=True,
            tls_certificate_file=str(certificate.certificate),
            tls_key_file=str(certificate.key),
        ),
    ) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(agent: Running, authority: Authority) -> AsyncIterator[httpx.AsyncClient]:
    context = ssl.create_default_context(cafile=authority.file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    url = f"https://localhost:{agent.app.http_port}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, verify=context, timeout=60, limits=limits) as opened:
        await until_answered(lambda: _is_ready(opened))
        yield opened


async def _is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


async def status(client: httpx.AsyncClient, path: str, **login: Any) -> int:
    return (await client.get(path, **login)).status_code


def bearer(token: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


async def catalog_token(client: httpx.AsyncClient, user: str) -> str:
    form = {"grant_type": "client_credentials", "client_id": user, "client_secret": "secret"}
    answer = await client.post("/iceberg/v1/oauth/tokens", data=form)
    return str(answer.json()["access_token"])


@contextlib.asynccontextmanager
async def failing(agent: Running, *users: str) -> AsyncIterator[None]:
    """While it is open, failed logins of these users wait. Their host is that of the last login."""
    logins = agent.app._reached.logins
    assert logins is not None
    host = next(reversed(logins._seen))[0]
    tasks = [asyncio.create_task(logins._wait(host, user.encode(), 3_600)) for user in users]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not logins._of_host


async def test_a_providers_token_logs_in_and_a_wrong_one_does_not(client: httpx.AsyncClient) -> None:
    assert await status(client, "/iceberg/v1/config", **bearer(now_token())) == 200
    assert await status(client, "/iceberg/v1/config", **bearer(now_token(sub=None))) == 401


async def test_wrong_tokens_of_a_provider_are_refused(client: httpx.AsyncClient) -> None:
    wrong = [
        now_token(exp=int(time.time()) - 60),
        now_token(aud="others"),
        now_token(iss="https://others"),
        now_token(key_id="two"),
        now_token()[:-4] + "AAAA",
    ]

    answers = await asyncio.gather(*(client.get("/v1/topics", **bearer(token)) for token in wrong))

    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert "Bearer" in answers[0].headers["WWW-Authenticate"]


async def test_a_token_of_the_catalog_expires(
    agent: Running, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await catalog_token(client, "ann")
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
    }
    assert await status(client, "/iceberg/v1/config", **bearer(token)) == 200

    monkeypatch.setattr(agent.app._reached.logins, "_wall_clock", lambda: time.time() + 901)

    refused, renewed = await asyncio.gather(
        client.get("/iceberg/v1/config", **bearer(token)),
        client.post("/iceberg/v1/oauth/tokens", data=form),
    )
    assert refused.status_code == renewed.status_code == 401
    assert refused.json()["error"]["type"] == "NotAuthorizedException"
    assert renewed.json()["error"] == "invalid_client"


async def test_an_acl_of_the_topic_decides_who_loads_its_table(
    client: httpx.AsyncClient, module_database_url: str
) -> None:
    sequencer = await Sequencer.open(module_database_url, SequencerSettings())
    store = await open_store(_the_store_of(module_database_url), StoreSettings())
    try:
        await sequencer.database.run(OWN_FOR_YEARS)
        await published(sequencer, store, "orders")
        ann = bearer(await catalog_token(client, "ann"))
        for method in ("GET", "HEAD"):
            assert (await client.request(method, f"{CATALOG}/orders", **ann)).status_code == 404
        assert (await client.get(CATALOG, **ann)).json()["identifiers"] == []

        await allow(sequencer, Operation.DESCRIBE)

        async def is_listed() -> bool:
            return bool((await client.get(CATALOG, **ann)).json()["identifiers"])

        await until_answered(is_listed)
        for path in (f"{CATALOG}/orders", f"{CATALOG}/orders/credentials"):
            denied = await client.get(path, **ann)
            assert denied.status_code == 403
            assert denied.json()["error"]["type"] == "ForbiddenException"
            assert "may not READ TOPIC" in denied.json()["error"]["message"]

        await allow(sequencer, Operation.READ)

        async def is_loaded() -> bool:
            return await status(client, f"{CATALOG}/orders", **ann) == 200

        await until_answered(is_loaded)
        assert await status(client, f"{CATALOG}/orders/credentials", **ann) == 200
        assert await status(client, f"{CATALOG}/orders", **bearer(now_token(sub="bob"))) == 404
        assert await status(client, f"{CATALOG}/orders", auth=("root", "secret")) == 200
    finally:
        await store.close()
        await sequencer.close()


async def allow(sequencer: Sequencer, operation: Operation) -> None:
    acl = Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.LITERAL,
        name="orders",
        principal="User:ann",
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )
    await sequencer.acls.add([acl], 1_000)


async def test_guesses_of_one_user_keep_no_other_user_of_the_host_out(
    agent: Running, client: httpx.AsyncClient
) -> None:
    token = await catalog_token(client, "ann")
    async with failing(agent, *["ann"] * http_logins._MOST_OF_USER):
        guessed = await client.get("/v1/topics", auth=("ann", "secret"))
        form = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": "secret"}
        exchanged = await client.post("/iceberg/v1/oauth/tokens", data=form)

        assert guessed.status_code == exchanged.status_code == 429
        assert guessed.headers["Retry-After"] == exchanged.headers["Retry-After"] == "1"
        assert (guessed.json()["error"], exchanged.json()["error"]) == ("too_many_failures", "slow_down")
        assert await status(client, "/v1/topics", auth=("bob", "secret")) == 200
        assert await status(client, "/v1/topics", **bearer(token)) == 200
        assert await status(client, "/v1/topics", **bearer(now_token())) == 200
    assert await status(client, "/v1/topics", auth=("ann", "secret")) == 200


async def test_invented_users_keep_no_user_out_who_has_logged_in_from_the_host(
    agent: Running, client: httpx.AsyncClient
) -> None:
    assert await status(client, "/v1/topics", auth=("cid", "secret")) == 200
    invented = [f"invented-{number}" for number in range(http_logins._MOST_OF_HOST)]
    async with failing(agent, *invented):
        assert await status(client, "/v1/topics", auth=("cid", "secret")) == 200
        assert await status(client, "/v1/topics", **bearer(now_token())) == 200
        assert await status(client, "/v1/topics", auth=("dee", "secret")) == 429
        assert await status(client, "/v1/topics", **bearer("wrong")) == 429
    assert await status(client, "/v1/topics", auth=("dee", "secret")) == 200


async def test_of_a_thousand_guesses_at_once_few_passwords_are_looked_at(agent: Running) -> None:
    """Of one user's, then of invented users'. Who has logged in before waits for none of them."""
    reached = agent.app._reached
    logins, passwords = reached.logins, reached.assembly.parts.authentication.passwords  # type: ignore[union-attr]
    assert logins is not None

    def login(user: str, password: str) -> "asyncio.Task[Rights]":
        proof = base64.b64encode(f"{user}:{password}".encode())
        return asyncio.create_task(logins.rights(b"Basic " + proof, "10.0.0.9"))

    await login("cid", "secret")
    invented = [f"guessed-{number}" for number in range(GUESSES)]
    of_user = 2 * http_logins._MOST_OF_USER  # that wait for their answers, and that are looked at
    of_host = http_logins._MOST_OF_HOST + http_logins._AT_ONCE_OF_HOST
    for users, most in ((["ann"] * GUESSES, of_user), (invented, of_host)):
        before = passwords.checks
        guesses = [login(user, f"wrong-{number}") for number, user in enumerate(users)]
        right = login("cid", "secret")
        await asyncio.wait([right, *guesses], return_when=asyncio.FIRST_COMPLETED)
        assert right.done()
        answers = await asyncio.gather(*guesses, return_exceptions=True)
        assert {type(answer) for answer in answers} == {SaslRefused, http_logins.TooManyFailures}
        assert passwords.checks - before < most
    assert not logins._turns


def own_address() -> str:
    """Of this machine, and no loopback: logins to it come from another address than loopback."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family.name == "AF_INET" and not one.address.startswith("127."):
                return str(one.address)
    pytest.skip("this machine has no address but loopback")


async def test_a_login_over_plain_http_from_elsewhere_is_refused_unread(
    module_database_url: str, agent: Running
) -> None:
    host = own_address()
    settings = SaslSettings(sasl_mechanisms="PLAIN", http_authentication=True)
    async with (
        running(module_database_url, sasl_settings=settings, http_host="0.0.0.0") as plain,
        httpx.AsyncClient(base_url=f"http://{host}:{plain.app.http_port}", timeout=60) as client,
    ):
        assert agent.app.http_port != plain.app.http_port
        for answer in (
            await client.get("/v1/topics", auth=("root", "secret")),
            await client.get("/iceberg/v1/config", auth=("root", "secret")),
            await client.post("/iceberg/v1/oauth/tokens", data={}),
        ):
            assert answer.status_code == 403
            assert "TIDELOG_HTTP_TLS" in answer.text


async def test_while_the_database_is_away_logins_get_503() -> None:
    settings = SaslSettings(sasl_mechanisms="PLAIN", http_authentication=True)
    async with (
        running(
            "postgresql://nobody@127.0.0.1:1/x",
            "memory://away",
            sasl_settings=settings,
            wait_started=False,
        ) as away,
        httpx.AsyncClient(timeout=60) as client,
    ):

        async def is_live() -> bool:
            if not away.app.http_port:
                return False
            return await status(client, f"http://127.0.0.1:{away.app.http_port}/live") == 200

        await until_answered(is_live)
        url = f"http://127.0.0.1:{away.app.http_port}"
        for answer in (
            await client.get(f"{url}/v1/topics", auth=("root", "secret")),
            await client.get(f"{url}{CATALOG}", auth=("root", "secret")),
            await client.post(f"{url}/iceberg/v1/oauth/tokens", data={"grant_type": "client_credentials"}),
        ):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "/ready says why" in answer.text
