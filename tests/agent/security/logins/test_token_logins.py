"""Clients with tokens log in; the provider's keys are fetched from a URL or a file, not too often."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import rsa
from kio.schema.errors import ErrorCode

from agent.security.logins.token_keys import TokenKeys
from agent.security.sasl.oauthbearer import UnknownKey
from agent.security.sasl.settings import SaslSettings
from agent.security.sasl.steps import CannotCheck
from tests.agent.running import Running, Wire, a_metadata, running
from tests.agent.security.logins.by_hand import authenticate, handshake
from tests.agent.security.logins.tokens import RSA_KEY, RULES, a_key_set, a_message, a_token
from tests.agent.security.logins.users import login_error, produced

pytestmark = pytest.mark.asyncio(loop_scope="module")
OTHER_KEY = rsa.generate_private_key(65_537, 2048)


class Provider:
    """An identity provider's key set over HTTP."""

    def __init__(self) -> None:
        self.document = a_key_set({"one": RSA_KEY})
        self.requests = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                self.send_response(404 if "gone" in self.path else 200)
                self.end_headers()
                self.wfile.write(provider.document)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/keys"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    started = Provider()
    yield started
    started.server.shutdown()


def a_settings(url: str, **values: Any) -> SaslSettings:
    given = {"sasl_mechanisms": "OAUTHBEARER", "oauth_issuer": RULES.issuer, "oauth_audience": RULES.audience}
    return SaslSettings(**{**given, "oauth_jwks": url, "sasl_failed_delay_ms": 10, **values})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str, provider: Provider) -> AsyncIterator[Running]:
    async with running(module_database_url, sasl_settings=a_settings(provider.url)) as started:
        yield started


def now_token(**changed: Any) -> str:
    return a_token(now_s=int(time.time()), **changed)


def as_holder(token: str, lives_s: float = 300.0) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + lives_s),
    }


async def test_librdkafka_produces_with_a_token(agent: Running) -> None:
    await produced(agent.bootstrap, "by-token", as_holder(now_token()))


async def test_librdkafka_is_told_that_its_token_is_invalid(agent: Running) -> None:
    token = now_token(key=OTHER_KEY)

    assert "uthentication" in await login_error(agent.bootstrap, as_holder(token), until="uthentication")


async def test_a_refused_token_gets_the_error_document_and_then_fails(agent: Running) -> None:
    wire = await Wire.connect(agent.app.kafka_port)
    await wire.ask(handshake("OAUTHBEARER"))

    told = await wire.ask(authenticate(a_message(now_token(aud="other"))))
    failed = await wire.ask(authenticate(b"\x01"))

    assert (told.error_code, told.auth_bytes) == (ErrorCode.none, b'{"status":"invalid_token"}')
    assert failed.error_code == ErrorCode.sasl_authentication_failed
    assert await wire.is_closed_by_agent()
    wire.close()


async def test_a_good_token_after_a_refused_one_on_one_connection_is_too_late(agent: Running) -> None:
    wire = await Wire.connect(agent.app.kafka_port)
    await wire.ask(handshake("OAUTHBEARER"))
    await wire.ask(authenticate(a_message(now_token(aud="other"))))

    late = await wire.ask(authenticate(a_message(now_token())))

    assert late.error_code == ErrorCode.sasl_authentication_failed
    wire.close()


async def test_a_session_ends_with_its_token(module_database_url: str, provider: Provider) -> None:
    settings = a_settings(provider.url, oauth_clock_skew_s=0)
    async with running(module_database_url, sasl_settings=settings) as strict:
        wire = await Wire.connect(strict.app.kafka_port)
        await wire.ask(handshake("OAUTHBEARER"))
        token = now_token(exp=time.time() + 1.5)
        answer = await wire.ask(authenticate(a_message(token)))
        assert 0 < answer.session_lifetime.total_seconds() <= 1.5
        assert (await wire.ask(a_metadata("t"))).topics

        await asyncio.sleep(1.6)
        await wire.send(a_metadata("t"))

        assert await wire.is_closed_by_agent()
        wire.close()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def test_rotated_keys_are_fetched_when_a_token_names_one(provider: Provider) -> None:
    clock, before = Clock(), provider.requests
    keys = TokenKeys(a_settings(provider.url), clock)
    await keys.key("one")
    provider.document = a_key_set({"one": RSA_KEY, "two": OTHER_KEY})
    with pytest.raises(UnknownKey):
        await keys.key("two")  # within the pause
    clock.now_s += 11

    assert await keys.key("two")
    assert provider.requests - before == 2
    keys.close()


async def test_tokens_with_invented_keys_cause_one_fetch_per_pause(provider: Provider) -> None:
    clock, before = Clock(), provider.requests
    keys = TokenKeys(a_settings(provider.url), clock)

    outcomes = await asyncio.gather(*(keys.key(f"invented {n}") for n in range(100)), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {UnknownKey}
    assert provider.requests - before == 1
    keys.close()


async def test_keys_are_used_for_a_while_if_they_cannot_be_fetched_again(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "keys.json"
    file.write_bytes(a_key_set({"one": RSA_KEY}))
    keys = TokenKeys(a_settings(file.as_uri()), clock)
    assert await keys.key("one")
    file.unlink()

    clock.now_s += 3_700
    assert await keys.key("one")
    clock.now_s += 86_400
    with pytest.raises(CannotCheck):
        await keys.key("one")
    keys.close()


@pytest.mark.parametrize(
    "document", [b"", b"[]", b'{"keys": []}', b"<html>", b'{"keys": [' + b" " * 2_000_000]
)
async def test_a_document_that_is_no_key_set_lets_nobody_in(tmp_path: Path, document: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(document)
    keys = TokenKeys(a_settings(file.as_uri()), Clock())

    with pytest.raises(CannotCheck):
        await keys.key("one")
    keys.close()


async def test_a_failed_fetch_logs_no_query(caplog: pytest.LogCaptureFixture, provider: Provider) -> None:
    caplog.set_level(logging.WARNING)
    for url in (f"{provider.url}/gone?key=hunter2", "http://127.0.0.1:1/keys?key=hunter2"):
        keys = TokenKeys(a_settings(url), Clock())
        with pytest.raises(CannotCheck):
            await keys.key("one")
        keys.close()

    lines = [vars(record) for record in caplog.records if record.getMessage() == "token keys not fetched"]

    assert [(line["host"], line["path"]) for line in lines] == [
        ("127.0.0.1", "/keys/gone"),
        ("127.0.0.1", "/keys"),
    ]
    assert "404" in lines[0]["error"]
    assert "hunter2" not in str(lines)
