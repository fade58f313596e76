"""Client quotas within a tenant, and limits of a tenant as a whole."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.entities import QuotaKind
from agent.quotas.settings import QuotaSettings
from sequencer.security.quotas import Entity, QuotaPage, QuotaPlace
from sequencer.tenants.tenant_limits import TenantLimitReached, TenantLimits
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.quotas.test_enforcement import alter, described
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, until_answered
from tests.agent.tenants.two_tenants import connected, opened, tenants_agent

pytestmark = pytest.mark.asyncio

NONE, REFUSED = ErrorCode.none, ErrorCode.cluster_authorization_failed
QUICK = QuotaSettings(quota_poll_s=0.1)
RATE: Any = {"producer_byte_rate": 10.0}
Names = dict[str, str | None]


async def test_a_tenant_sees_and_sets_only_quotas_of_its_own(database_url: str) -> None:
    async with tenants_agent(database_url, quotas=QUICK) as agent:
        acme, beta = [await connected(agent.app.kafka_port, tenant) for tenant in ("acme", "beta")]
        root = await connected(agent.app.kafka_port, None, "root")
        assert await alter(root, {"user": None}, **RATE) is NONE
        assert await alter(root, {"client-id": "app"}, **RATE) is NONE
        assert await alter(root, {"ip": "10.0.0.1"}, connection_creation_rate=3) is NONE
        own: list[Names] = [
            {"user": "bob"},
            {"user": None},
            {"client-id": "app"},
            {"user": "bob", "client-id": None},
        ]
        for entity in own:
            assert await alter(acme, entity, **RATE) is NONE
        assert await alter(beta, {"user": "bob"}, producer_byte_rate=20) is NONE
        addresses: list[Names] = [{"ip": "10.0.0.1"}, {"ip": None}]
        for entity in addresses:
            assert await alter(acme, entity, connection_creation_rate=9) is ErrorCode.invalid_request

        assert await described(beta) == {named(user="bob"): {"producer_byte_rate": 20.0}}
        assert await described(beta, ip=(2, None)) == await described(beta, user=(1, None)) == {}
        assert set(await described(acme)) == {
            named(user="bob"),
            named(user=None),
            named(client_id="app"),
            named(user="bob", client_id=None),
        }
        assert set(await described(acme, True, user=(1, None))) == {named(user=None)}
        assert set(await described(acme, user=(0, "bob"), client_id=(1, None))) == {
            named(user="bob", client_id=None)
        }
        everything = set(await described(root))
        assert named(user="acme~bob") in everything
        assert named(user="acme~") in everything
        assert len(everything) == 8

        # A name of another tenant is one of its own, and removes nothing there.
        assert await alter(acme, {"user": "beta~bob"}, producer_byte_rate=None) is NONE
        assert await alter(acme, {"user": "bob"}, producer_byte_rate=None) is NONE
        assert set(await described(beta)) == {named(user="bob")}
        for wire in (acme, beta, root):
            wire.close()


def named(**names: str | None) -> frozenset[tuple[str, str | None]]:
    return frozenset((kind.replace("_", "-"), name) for kind, name in names.items())


async def test_only_admins_of_a_tenant_and_operators_reach_its_quotas(database_url: str) -> None:
    async with tenants_agent(database_url) as agent:
        acme = await connected(agent.app.kafka_port, "acme")
        bob = await connected(agent.app.kafka_port, "acme", "bob")
        root = await connected(agent.app.kafka_port, None, "root")
        assert await alter(acme, {"user": "bob"}, **RATE) is NONE
        assert await alter(bob, {"user": "bob"}, producer_byte_rate=None) is REFUSED
        assert (
            await alter(root, {"user": "acme~bob", "client-id": "beta~x"}, **RATE)
            is ErrorCode.invalid_request
        )
        assert await alter(root, {"user": "acme~bob", "client-id": None}, **RATE) is ErrorCode.invalid_request
        assert await alter(root, {"user": "acme~bob"}, producer_byte_rate=30) is NONE
        assert await described(acme) == {named(user="bob"): {"producer_byte_rate": 30.0}}
        for wire in (acme, bob, root):
            wire.close()


async def test_a_tenant_that_fills_its_quotas_takes_none_from_others(database_url: str) -> None:
    async with opened(database_url) as sequencer:
        for name in ("acme", "acme2"):
            await sequencer.tenants.create(name, [], TenantLimits(quotas=2))
        quotas = sequencer.client_quotas

        async def set_to(*users: str, rate: float | None = 1.0, most: int = 10) -> None:
            changes: Mapping[Entity, Mapping[str, float | None]] = {
                frozenset({("user", user)}): {"producer_byte_rate": rate} for user in users
            }
            await quotas.alter(changes, most)

        await set_to("acme~a", "acme~b")
        await set_to("acme~a", "acme~b", rate=2.0)
        for users in (("acme~c",), ("free", "acme~c")):
            with pytest.raises(TenantLimitReached):
                await set_to(*users)
        await set_to("acme2~a", "free")
        await set_to(*(f"acme~{number}" for number in range(50)), rate=None)  # nothing is there to remove
        [row] = await sequencer.database.read("SELECT count(*) AS rows FROM client_quotas")
        assert row.rows == 4


async def test_the_last_tenth_of_all_quotas_is_for_operators(database_url: str) -> None:
    async with tenants_agent(database_url, quotas=QuotaSettings(max_client_quotas=10)) as agent:
        acme = await connected(agent.app.kafka_port, "acme")
        root = await connected(agent.app.kafka_port, None, "root")
        for number in range(9):
            assert await alter(acme, {"user": f"u{number}"}, **RATE) is NONE
        assert await alter(acme, {"user": "one-more"}, **RATE) is ErrorCode.policy_violation
        assert await alter(root, {"user": "free"}, **RATE) is NONE
        acme.close()
        root.close()


async def test_a_tenants_default_slows_its_own_users_alone(database_url: str) -> None:
    async with tenants_agent(database_url, quotas=QUICK) as agent:
        wires = {tenant: await connected(agent.app.kafka_port, tenant) for tenant in ("acme", "beta")}
        assert await alter(wires["acme"], {"user": None}, producer_byte_rate=1_000) is NONE

        pauses = {tenant: await pause_ms(wire) for tenant, wire in wires.items()}
        for wire in wires.values():
            wire.close()

    assert pauses["acme"] > 0
    assert pauses["beta"] == 0


async def pause_ms(wire: Wire) -> float:
    """Returns the pause that the answer to a Produce request of 20 kB names."""
    await wire.ask(a_metadata("orders"))
    answer = await wire.ask(a_produce("orders", {0: a_batch(b"x" * 20_000)}))
    return float(answer.throttle_time.total_seconds() * 1_000)


async def test_a_limit_of_the_whole_tenant_holds_all_its_users_to_it(database_url: str) -> None:
    """Also if the tenant's admin gives its users larger quotas."""
    async with tenants_agent(database_url, quotas=QUICK) as agent:
        async with opened(database_url) as sequencer:
            await sequencer.tenants.change(
                "acme", admins=["alice", "bob"], limits=TenantLimits(produce_bytes_rate=10_000)
            )
        await until_limited(agent)
        alice = await connected(agent.app.kafka_port, "acme")
        bob = await connected(agent.app.kafka_port, "acme", "bob")
        beta = await connected(agent.app.kafka_port, "beta")
        assert await alter(alice, {"user": "alice"}, producer_byte_rate=1e9) is NONE

        first, second, of_beta = [await pause_ms(wire) for wire in (alice, bob, beta)]
        for wire in (alice, bob, beta):
            wire.close()

    assert first > 0
    assert second > first  # what alice overdrew counts for bob, too
    assert of_beta == 0


async def until_limited(agent: Running) -> None:
    assembly = agent.app._reached.assembly
    assert assembly is not None

    async def is_limited() -> bool:
        await asyncio.sleep(0)
        return assembly.parts.quotas.is_on

    await until_answered(is_limited)


async def test_partitions_over_the_tenants_rate_are_refused(database_url: str) -> None:
    async with tenants_agent(database_url, quotas=QUICK) as agent:
        async with opened(database_url) as sequencer:
            await sequencer.tenants.change("acme", limits=TenantLimits(mutation_rate=1))
        await until_limited(agent)
        acme, beta = [await connected(agent.app.kafka_port, tenant) for tenant in ("acme", "beta")]
        codes = {
            name: [ErrorCode((await create(wire, f"t{n}", num_partitions=20)).error_code) for n in range(2)]
            for name, wire in (("acme", acme), ("beta", beta))
        }
        acme.close()
        beta.close()

    assert codes == {"acme": [NONE, ErrorCode.throttling_quota_exceeded], "beta": [NONE, NONE]}


class _NoRows:
    async def page(self, _: QuotaPlace) -> QuotaPage:
        raise AssertionError

    async def report(self, *_: Any) -> dict[bytes, Any]:
        raise AssertionError


class _Alone:
    def node_id(self) -> int | None:
        return 1

    def count(self) -> int:
        return 1


def quotas_of(clock: Any, entities: Mapping[Entity, Mapping[str, float]], most: int = 10) -> ClientQuotas:
    quotas = ClientQuotas(_NoRows(), _Alone(), QuotaSettings(quota_clients=most), clock)  # type: ignore[arg-type]
    quotas._take(dict(entities))
    return quotas


async def test_many_client_ids_of_a_tenant_make_no_debt_of_others_forgotten() -> None:
    entities: dict[Entity, Any] = {
        frozenset({("client-id", "acme~")}): RATE,
        frozenset({("user", "beta~")}): RATE,
    }
    quotas = quotas_of(lambda: 0.0, entities)
    owes = quotas.charge(QuotaKind.PRODUCE, "beta~bob", "x", 1_000)
    for number in range(1_000):
        quotas.charge(QuotaKind.PRODUCE, "acme~eve", f"c{number}", 1)

    assert quotas.pause_s(QuotaKind.PRODUCE, "beta~bob", "x") == owes > 0
    assert sum(map(len, quotas._uses.values())) == quotas._tracked == 10


async def test_a_client_of_no_tenant_uses_up_no_quota_of_a_tenant() -> None:
    """It says a client id that is a tenant's name for one."""
    quotas = quotas_of(lambda: 0.0, {frozenset({("client-id", "acme~app")}): RATE})
    assert quotas.charge(QuotaKind.PRODUCE, "eve", "acme~app", 1_000) == 0
    assert quotas.charge(QuotaKind.PRODUCE, "beta~eve", "acme~app", 1_000) == 0
    assert quotas.pause_s(QuotaKind.PRODUCE, "acme~bob", "app") == 0
    assert quotas.charge(QuotaKind.PRODUCE, "acme~bob", "app", 1_000) > 0


async def test_defaults_of_no_tenant_hold_for_no_tenant() -> None:
    quotas = quotas_of(
        time.monotonic, {frozenset({("user", None)}): RATE, frozenset({("client-id", None)}): RATE}
    )
    assert quotas.charge(QuotaKind.PRODUCE, "acme~bob", "app", 1_000) == 0
    assert quotas.charge(QuotaKind.PRODUCE, "bob", "app", 1_000) > 0


async def test_a_limit_that_is_gone_holds_up_no_one() -> None:
    quotas = quotas_of(lambda: 0.0, {})
    quotas.take_tenants({"acme": {QuotaKind.PRODUCE: 10.0}})
    assert quotas.charge(QuotaKind.PRODUCE, "acme~bob", "app", 1_000) > 0
    quotas.take_tenants({"acme": {}})
    assert quotas.charge(QuotaKind.PRODUCE, "acme~bob", "app", 1_000) == 0
    assert not quotas._wholes
    assert not quotas._kinds
