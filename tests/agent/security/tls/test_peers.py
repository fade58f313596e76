"""Agents speak TLS with each other, a running cluster switches to it, and strangers stay outside."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from agent.security.listener_settings import ListenerSettings
from cache_ring.peers.peer_connection import PeerHungUp, open_peer_stream
from cache_ring.peers.peer_proof import PREFACE
from tests.agent.running import Running, running
from tests.agent.security.tls.test_tls_listener import produce_and_consume
from tests.support.certificates import Authority, Certificate
from tests.support.waiting import until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


def peer_settings(authority: Authority, mode: str) -> ListenerSettings:
    certificate = authority.issue()
    return ListenerSettings.model_validate(
        {
            "peer_tls": mode,
            "peer_tls_certificate_file": str(certificate.certificate),
            "peer_tls_key_file": str(certificate.key),
            "peer_tls_ca_file": authority.file,
        }
    )


def secured(agent: Running) -> float:
    return agent.metric("tidelog_tls_handshakes_total", use="peer", outcome="done")


def peer_port(agent: Running) -> int:
    membership = agent.app._membership()
    assert membership is not None
    assert membership.self_ is not None
    return membership.self_.address.peer_port


@pytest.mark.parametrize(
    ("one", "other", "one_takes_tls", "other_takes_tls"),
    [
        ("off", "accepted", False, False),
        ("accepted", "accepted", False, False),
        ("accepted", "preferred", True, False),
        ("preferred", "required", True, True),
        ("required", "required", True, True),
    ],
)
async def test_each_step_of_the_switch_works_with_the_one_before(
    database_url: str,
    authority: Authority,
    one: str,
    other: str,
    one_takes_tls: bool,
    other_takes_tls: bool,
) -> None:
    async with (
        running(database_url, listener_settings=peer_settings(authority, one)) as a,
        running(database_url, listener_settings=peer_settings(authority, other)) as b,
    ):
        await until(lambda: a.agents_seen == 2 and b.agents_seen == 2)
        client: dict[str, Any] = {"bootstrap.servers": f"{a.bootstrap},{b.bootstrap}", "log_level": 0}
        assert await asyncio.to_thread(produce_and_consume, client, "switch", 200) == 200
        for agent, takes_tls in ((a, one_takes_tls), (b, other_takes_tls)):
            peers = agent.app._reached.assembly.peer_server  # type: ignore[union-attr]
            await until(lambda peers=peers: peers.connections > 0 or len(peers._of_guests) > 0)  # type: ignore[misc]
            assert (secured(agent) > 0) == takes_tls
            assert peers.counts.strangers == 0


async def test_a_stranger_with_another_certificate_or_none_is_turned_away(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority.make(tmp_path / "foreign", "foreign CA").issue()
    async with running(database_url, listener_settings=peer_settings(authority, "required")) as agent:
        membership = agent.app._membership()
        assert membership is not None
        with pytest.raises(PeerHungUp):  # it knows the secret, and speaks no TLS
            await open_peer_stream("127.0.0.1", peer_port(agent), membership.peer_secrets)
        for shown in (None, foreign):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                await greet(agent, shown)

        await until(lambda: refused(agent, "certificate") == 2)
        assert refused(agent, "not_tls") == 1


async def test_a_certificate_alone_proves_nothing(database_url: str, authority: Authority) -> None:
    async with running(database_url, listener_settings=peer_settings(authority, "required")) as agent:
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            await greet(agent, authority.issue())
        assembly = agent.app._reached.assembly
        assert assembly is not None
        await until(lambda: assembly.peer_server.counts.strangers == 1)


async def test_an_agent_opens_nothing_to_an_agent_of_another_ca(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority.make(tmp_path / "foreign", "foreign CA")
    async with (
        running(database_url, listener_settings=peer_settings(authority, "required")) as a,
        running(database_url, listener_settings=peer_settings(foreign, "required")) as b,
    ):
        await until(lambda: refused(a, "certificate") > 0 or refused(b, "certificate") > 0)
        assert secured(a) == secured(b) == 0


def refused(agent: Running, reason: str) -> float:
    return agent.metric("tidelog_tls_handshakes_total", use="peer", outcome=reason)


async def greet(agent: Running, shown: Certificate | None) -> None:
    """Connects with TLS and begins as a peer does, without knowing the secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer_port(agent), ssl=context)
    try:
        writer.write(PREFACE + bytes(48))
        await asyncio.wait_for(reader.readexactly(1), 20)
    finally:
        writer.transport.abort()
