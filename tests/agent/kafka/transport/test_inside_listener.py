"""Clients inside the agents' network use a second listener, and get addresses that they can reach."""

import asyncio
import random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from agent.settings import AgentSettings
from tests.agent.running import running
from tests.support.messages import value_of
from tests.support.waiting import until
from tidelog.devstack.ports import is_free

HOSTS = ("127.0.0.1", "127.0.0.2")
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None}


def a_port_free_on_both() -> int:
    return next(
        port
        for port in iter(lambda: random.randrange(15_000, 31_000), 0)
        if all(is_free(port, host) for host in HOSTS)
    )


async def test_each_listener_names_the_agents_as_its_own_clients_reach_them(database_url: str) -> None:
    inside = a_port_free_on_both()
    common: dict[str, Any] = {"inside_kafka_port": inside, "advertised_host": "localhost"}
    first, second = (
        dict[str, Any](kafka_host=host, peer_host=host, http_host=host, **common) for host in HOSTS
    )
    async with running(database_url, **first) as a, running(database_url, **second) as b:
        await until(lambda: a.agents_seen == 2 and b.agents_seen == 2)

        def named_to(bootstrap: str) -> set[str]:
            admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
            return {
                f"{broker.host}:{broker.port}" for broker in admin.list_topics(timeout=30).brokers.values()
            }

        assert await asyncio.to_thread(named_to, f"{HOSTS[0]}:{inside}") == {
            f"{host}:{inside}" for host in HOSTS
        }
        assert await asyncio.to_thread(named_to, f"{HOSTS[0]}:{a.app.kafka_port}") == {
            f"localhost:{a.app.kafka_port}", f"localhost:{b.app.kafka_port}",
        }  # fmt: skip
        assert await asyncio.to_thread(produce_and_consume, f"{HOSTS[1]}:{inside}") == {
            b"0",
            b"1",
            b"2",
            b"3",
        }


def produce_and_consume(bootstrap: str) -> set[bytes]:
    """Consumes as a member of a group, whose coordinator is one of the agents."""
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in range(4):
        producer.produce("inside", str(number))
    assert producer.flush(60) == 0
    group = {"group.id": "inside", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **group, **QUIET})
    try:
        consumer.subscribe(["inside"])
        found: set[bytes] = set()
        for _ in range(600):
            found |= {
                value_of(message) for message in consumer.consume(4, timeout=0.1) if message.error() is None
            }
            if len(found) == 4:
                break
        return found
    finally:
        consumer.close()


def test_one_address_and_a_second_listener_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="TIDELOG_ONE_ADDRESS"):
        AgentSettings(one_address="balancer:9092", inside_kafka_port=19_092)
