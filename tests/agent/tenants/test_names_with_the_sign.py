"""A cluster without tenants works as before, also with names that have a tenant's form."""

import asyncio

import confluent_kafka
import pytest

from tests.agent.running import running
from tests.agent.security.logins.users import produced

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_the_sign_is_an_ordinary_group_without_such_a_tenant(
    database_url: str, protocol: str
) -> None:
    async with running(database_url) as agent:
        await produced(agent.bootstrap, "orders", {})

        def consumed() -> bytes | None:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": agent.bootstrap,
                    "group.id": "my~app",
                    "group.protocol": protocol,
                    "auto.offset.reset": "earliest",
                }
            )
            consumer.subscribe(["orders"])
            try:
                for _ in range(150):
                    message = consumer.poll(0.1)
                    if message is not None and message.error() is None:
                        return message.value()
                return None
            finally:
                consumer.close()

        assert await asyncio.to_thread(consumed) == b"hello"
