"""aiokafka and kafka-python log in with each password mechanism."""

import asyncio
from collections.abc import AsyncIterator

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors
import pytest
import pytest_asyncio

from agent.security.sasl.settings import SaslSettings
from tests.agent.running import Running, running
from tests.agent.security.logins.users import add_user

pytestmark = pytest.mark.asyncio(loop_scope="module")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    await add_user(module_database_url, "ann", "secret")
    settings = SaslSettings(sasl_mechanisms=",".join(MECHANISMS), sasl_failed_delay_ms=10)
    async with running(module_database_url, sasl_settings=settings) as started:
        yield started


def an_aiokafka_producer(agent: Running, mechanism: str, password: str) -> aiokafka.AIOKafkaProducer:
    return aiokafka.AIOKafkaProducer(
        bootstrap_servers=agent.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="ann",
        sasl_plain_password=password,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_produces_with_the_right_password_alone(agent: Running, mechanism: str) -> None:
    async with an_aiokafka_producer(agent, mechanism, "secret") as producer:
        await producer.send_and_wait("by-aiokafka", b"hello")

    wrong = an_aiokafka_producer(agent, mechanism, "wrong")
    with pytest.raises(aiokafka.errors.KafkaError):
        await wrong.start()
    await wrong.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_kafka_python_produces_with_the_right_password(agent: Running, mechanism: str) -> None:
    def produce() -> int:
        producer = kafka.KafkaProducer(
            bootstrap_servers=agent.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="ann",
            sasl_plain_password="secret",
        )
        try:
            return int(producer.send(f"by-kafka-python-{mechanism}", b"hello").get(30).offset)
        finally:
            producer.close(10)

    assert await asyncio.to_thread(produce) == 0
