"""An agent has several listeners, and each client gets the addresses of the listener that it came to."""

import asyncio
import random
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from agent.security.listener_settings import ListenerSettings
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


def two_listeners(host: str, inside_port: int) -> ListenerSettings:
    return ListenerSettings(
        listeners=f"OUTSIDE://{host}:0,INSIDE://{host}:{inside_port}",
        advertised_listeners=f"INSIDE://{host}:{inside_port}",
        listener_security_protocol_map="OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
    )


def named_to(bootstrap: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    return {f"{broker.host}:{broker.port}" for broker in admin.list_topics(timeout=30).brokers.values()}


async def test_each_listener_names_the_agents_as_its_own_clients_reach_them(database_url: str) -> None:
    inside = a_port_free_on_both()
    async with (
        running(database_url, peer_host=HOSTS[0], listener_settings=two_listeners(HOSTS[0], inside)) as a,
        running(database_url, peer_host=HOSTS[1], listener_settings=two_listeners(HOSTS[1], inside)) as b,
    ):
        await until(lambda: a.agents_seen == 2 and b.agents_seen == 2)

        assert await asyncio.to_thread(named_to, f"{HOSTS[0]}:{inside}") == {
            f"{host}:{inside}" for host in HOSTS
        }
        assert await asyncio.to_thread(named_to, f"{HOSTS[0]}:{a.app.kafka_port}") == {
            f"{HOSTS[0]}:{a.app.kafka_port}", f"{HOSTS[1]}:{b.app.kafka_port}",
        }  # fmt: skip
        assert await asyncio.to_thread(produce_and_consume, f"{HOSTS[1]}:{inside}") == {
            b"0",
            b"1",
            b"2",
            b"3",
        }


async def test_a_client_sees_no_agent_that_lacks_its_listener(database_url: str) -> None:
    inside = a_port_free_on_both()
    only_outside = ListenerSettings(
        listeners=f"OUTSIDE://{HOSTS[1]}:0", listener_security_protocol_map="OUTSIDE:PLAINTEXT"
    )
    async with (
        running(database_url, listener_settings=two_listeners(HOSTS[0], inside)) as a,
        running(database_url, peer_host=HOSTS[1], listener_settings=only_outside) as b,
    ):
        await until(lambda: a.agents_seen == 2 and b.agents_seen == 2)

        assert await asyncio.to_thread(named_to, f"{HOSTS[0]}:{inside}") == {f"{HOSTS[0]}:{inside}"}
        assert len(await asyncio.to_thread(named_to, f"{HOSTS[0]}:{a.app.kafka_port}")) == 2
        assert await asyncio.to_thread(produce, f"{HOSTS[0]}:{inside}", 12) == 0


async def test_an_agent_that_comes_back_to_its_listeners_keeps_its_node_id(database_url: str) -> None:
    inside, outside = a_port_free_on_both(), a_port_free_on_both()
    settings = ListenerSettings(
        listeners=f"OUTSIDE://{HOSTS[0]}:{outside},INSIDE://{HOSTS[0]}:{inside}",
        listener_security_protocol_map="OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
    )
    found = []
    for _ in range(2):
        async with running(database_url, listener_settings=settings) as agent:
            found.append(agent.app._node_id())
    async with running(database_url, listener_settings=two_listeners(HOSTS[0], inside)) as agent:
        other = agent.app._node_id()

    assert found[0] == found[1] != other


def produce(bootstrap: str, partitions: int) -> int:
    """Returns how many records were not acknowledged, of one for each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in range(partitions):
        producer.produce(f"topic-{number}", str(number))
    return producer.flush(60)


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
