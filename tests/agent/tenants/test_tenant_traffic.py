"""Series of tenants in the metrics, and the tenants of connections."""

import httpx
import pytest
from prometheus_client import CollectorRegistry

from agent.quotas.settings import QuotaSettings
from agent.tenants.tenant_traffic import OTHER, TenantTraffic
from sequencer.tenants.tenant_limits import TenantLimits
from tests.agent.running import Wire, a_metadata, running
from tests.agent.tenants.test_quotas_of_tenants import pause_ms, until_limited
from tests.agent.tenants.two_tenants import PASSWORD, connected, opened, tenants_agent

pytestmark = pytest.mark.asyncio


def series(traffic: TenantTraffic) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(traffic)
    return {
        (sample.name, sample.labels["tenant"]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


async def test_a_cluster_without_tenants_has_no_series_of_tenants(database_url: str) -> None:
    assert series(TenantTraffic(10)) == {}
    async with running(database_url) as agent:
        await (wire := await Wire.connect(agent.app.kafka_port)).ask(a_metadata())
        assert "tidelog_tenant" not in agent.exposition()
        wire.close()


async def test_tenants_past_the_bound_are_counted_together() -> None:
    traffic = TenantTraffic(2)
    for number in range(1_000):
        traffic.note(f"t{number}", 10, 20, 1)
        traffic.note_failure(f"t{number}")
        traffic.note_throttle(f"t{number}", 0.5)
    found = series(traffic)

    assert {tenant for _, tenant in found} == {"t0", "t1", OTHER}
    assert found["tidelog_tenant_request_bytes_total", OTHER] == 998 * 10
    assert found["tidelog_tenant_failures_total", "t1"] == 1
    assert found["tidelog_tenant_throttle_seconds_total", OTHER] == 499.0


async def test_a_deleted_tenants_series_go_and_make_room() -> None:
    traffic = TenantTraffic(1)
    traffic.note("acme", 1, 1, 1)
    traffic.keep(["beta"])
    traffic.note("beta", 1, 1, 1)

    assert {tenant for _, tenant in series(traffic)} == {"beta"}


async def test_the_metrics_say_what_each_tenants_clients_do(database_url: str) -> None:
    async with tenants_agent(database_url, quotas=QuotaSettings(quota_poll_s=0.1)) as agent:
        async with opened(database_url) as sequencer:
            await sequencer.tenants.change("acme", limits=TenantLimits(produce_bytes_rate=1_000))
        await until_limited(agent)
        port = agent.app.kafka_port
        wires = [await connected(port, tenant) for tenant in ("acme", "beta")]
        wires.append(await connected(port, None, "root"))
        for wire in wires[:2]:
            await pause_ms(wire)

        for tenant in ("acme", "beta"):
            assert agent.metric("tidelog_tenant_requests_total", tenant=tenant) >= 2
            assert agent.metric("tidelog_tenant_request_bytes_total", tenant=tenant) > 20_000
            assert agent.metric("tidelog_tenant_response_bytes_total", tenant=tenant) > 0
        assert agent.metric("tidelog_tenant_throttle_seconds_total", tenant="acme") > 1
        assert agent.metric("tidelog_tenant_throttle_seconds_total", tenant="beta") == 0
        base_url, auth = f"http://127.0.0.1:{agent.app.http_port}", ("root", PASSWORD)
        async with httpx.AsyncClient(base_url=base_url, auth=auth, timeout=60) as http:
            listed = (await http.get("/v1/clients")).json()["connections"]
        for wire in wires:
            wire.close()

    assert sorted(one["tenant"] or "" for one in listed) == ["", "acme", "beta"]
