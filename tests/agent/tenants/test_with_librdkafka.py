"""librdkafka's clients of two tenants use equal names on one cluster, and never meet."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import confluent_kafka
import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, NewTopic

from tests.agent.running import Running
from tests.agent.security.logins.users import produced
from tests.agent.tenants.two_tenants import TENANTS, login_of, tenants_agent

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with tenants_agent(module_database_url) as started:
        yield started


def an_admin(agent: Running, tenant: str | None) -> AdminClient:
    user = "alice" if tenant is not None else "root"
    return AdminClient({"bootstrap.servers": agent.bootstrap, **login_of(tenant, user)})


def consumed(
    agent: Running, tenant: str, topic: str, group: str, most: int, **more: Any
) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **login_of(tenant),
            **more,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    for _ in range(300):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        if len(found) >= most:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_topics_and_groups_of_equal_names_never_mix(agent: Running, protocol: str) -> None:
    topic, group = f"orders-{protocol}", f"app-{protocol}"
    for tenant in TENANTS:
        await produced(agent.bootstrap, topic, login_of(tenant), value=f"of {tenant}")

    for tenant in TENANTS:
        found = await asyncio.to_thread(
            consumed, agent, tenant, topic, group, 1, **{"group.protocol": protocol}
        )
        assert found == [f"of {tenant}".encode()]

    for tenant in TENANTS:
        admin = an_admin(agent, tenant)
        groups = await asyncio.to_thread(admin.list_consumer_groups().result, 20)
        assert group in {one.group_id for one in groups.valid}
        assert not any("~" in one.group_id for one in groups.valid)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_regular_expression_matches_topics_of_the_tenant_alone(agent: Running, protocol: str) -> None:
    for tenant in TENANTS:
        await produced(agent.bootstrap, f"wild-{protocol}", login_of(tenant), value=f"of {tenant}")

    found = await asyncio.to_thread(
        consumed, agent, "acme", f"^wi.*{protocol}", "wild", 1, **{"group.protocol": protocol}
    )

    assert found == [b"of acme"]


async def test_each_tenant_sees_a_cluster_of_its_own(agent: Running) -> None:
    for tenant in TENANTS:
        await produced(agent.bootstrap, f"only-{tenant}", login_of(tenant))

    seen = {}
    for tenant in TENANTS:
        admin = an_admin(agent, tenant)
        seen[tenant] = await asyncio.to_thread(admin.list_topics, timeout=20)

    only = {tenant: {name for name in one.topics if name.startswith("only-")} for tenant, one in seen.items()}
    assert only == {"acme": {"only-acme"}, "beta": {"only-beta"}}
    assert not any("~" in name for one in seen.values() for name in one.topics)
    assert len({one.cluster_id for one in seen.values()}) == 2


async def test_transactional_ids_of_equal_names_never_fence_each_other(agent: Running) -> None:
    def a_producer(tenant: str) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": agent.bootstrap, "transactional.id": "one", **login_of(tenant)}
        )
        producer.init_transactions(20)
        return producer

    def commit_both() -> None:
        producers = {tenant: a_producer(tenant) for tenant in TENANTS}
        for tenant, producer in producers.items():
            producer.begin_transaction()
            producer.produce("paid", value=f"of {tenant}")
            producer.flush(20)
        for producer in producers.values():
            producer.commit_transaction(20)

    await asyncio.to_thread(commit_both)

    for tenant in TENANTS:
        found = await asyncio.to_thread(consumed, agent, tenant, "paid", "auditors", 1)
        assert found == [f"of {tenant}".encode()]


async def test_an_operator_creates_no_topic_of_a_tenant_that_does_not_exist(agent: Running) -> None:
    admin = an_admin(agent, None)

    created = admin.create_topics([NewTopic("ghost~orders", 1, 1)])["ghost~orders"]

    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_EXCEPTION"):
        await asyncio.to_thread(created.result, 20)
