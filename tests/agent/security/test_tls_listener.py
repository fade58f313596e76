"""Clients over TLS: a real client, certificates that change, and strangers."""

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from agent.security.listener_settings import ListenerSettings
from tests.agent.running import Running, running
from tests.support.certificates import Authority, Certificate
from tests.support.messages import value_of


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


def tls_settings(certificate: Certificate, **more: Any) -> ListenerSettings:
    return ListenerSettings(
        security_protocol="SSL",
        tls_certificate_file=str(certificate.certificate),
        tls_key_file=str(certificate.key),
        **more,
    )


def client(agent: Running, authority: Authority, shown: Certificate | None = None) -> dict[str, Any]:
    configs = {
        "bootstrap.servers": agent.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "log_level": 0,
    }
    if shown is not None:
        configs |= {
            "ssl.certificate.location": str(shown.certificate),
            "ssl.key.location": str(shown.key),
        }
    return configs


def produce_and_consume(configs: dict[str, Any], topic: str, count: int, size_bytes: int = 10) -> int:
    """Returns how many records came back as they were written."""
    producer = Producer({**configs, "message.max.bytes": 20_000_000})
    for number in range(count):
        producer.produce(topic, f"{number}".encode().ljust(size_bytes, b"x"))
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {**configs, "group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        consumer.subscribe([topic])
        found: set[bytes] = set()
        deadline_s = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline_s:
            found |= {value_of(message) for message in consumer.consume(1000, timeout=0.2)}
        return len(found & {f"{number}".encode().ljust(size_bytes, b"x") for number in range(count)})
    finally:
        consumer.close()


async def test_a_client_produces_and_consumes_over_tls(database_url: str, authority: Authority) -> None:
    async with running(database_url, listener_settings=tls_settings(authority.issue())) as agent:
        configs = client(agent, authority)

        assert await asyncio.to_thread(produce_and_consume, configs, "small", 1_000) == 1_000
        assert await asyncio.to_thread(produce_and_consume, configs, "large", 40, 700_000) == 40
        assert agent.metric("tidelog_tls_handshakes_total", use="kafka", outcome="done") >= 2
