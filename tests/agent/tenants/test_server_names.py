"""The TLS server name chooses a tenant, and never replaces a login."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from kio.schema.metadata.v1.request import MetadataRequest
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from agent.security.acls.settings import AuthorizationSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.tenants.server_names import ServerName, asked_tenant
from agent.tenants.settings import TenantSettings
from sequencer.tenants.tenant_names import InvalidTenantName
from tests.agent.running import Running, Wire, a_metadata
from tests.agent.tenants.two_tenants import PASSWORD, tenants_agent
from tests.support.certificates import Authority

DOMAIN = "kafka.example.com"
AGENT = "b1.kafka.example.com"


@pytest.mark.parametrize(
    ("name", "tenant"),
    [
        ("acme.kafka.example.com", "acme"),
        ("ACME.kafka.example.com.", "acme"),
        ("acme.b1.kafka.example.com", "acme"),
        ("b1.kafka.example.com", None),
        ("kafka.example.com", None),
        ("acme.kafka.example.com.evil.net", None),
        ("acme.evilkafka.example.com.net", None),
        ("xkafka.example.com", None),
        ("", None),
        (None, None),
    ],
)
def test_the_first_label_below_the_domain_is_the_tenant(name: str | None, tenant: str | None) -> None:
    found = asked_tenant(name, DOMAIN, AGENT)

    assert (None if found is None else found.tenant) == tenant


@pytest.mark.parametrize("label", ["a_b", "-x", "x-", "", "a~b", "x" * 64, "ümlaut"])
def test_a_label_that_no_tenant_can_have_is_refused(label: str) -> None:
    with pytest.raises(InvalidTenantName):
        asked_tenant(f"{label}.{DOMAIN}", DOMAIN, AGENT)


def test_a_tenants_clients_are_sent_on_by_its_names() -> None:
    server = ServerName(tenant="acme", domain=DOMAIN)

    assert server.of_host(AGENT) == f"acme.{AGENT}"
    assert server.of_host("10.0.0.1") == "10.0.0.1"
    assert asked_tenant(server.of_host(AGENT), DOMAIN, AGENT) == server


async def over_tls(agent: Running, server_name: str) -> Wire:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Wire(
        *await asyncio.open_connection(
            "127.0.0.1", agent.app.kafka_port, ssl=context, server_hostname=server_name
        )
    )


async def answered_login(agent: Running, server_name: str, user: str) -> tuple[Wire, Any]:
    wire = await over_tls(agent, server_name)
    await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"))
    return wire, await wire.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{PASSWORD}".encode()))


@pytest.mark.asyncio
async def test_a_login_at_a_tenants_server_name_is_of_that_tenant(database_url: str, tmp_path: Path) -> None:
    certificate = Authority.make(tmp_path).issue()
    listeners = ListenerSettings(
        listeners="SASL_SSL://127.0.0.1:0",
        advertised_listeners=f"SASL_SSL://{AGENT}:9092",
        tls_certificate_file=str(certificate.certificate),
        tls_key_file=str(certificate.key),
    )
    names = TenantSettings(tenants_poll_s=0.1, tenant_server_names=DOMAIN)
    async with tenants_agent(database_url, listener_settings=listeners, tenant_settings=names) as agent:
        hosts = {}
        for server_name, user in ((f"acme.{DOMAIN}", "alice"), (AGENT, "beta~alice")):
            wire, answer = await answered_login(agent, server_name, user)
            assert answer.error_code.value == 0
            metadata = await wire.ask(MetadataRequest(topics=()))
            hosts[server_name] = metadata.brokers[0].host
            wire.close()
        refused = []
        for server_name, user in (
            (f"acme.{DOMAIN}", "beta~alice"),
            (f"acme.{DOMAIN}", "acme~alice"),
            (f"acme.{DOMAIN}", "root"),
            (f"ghost.{DOMAIN}", "alice"),
        ):
            wire, answer = await answered_login(agent, server_name, user)
            refused.append(answer.error_code.name)
            wire.close()

    assert hosts == {f"acme.{DOMAIN}": f"acme.{AGENT}", AGENT: AGENT}
    assert set(refused) == {"sasl_authentication_failed"}


@pytest.mark.asyncio
async def test_a_server_name_of_no_possible_tenant_is_served_nothing(
    database_url: str, tmp_path: Path
) -> None:
    certificate = Authority.make(tmp_path).issue()
    listeners = ListenerSettings(
        listeners="SSL://127.0.0.1:0",
        advertised_listeners=f"SSL://{AGENT}:9092",
        tls_certificate_file=str(certificate.certificate),
        tls_key_file=str(certificate.key),
    )
    names = TenantSettings(tenants_poll_s=0.1, tenant_server_names=DOMAIN)
    async with tenants_agent(
        database_url,
        listener_settings=listeners,
        tenant_settings=names,
        sasl_settings=SaslSettings(),
        authorization=AuthorizationSettings(),  # so that every client of no tenant is an operator
    ) as agent:
        created = []
        for server_name in (f"acme.{DOMAIN}", f"a_b.{DOMAIN}", f"ghost.{DOMAIN}"):
            try:
                wire = await over_tls(agent, server_name)
                created.append((await wire.ask(a_metadata("orders"))).topics[0].name)
                wire.close()
            except (OSError, EOFError):
                created.append(None)

    assert created == ["orders", None, None]
