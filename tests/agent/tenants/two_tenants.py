"""Two tenants whose users, topics and groups have equal names, on one agent with an authorizer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from agent.security.acls.settings import AuthorizationSettings
from agent.security.sasl.settings import SaslSettings
from agent.tenants.settings import TenantSettings
from sequencer.client import Sequencer, SequencerSettings
from sequencer.tenants.tenant_limits import TenantLimits
from tests.agent.running import Running, Wire, running, until_answered
from tests.agent.security.logins.users import add_user, as_user

TENANTS: Final = ("acme", "beta")
PASSWORD: Final = "secret"
MECHANISMS: Final = "PLAIN,SCRAM-SHA-256"


@asynccontextmanager
async def opened(database_url: str) -> AsyncIterator[Sequencer]:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        yield sequencer
    finally:
        await sequencer.close()


async def make_tenants(database_url: str, *names: str, limits: TenantLimits = TenantLimits()) -> None:  # noqa: B008
    """Each has the admin `alice` and the user `bob`."""
    async with opened(database_url) as sequencer:
        for name in names or TENANTS:
            await sequencer.tenants.create(name, ["alice"], limits)
    for name in names or TENANTS:
        for user in ("alice", "bob"):
            await add_user(database_url, f"{name}~{user}", PASSWORD)


@asynccontextmanager
async def tenants_agent(database_url: str, **settings: Any) -> AsyncIterator[Running]:
    """Runs an agent with SASL, an authorizer, and the two tenants. The operator is `root`."""
    await make_tenants(database_url)
    await add_user(database_url, "root", PASSWORD)
    given = {
        "sasl_settings": SaslSettings(sasl_mechanisms=MECHANISMS, sasl_failed_delay_ms=10),
        "authorization": AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.1),
        "tenant_settings": TenantSettings(tenants_poll_s=0.1),
        **settings,
    }
    async with running(database_url, **given) as agent:
        yield agent


def login_of(tenant: str | None, user: str = "alice", mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
    """Returns librdkafka's settings."""
    return as_user(mechanism, user if tenant is None else f"{tenant}~{user}", PASSWORD)


async def connected(port: int, tenant: str | None, user: str = "alice") -> Wire:
    """Returns a connection that has logged in."""
    wire = await Wire.connect(port)
    full = user if tenant is None else f"{tenant}~{user}"
    assert (await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"))).error_code.value == 0
    answer = await wire.ask(SaslAuthenticateRequest(auth_bytes=f"\0{full}\0{PASSWORD}".encode()))
    assert answer.error_code.value == 0, answer
    return wire


async def until_tenant_is_known(agent: Running, name: str) -> None:
    tenants = agent.app._reached.assembly
    assert tenants is not None

    async def is_known() -> bool:
        await asyncio.sleep(0)
        return tenants.tenants.get(name) is not None

    await until_answered(is_known)
