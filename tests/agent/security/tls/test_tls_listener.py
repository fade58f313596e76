"""Clients over TLS: a real client, certificates that change, and strangers."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from agent.security.listener_settings import ListenerSettings
from tests.agent.running import Running, running
from tests.support.certificates import Authority, Certificate
from tests.support.messages import value_of
from tests.support.waiting import until

GARBAGE = (
    bytes.fromhex("0000000f00120000"),
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(300),
    b"\x16\x03\x01\x40\x00" + b"\xff" * 20_000,
)
REFUSED = (ssl.SSLError, ConnectionError, EOFError)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


def tls_settings(certificate: Certificate, **more: Any) -> ListenerSettings:
    return ListenerSettings(
        security_protocol="SSL",
        tls_certificate_file=str(certificate.certificate),
        tls_key_file=str(certificate.key),
        **more,
    )


def client(agent: Running, authority: Authority, shown: Certificate | None = None) -> dict[str, Any]:
    configs = {
        "bootstrap.servers": agent.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "log_level": 0,
    }
    if shown is not None:
        configs |= {
            "ssl.certificate.location": str(shown.certificate),
            "ssl.key.location": str(shown.key),
        }
    return configs


def produce_and_consume(configs: dict[str, Any], topic: str, count: int, size_bytes: int = 10) -> int:
    """Returns how many records came back as they were written."""
    producer = Producer({**configs, "message.max.bytes": 20_000_000})
    for number in range(count):
        producer.produce(topic, f"{number}".encode().ljust(size_bytes, b"x"))
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {**configs, "group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        consumer.subscribe([topic])
        found: set[bytes] = set()
        deadline_s = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline_s:
            found |= {value_of(message) for message in consumer.consume(1000, timeout=0.2)}
        return len(found & {f"{number}".encode().ljust(size_bytes, b"x") for number in range(count)})
    finally:
        consumer.close()


async def test_a_client_produces_and_consumes_over_tls(database_url: str, authority: Authority) -> None:
    async with running(database_url, listener_settings=tls_settings(authority.issue())) as agent:
        configs = client(agent, authority)

        assert await asyncio.to_thread(produce_and_consume, configs, "small", 1_000) == 1_000
        assert await asyncio.to_thread(produce_and_consume, configs, "large", 40, 700_000) == 40
        assert agent.metric("tidelog_tls_handshakes_total", use="kafka", outcome="done") >= 2


async def test_a_client_certificate_names_the_principal(database_url: str, authority: Authority) -> None:
    shown = authority.issue("/O=Example/OU=Billing/CN=Alice")
    settings = tls_settings(
        authority.issue(),
        tls_client_auth="required",
        tls_ca_file=authority.file,
        tls_principal_mapping_rules="RULE:^CN=(.*?),OU=Billing.*$/$1/L,DEFAULT",
    )
    async with running(database_url, listener_settings=settings) as agent:
        assert await asyncio.to_thread(produce_and_consume, client(agent, authority, shown), "mine", 10) == 10
        async with tls_connection(agent, authority, shown) as (_, writer):
            other = authority.issue("/O=Example/CN=Bob, Inc.")
            async with tls_connection(agent, authority, other):
                await until(lambda: {"User:alice", "User:CN=Bob\\, Inc.,O=Example"} <= principals(agent))
            assert not writer.is_closing()


async def test_without_a_certificate_a_client_is_anonymous_or_refused(
    database_url: str, authority: Authority
) -> None:
    for client_auth, is_served in (("requested", True), ("required", False)):
        settings = tls_settings(authority.issue(), tls_client_auth=client_auth, tls_ca_file=authority.file)
        async with running(database_url, listener_settings=settings) as agent:
            if is_served:
                async with tls_connection(agent, authority):
                    await until(partial(principals, agent))
                    assert principals(agent) == {"User:ANONYMOUS"}
            else:
                with pytest.raises(REFUSED):
                    async with tls_connection(agent, authority) as (reader, _):
                        await reader.readexactly(1)
                await until(partial(failures, agent, "certificate"))


async def test_a_certificate_of_another_ca_is_refused(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority.make(tmp_path / "strange", "strange CA").issue("/CN=alice")
    for client_auth in ("requested", "required"):
        settings = tls_settings(authority.issue(), tls_client_auth=client_auth, tls_ca_file=authority.file)
        async with running(database_url, listener_settings=settings) as agent:
            with pytest.raises(REFUSED):
                async with tls_connection(agent, authority, stranger) as (reader, _):
                    await reader.readexactly(1)
            await until(partial(failures, agent, "certificate"))
            assert principals(agent) == set()


async def test_a_subject_that_no_rule_matches_is_refused(database_url: str, authority: Authority) -> None:
    settings = tls_settings(
        authority.issue(),
        tls_client_auth="required",
        tls_ca_file=authority.file,
        tls_principal_mapping_rules="RULE:^CN=alice$/alice/",
    )
    async with running(database_url, listener_settings=settings) as agent:
        with pytest.raises(REFUSED):
            async with tls_connection(agent, authority, authority.issue("/CN=mallory")) as (reader, _):
                await reader.readexactly(1)
        await until(lambda: failures(agent, "principal") == 1)


async def test_new_certificate_files_count_for_new_connections(
    database_url: str, authority: Authority
) -> None:
    files, second = authority.issue("/CN=first"), authority.issue("/CN=second")
    settings = tls_settings(files, tls_reload_s=0.05)
    async with (
        running(database_url, listener_settings=settings) as agent,
        tls_connection(agent, authority) as (reader, writer),
    ):
        assert served_subject(writer) == "first"

        files.key.write_bytes(b"this is no key")
        await until(lambda: reloads(agent, "refused") >= 1)
        async with tls_connection(agent, authority) as (_, another):
            assert served_subject(another) == "first"

        files.replace(second)
        await until(lambda: reloads(agent, "loaded") >= 2)
        async with tls_connection(agent, authority) as (_, another):
            assert served_subject(another) == "second"

        writer.write(API_VERSIONS)
        assert await asyncio.wait_for(reader.readexactly(8), 20)
        assert agent.metric("tidelog_certificate_expires_seconds", use="kafka") > time.time()


async def test_garbage_and_old_versions_close_only_their_connection(
    database_url: str, authority: Authority
) -> None:
    async with (
        running(database_url, listener_settings=tls_settings(authority.issue())) as agent,
        tls_connection(agent, authority) as (reader, writer),
    ):
        for garbage in (
            API_VERSIONS,
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(300),
            b"\x16\x03\x01\x40\x00" + b"\xff" * 20_000,
        ):
            other_reader, other = await asyncio.open_connection("127.0.0.1", agent.app.kafka_port)
            other.write(garbage)
            await asyncio.wait_for(other_reader.read(), 20)
            other.close()
        with pytest.raises(REFUSED):
            async with tls_connection(agent, authority, newest=ssl.TLSVersion.TLSv1_1):
                pass
        await until(lambda: failures(agent, "version") == 1)

        assert failures(agent, "not_tls") >= 3
        writer.write(API_VERSIONS)
        assert await asyncio.wait_for(reader.readexactly(8), 20)


async def test_an_oversized_certificate_is_refused(database_url: str, authority: Authority) -> None:
    names = ",".join(f"DNS:{number}.{'x' * 60}.example" for number in range(2_000))
    config = authority.directory / "large.cnf"
    config.write_text(f"[req]\ndistinguished_name=dn\n[dn]\n[large]\nsubjectAltName={names}\n")
    large = authority.issue("/CN=large", hosts=None, more=("-config", config, "-extensions", "large"))
    settings = tls_settings(authority.issue(), tls_client_auth="required", tls_ca_file=authority.file)
    async with running(database_url, listener_settings=settings) as agent:
        with pytest.raises(REFUSED):
            async with tls_connection(agent, authority, large) as (reader, _):
                await reader.readexactly(1)
        await until(lambda: failures(agent, "certificate") == 1)


async def test_stalled_handshakes_keep_nobody_out(database_url: str, authority: Authority) -> None:
    settings = tls_settings(authority.issue(), tls_handshakes=50, tls_handshake_timeout_s=600)
    async with running(database_url, listener_settings=settings) as agent:
        stalled = []
        for number in range(1_000):
            connection = socket.create_connection(("127.0.0.1", agent.app.kafka_port), timeout=20)
            connection.send(b"\x16\x03\x01\x02\x00"[: number % 6])
            stalled.append(connection)
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: failures(agent, "displaced") >= 900)

        assert agent.metric("tidelog_tls_handshakes_under_way", use="kafka") <= 50
        async with tls_connection(agent, authority) as (reader, writer):
            writer.write(API_VERSIONS)
            assert await asyncio.wait_for(reader.readexactly(8), 20)
        assert agent.metric("tidelog_connections") <= 1
        for connection in stalled:
            connection.close()


async def test_a_handshake_that_takes_too_long_is_ended(database_url: str, authority: Authority) -> None:
    settings = tls_settings(authority.issue(), tls_handshake_timeout_s=0.2)
    async with running(database_url, listener_settings=settings) as agent:
        _, writer = await asyncio.open_connection("127.0.0.1", agent.app.kafka_port)
        writer.write(b"\x16\x03\x01")

        await until(lambda: failures(agent, "timeout") == 1)
        writer.close()


async def test_an_agent_stops_while_handshakes_are_under_way(database_url: str, authority: Authority) -> None:
    async with running(database_url, listener_settings=tls_settings(authority.issue())) as agent:
        _, writer = await asyncio.open_connection("127.0.0.1", agent.app.kafka_port)
        writer.write(b"\x16\x03\x01")
        await until(lambda: agent.metric("tidelog_tls_handshakes_under_way", use="kafka") == 1)
        await agent.stop()
        writer.close()


API_VERSIONS = bytes.fromhex("0000000f 0012 0000 00000001 0005 74657374 78".replace(" ", ""))
"""ApiVersions version 0, with the client id `testx`."""


@asynccontextmanager
async def tls_connection(
    agent: Running,
    authority: Authority,
    shown: Certificate | None = None,
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.create_default_context(cafile=authority.file)
    context.check_hostname = False
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if newest is ssl.TLSVersion.TLSv1_1:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.set_ciphers("ALL:@SECLEVEL=0")
    context.maximum_version = newest
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.app.kafka_port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def principals(agent: Running) -> set[str]:
    return {str(state.principal) for state in agent.app._reached.clients()}


def failures(agent: Running, reason: str) -> float:
    return agent.metric("tidelog_tls_handshakes_total", use="kafka", outcome=reason)


def reloads(agent: Running, outcome: str) -> float:
    return agent.metric("tidelog_certificate_reloads_total", use="kafka", outcome=outcome)


def served_subject(writer: asyncio.StreamWriter) -> str:
    subject = writer.get_extra_info("peercert")["subject"]
    return str(dict(part for rdn in subject for part in rdn)["commonName"])
