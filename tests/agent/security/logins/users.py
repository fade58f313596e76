"""Users of tests, and librdkafka clients that log in."""

import asyncio
import secrets
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from agent.security.sasl import scram
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.credentials import CredentialKey, ScramKeys, ScramMechanism
from tests.support.secret_watch import watch


def keys_for(mechanism: ScramMechanism, password: str, iterations: int = 4_096) -> ScramKeys:
    salt = scram.a_salt(secrets.token_bytes(64))
    return scram.keys_of(
        mechanism, scram.salted_password(mechanism, password, salt, iterations), salt, iterations
    )


async def add_user(
    database_url: str,
    user: str,
    password: str,
    *mechanisms: ScramMechanism,
) -> None:
    """By default with both mechanisms."""
    watch(password)
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        given = [(CredentialKey(user, one), keys_for(one, password)) for one in mechanisms or ScramMechanism]
        assert not await sequencer.user_credentials.alter(given)
    finally:
        await sequencer.close()


async def remove_user(database_url: str, user: str) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        found = (await sequencer.user_credentials.of([user]))[user]
        assert not await sequencer.user_credentials.alter((), [one.key for one in found])
    finally:
        await sequencer.close()


def as_user(mechanism: str, user: str, password: str) -> dict[str, Any]:
    """Returns librdkafka's settings."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


async def produced(bootstrap: str, topic: str, login: dict[str, Any], value: str = "hello") -> None:
    """Produces a record. Raises KafkaException if it is not delivered."""

    def produce() -> None:
        failures: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.timeout.ms": 20_000,
                "reconnect.backoff.max.ms": 200,
                **login,
            }
        )
        producer.produce(
            topic, value=value, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        assert producer.flush(30) == 0
        if failures:
            raise confluent_kafka.KafkaException(failures[0])

    await asyncio.to_thread(produce)


async def login_error(bootstrap: str, login: dict[str, Any], *, until: str) -> str:
    """Returns the first error of the client that has this text."""

    def ask() -> str:
        found: list[str] = []

        def heard(error: Any) -> None:
            found.append(str(error))

        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "error_cb": heard, **login}
        client = AdminClient(settings)
        for _ in range(300):
            client.poll(0.1)
            for text in found:
                if until in text:
                    return text
        raise AssertionError(f"no error with {until!r} in {found}")

    return await asyncio.to_thread(ask)
