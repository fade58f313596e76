"""Clients that mean harm: with half-open handshakes, with another's bytes, and with names that are no names.

Each gets its refusal, and another client goes on.
"""

import asyncio
import gc
import logging
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import psycopg
import pytest
from kio.schema.errors import ErrorCode

from agent.kafka.transport.connection import KafkaConnection
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.security.tls.transport import TlsTransport
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running
from tests.agent.security.logins.by_hand import authenticate, handshake, log_in
from tests.agent.security.logins.users import add_user
from tests.agent.security.sasl.test_scram import Client
from tests.support.certificates import Authority
from tests.support.waiting import until
from tidelog.process.logs import JsonLines, KeyValueLines

HANDSHAKES, WAITING, STALLED = 50, 60, 2_000
NAMES = (
    "../../x",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a'; DROP TABLE topics; --",
    '"; DELETE FROM topics; --',
    "%2e%2e",
    "%s%(x)s{0}",
    "line\r\nanother level=error",
    "colour \x1b[31m",
    "nul\0nul",
    "\u202eright to left",
    "another\u2028line\x85and \x9b31m",
    "x" * 250,
    "",
)
"""What a topic may not be called."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


def over_tls(authority: Authority, protocol: str = "SASL_SSL", **more: Any) -> ListenerSettings:
    own = authority.issue()
    return ListenerSettings(
        security_protocol=protocol,  # type: ignore[arg-type]
        tls_certificate_file=str(own.certificate),
        tls_key_file=str(own.key),
        **more,
    )


def a_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def connected(agent: Running, context: ssl.SSLContext | None = None) -> Wire:
    hostname = None if context is None else "localhost"
    return Wire(
        *await asyncio.open_connection(
            "127.0.0.1", agent.app.kafka_port, ssl=context, server_hostname=hostname
        )
    )


@asynccontextmanager
async def producing(wire: Wire, topic: str) -> AsyncIterator[list[int]]:
    """Yields the offsets of the records that one client produces meanwhile. A refusal ends the test."""
    offsets: list[int] = []

    async def produce() -> None:
        while True:
            [answer] = partitions_of(await wire.ask(a_produce(topic, {0: a_batch(b"v")})))
            assert answer.error_code == ErrorCode.none
            offsets.append(answer.base_offset)

    await wire.ask(a_metadata(topic))
    task = asyncio.create_task(produce())
    try:
        yield offsets
        so_far = len(offsets)
        await until(lambda: task.done() or len(offsets) > so_far + 1)
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert offsets == list(range(len(offsets)))


def kept_connections() -> int:
    """Connections in memory, with those that are closed and not forgotten."""
    gc.collect()
    # Not isinstance: it fails for a weak proxy whose object is gone.
    return sum(issubclass(type(each), TlsTransport | KafkaConnection) for each in gc.get_objects())


async def test_thousands_of_half_open_handshakes_take_bounded_memory_while_another_produces(
    database_url: str, authority: Authority
) -> None:
    await add_user(database_url, "ann", "secret")
    listener = over_tls(authority, tls_handshakes=HANDSHAKES, tls_handshake_timeout_s=600)
    sasl = SaslSettings(sasl_mechanisms="SCRAM-SHA-256", sasl_max_unauthenticated=WAITING, sasl_timeout_s=600)
    context = a_context(authority)
    async with running(database_url, listener_settings=listener, sasl_settings=sasl) as agent:
        user = await connected(agent, context)
        await log_in(user, "ann", "secret", "SCRAM-SHA-256")
        stalled: list[socket.socket] = []
        half: list[Wire] = []
        try:
            async with producing(user, "steady") as offsets:
                for number in range(STALLED):
                    raw = socket.create_connection(("127.0.0.1", agent.app.kafka_port), timeout=20)
                    raw.send(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
                    stalled.append(raw)
                    if number % 10 == 0:  # half a login: the handshake, or the first message too
                        wire = await connected(agent, context)
                        await wire.ask(handshake("SCRAM-SHA-256"))
                        if number % 20:
                            await wire.ask(authenticate(b"n,,n=ann,r=abc"))
                        half.append(wire)
                    if number % 200 == 0:
                        assert agent.metric("tidelog_tls_handshakes_under_way", use="kafka") <= HANDSHAKES
                        assert agent.metric("tidelog_unauthenticated_connections") <= WAITING
                assert agent.metric("tidelog_tls_handshakes_under_way", use="kafka") <= HANDSHAKES
                await until(lambda: kept_connections() <= 2 * (HANDSHAKES + WAITING + 10))
                assert offsets
        finally:
            for raw in stalled:
                raw.close()
            for wire in half:
                wire.writer.transport.abort()
        late = await connected(agent, context)
        assert (await log_in(late, "ann", "secret", "SCRAM-SHA-256")).error_code == ErrorCode.none
        late.close()
        user.close()


@contextmanager
def s_client(agent: Running) -> Iterator[subprocess.Popen[bytes]]:
    """OpenSSL's client over TLS 1.2, which begins a new handshake if it reads a line with R."""
    address = f"127.0.0.1:{agent.app.kafka_port}"
    process = subprocess.Popen(
        ["openssl", "s_client", "-tls1_2", "-connect", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OPENSSL_CONF": os.devnull},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


async def test_a_client_that_renegotiates_is_refused(database_url: str, authority: Authority) -> None:
    async with running(database_url, listener_settings=over_tls(authority, "SSL")) as agent:
        other = await connected(agent, a_context(authority))
        async with producing(other, "steady"):
            with s_client(agent) as client:
                await until(
                    lambda: agent.metric("tidelog_tls_handshakes_total", use="kafka", outcome="done") >= 2
                )
                said, _ = await asyncio.to_thread(client.communicate, b"R\n", 20)
            assert b"RENEGOTIATING" in said
            assert b"no renegotiation" in said.lower() or b"handshake failure" in said.lower(), said[-500:]
        assert agent.metric("tidelog_tls_handshakes_total", use="kafka", outcome="done") == 2
        other.close()


async def test_a_recorded_scram_login_opens_no_other_connection(database_url: str) -> None:
    await add_user(database_url, "ann", "secret")
    settings = SaslSettings(sasl_mechanisms="SCRAM-SHA-256", sasl_failed_delay_ms=0)
    async with running(database_url, sasl_settings=settings) as agent:
        user, thief, late = [await connected(agent) for _ in range(3)]
        client = Client("SCRAM-SHA-256", "ann", "secret")  # type: ignore[arg-type]
        await user.ask(handshake("SCRAM-SHA-256"))
        challenged = await user.ask(authenticate(client.first()))
        final = client.final(challenged.auth_bytes)

        # The thief asks for a challenge of its own before the login that it recorded has ended.
        await thief.ask(handshake("SCRAM-SHA-256"))
        await thief.ask(authenticate(client.first()))
        assert (await thief.ask(authenticate(final))).error_code == ErrorCode.sasl_authentication_failed
        assert await thief.is_closed_by_agent()
        await late.ask(handshake("SCRAM-SHA-256"))
        assert (await late.ask(authenticate(final))).error_code == ErrorCode.sasl_authentication_failed
        assert await late.is_closed_by_agent()

        assert (await user.ask(authenticate(final))).error_code == ErrorCode.none
        assert (await user.ask(a_metadata("t"))).topics
        for wire in (user, thief, late):
            wire.close()


@pytest.mark.parametrize("announced", [100_000_000, 2**31 - 1, 2**31, 2**32 - 1])
async def test_an_announced_giant_before_a_login_ends_its_connection_alone(
    database_url: str, announced: int
) -> None:
    await add_user(database_url, "ann", "secret")
    async with running(database_url, sasl_settings=SaslSettings(sasl_mechanisms="PLAIN")) as agent:
        user, giant, shaken = [await connected(agent) for _ in range(3)]
        await log_in(user, "ann", "secret")
        async with producing(user, "steady"):
            await shaken.ask(handshake())
            for wire in (giant, shaken):
                wire.writer.write(announced.to_bytes(4, "big") + b"\0\x24\0\2")
                assert await wire.is_closed_by_agent()
                wire.close()
        user.close()


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """As the agent writes them, in both forms."""
    return [form.format(record) for form in (KeyValueLines(), JsonLines()) for record in caplog.records]


def _a_commit(group: str, topic: str) -> Any:
    partition = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": group,
    }
    return request(
        8,
        7,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": topic, "partitions": [partition]}],
    )


async def _ask_with_hostile_names(agent: Running, user: Wire) -> None:
    """As topics, as client ids, as groups and as users."""
    for name in NAMES:
        [created] = (
            await user.ask(
                request(
                    19,
                    5,
                    topics=[
                        {
                            "name": name,
                            "num_partitions": 1,
                            "replication_factor": 1,
                            "assignments": [],
                            "configs": [],
                        }
                    ],
                    timeout=timedelta(seconds=20),
                    validate_only=False,
                ),
                client_id=name,
            )
        ).topics
        assert created.error_code == ErrorCode.invalid_topic_exception, name
        [described] = (await user.ask(a_metadata(name), client_id=name)).topics
        assert described.error_code in (
            ErrorCode.invalid_topic_exception,
            ErrorCode.unknown_topic_or_partition,
        )
        [refused] = partitions_of(await user.ask(a_produce(name, {0: a_batch(b"v")}), client_id=name))
        assert refused.error_code in (
            ErrorCode.invalid_topic_exception,
            ErrorCode.unknown_topic_or_partition,
        )
        coordinator = await user.ask(request(10, 2, key=name, key_type=0), client_id=name)
        assert coordinator.error_code in (
            ErrorCode.none,
            ErrorCode.invalid_group_id,
            ErrorCode.invalid_request,
        )
        committed = await user.ask(_a_commit(name, "steady"), client_id=name)
        assert committed.topics[0].partitions[0].error_code != ErrorCode.unknown_server_error, name
        stranger = await connected(agent)
        if "\0" not in name:
            failed = await log_in(stranger, name, f"{name}secret")
            assert failed.error_code == ErrorCode.sasl_authentication_failed
        stranger.close()


async def test_names_reach_neither_the_store_nor_sql_nor_another_line_of_the_log(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "store").mkdir()
    await add_user(database_url, "ann", "secret")
    settings = SaslSettings(
        sasl_mechanisms="PLAIN", sasl_failed_delay_ms=0, sasl_failed_delay_max_ms=0, sasl_timeout_s=20
    )
    async with running(
        database_url, (tmp_path / "store").as_uri(), sasl_settings=settings, linger_ms=1
    ) as agent:
        user, steady = await connected(agent), await connected(agent)
        for wire in (user, steady):
            await log_in(wire, "ann", "secret")
        async with producing(steady, "steady"):
            await _ask_with_hostile_names(agent, user)
        for wire in (user, steady):
            wire.close()

    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT name FROM topics ORDER BY name").fetchall()
    assert [name for (name,) in found] == ["steady"]
    assert os.listdir(tmp_path) == ["store"]
    lines = lines_of(caplog)
    assert any("login failed" in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


@pytest.mark.parametrize(
    "path",
    [
        "namespaces/topics/tables/..%2F..%2Fetc%2Fpasswd",
        "namespaces/topics/tables/%2e%2e%2f%2e%2e%2fx",
        "namespaces/topics/tables/%252e%252e%252fx",
        "namespaces/topics%2F..%2F..%2Fx/tables/t",
        "namespaces/topics%1Fx/tables/t",
        "namespaces/topics/tables/a%27%3B%20DROP%20TABLE%20topics%3B%20--",
        "namespaces/topics/tables/x%0d%0aset-cookie:%20a=b",
        "namespaces/topics/tables/x%00y",
        "namespaces/topics/tables/%ff%fe",
        f"namespaces/topics/tables/{'x' * 5_000}",
    ],
)
async def test_iceberg_paths_lead_to_no_file_and_no_header(database_url: str, path: str) -> None:
    async with (
        running(database_url) as agent,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}/iceberg/v1/") as client,
    ):
        answer = await client.get(path)

        assert answer.status_code in (404, 406), answer.text  # 406: no path of the catalog
        listed = await client.get("namespaces/topics/tables", params={"pageToken": unquote(path)})
        assert listed.status_code == (400 if "%00" in path else 200)
        assert "set-cookie" not in answer.headers
        assert "Traceback" not in answer.text
        assert (await client.get("namespaces/topics")).status_code == 200
