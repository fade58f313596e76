"""A tenant stays with its client: from one agent to another, and when the client authenticates again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from agent.security.acls.settings import AuthorizationSettings
from agent.security.sasl.settings import SaslSettings
from agent.tenants.settings import TenantSettings
from tests.agent.running import Running, Wire, running, until_answered
from tests.agent.tenants.two_tenants import (
    MECHANISMS,
    PASSWORD,
    TENANTS,
    connected,
    make_tenants,
    opened,
    tenants_agent,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUPS = [GroupId(f"group-{number}") for number in range(16)]
OFFSETS = {"acme": 3, "beta": 7}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(module_database_url: str) -> AsyncIterator[tuple[Running, Running]]:
    """Two behind one address."""
    await make_tenants(module_database_url)
    async with opened(module_database_url) as sequencer:
        for tenant in TENANTS:
            await sequencer.topics.create(f"{tenant}~orders", 1, {})
    shared: dict[str, Any] = {
        "one_address": "balancer.example:9092",
        "sasl_settings": SaslSettings(sasl_mechanisms=MECHANISMS),
        "authorization": AuthorizationSettings(authorizer=True, acl_poll_s=0.1),
        "tenant_settings": TenantSettings(tenants_poll_s=0.1),
    }
    async with (
        running(module_database_url, zone="a", **shared) as first,
        running(module_database_url, zone="b", **shared) as second,
    ):

        async def know_each_other() -> bool:
            return first.agents_seen == second.agents_seen == 2

        await until_answered(know_each_other)
        yield first, second


def a_commit(group: GroupId, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=i32(0),
        committed_offset=i64(offset),
        committed_leader_epoch=i32(-1),
        committed_metadata="",
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        group_instance_id=None,
        topics=(OffsetCommitRequestTopic(name=TopicName("orders"), partitions=(partition,)),),
    )


async def committed(wire: Wire) -> dict[str, list[tuple[str, int]]]:
    """Returns the offsets of all groups, asked for at once: each agent answers for its groups."""
    asked = tuple(OffsetFetchRequestGroup(group_id=group, topics=None) for group in GROUPS)
    answer = await wire.ask(OffsetFetchRequest(groups=asked, require_stable=False))
    return {
        group.group_id: [(topic.name, topic.partitions[0].committed_offset) for topic in group.topics]
        for group in answer.groups
    }


async def test_forwarded_requests_are_of_the_clients_tenant(agents: tuple[Running, Running]) -> None:
    first, second = agents
    for tenant in TENANTS:
        wire = await connected(first.app.kafka_port, tenant)
        for group in GROUPS:
            answer = await wire.ask(a_commit(group, OFFSETS[tenant]))
            assert answer.topics[0].name == "orders"
            assert answer.topics[0].partitions[0].error_code.name == "none"
        wire.close()
    assert first.metric("tidelog_forwarded_total", outcome="answered") > 0

    for tenant in TENANTS:
        for agent in agents:
            wire = await connected(agent.app.kafka_port, tenant)
            found = await committed(wire)
            wire.close()
            assert found == {group: [("orders", OFFSETS[tenant])] for group in GROUPS}

    wire = await connected(second.app.kafka_port, "acme")
    deleted = await wire.ask(DeleteGroupsRequest(groups_names=tuple(GROUPS)))
    assert [one.error_code.name for one in deleted.results] == ["none"] * len(GROUPS)
    assert set(map(len, (await committed(wire)).values())) == {0}
    wire.close()
    wire = await connected(first.app.kafka_port, "beta")
    assert await committed(wire) == {group: [("orders", OFFSETS["beta"])] for group in GROUPS}
    wire.close()


@pytest.mark.parametrize("other", ["beta~alice", "root", "acme~bob"])
async def test_a_client_never_authenticates_again_as_another(database_url: str, other: str) -> None:
    sasl = SaslSettings(
        sasl_mechanisms=MECHANISMS, sasl_failed_delay_ms=10, connections_max_reauth_ms=600_000
    )
    async with tenants_agent(database_url, sasl_settings=sasl) as agent:
        outcomes = []
        for user in ("acme~alice", other):
            wire = await connected(agent.app.kafka_port, "acme")

            async def may_begin(wire: Wire = wire) -> bool:
                await asyncio.sleep(0.1)  # Kafka, too, takes no second login within a second
                answer = await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"))
                return bool(answer.error_code.value == 0)

            await until_answered(may_begin)
            answer = await wire.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{PASSWORD}".encode()))
            outcomes.append(answer.error_code.name)
            wire.close()

    assert outcomes == ["none", "sasl_authentication_failed"]
