"""The HTTP side over TLS: served, reloaded, and bounded as Kafka's."""

import asyncio
import socket
import ssl
from typing import Any

import httpx
import pytest

from agent.security.listener_settings import ListenerSettings
from tests.agent.running import Running, running
from tests.support.certificates import Authority, Certificate
from tests.support.waiting import until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


def http_settings(certificate: Certificate, **more: Any) -> ListenerSettings:
    return ListenerSettings(
        http_tls=True,
        tls_certificate_file=str(certificate.certificate),
        tls_key_file=str(certificate.key),
        **more,
    )


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def served_subject(agent: Running, authority: Authority) -> object:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", agent.app.http_port, ssl=trusting(authority), server_hostname="localhost"
    )
    try:
        return writer.get_extra_info("peercert")["subject"]
    finally:
        writer.transport.abort()


async def test_the_http_side_speaks_tls_and_advertises_it(database_url: str, authority: Authority) -> None:
    async with (
        running(database_url, listener_settings=http_settings(authority.issue())) as agent,
        httpx.AsyncClient(verify=trusting(authority), timeout=30) as client,
    ):
        url = f"https://localhost:{agent.app.http_port}"
        assert (await client.get(f"{url}/ready")).status_code == 200
        created = await client.post(f"{url}/v1/topics", json={"name": "secured"})
        assert created.status_code == 201
        described = (await client.get(f"{url}/v1/cluster")).json()
        assert [one["http_url"] for one in described["agents"]] == [
            f"https://127.0.0.1:{agent.app.http_port}"
        ]
        assert len((await client.get(f"{url}/metrics")).text) > 10_000

        with pytest.raises(httpx.TransportError):
            await client.get(f"http://localhost:{agent.app.http_port}/live")


async def test_it_may_have_a_certificate_of_its_own_and_reloads_it(
    database_url: str, authority: Authority
) -> None:
    own = authority.issue("/CN=http")
    settings = http_settings(
        authority.issue("/CN=kafka"),
        http_tls_certificate_file=str(own.certificate),
        http_tls_key_file=str(own.key),
        tls_reload_s=0.05,
    )
    async with running(database_url, listener_settings=settings) as agent:
        assert await served_subject(agent, authority) == ((("commonName", "http"),),)
        own.replace(authority.issue("/CN=renewed"))
        await until(
            lambda: agent.metric("tidelog_certificate_reloads_total", use="http", outcome="loaded") >= 2
        )
        assert await served_subject(agent, authority) == ((("commonName", "renewed"),),)


async def test_stalled_handshakes_keep_no_probe_out(database_url: str, authority: Authority) -> None:
    settings = http_settings(authority.issue(), tls_handshakes=10)
    async with (
        running(database_url, listener_settings=settings) as agent,
        httpx.AsyncClient(verify=trusting(authority), timeout=30) as client,
    ):
        await until(lambda: agent.app.imported.is_set())
        stalled = [
            socket.create_connection(("127.0.0.1", agent.app.http_port), timeout=20) for _ in range(100)
        ]
        await until(
            lambda: agent.metric("tidelog_tls_handshakes_total", use="http", outcome="displaced") >= 80
        )
        response = await client.get(f"https://localhost:{agent.app.http_port}/live")
        for connection in stalled:
            connection.close()

    assert response.status_code == 200
