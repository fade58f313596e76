"""How each client logs in: one function per client, of the same shape.

Each produces `count` values to partition 0 of a topic, waits `every_ms` after each, and returns what it then
reads of it. It raises `LoginFailed` with the client's own error.
"""

import asyncio
import os
import select
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.clients.foreign import Program, ProgramFailed
from tests.support.certificates import Certificate
from tests.support.java import Java
from tests.support.messages import value_of

DEADLINE_S = 60.0
_MODULES = "org.apache.kafka.common.security"


class LoginFailed(Exception):
    """What the client said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How a client connects, and what it shows. Without a mechanism it does not log in."""

    servers: str
    protocol: str
    authority: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    shown: Certificate | None = None

    def as_arguments(self) -> dict[str, str]:
        """As `tests/clients/go/internal/program` names them."""
        found = {
            "protocol": self.protocol,
            "mechanism": self.mechanism,
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "authority": self.authority if self.protocol.endswith("SSL") else "",
        }
        if self.shown is not None:
            found |= {"certificate": str(self.shown.certificate), "key": str(self.shown.key)}
        return found

    def python_settings(self) -> dict[str, Any]:
        """What aiokafka and kafka-python call alike."""
        found: dict[str, Any] = {"bootstrap_servers": self.servers, "security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=self.authority)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.shown is not None:
                context.load_cert_chain(self.shown.certificate, self.shown.key)
            found["ssl_context"] = context
        if self.mechanism and self.mechanism != "OAUTHBEARER":
            found |= {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        return found | ({"sasl_mechanism": self.mechanism} if self.mechanism else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is done once logged in."""

    topic: str
    count: int = 3
    every_ms: int = 0

    def values(self) -> list[str]:
        return [str(number) for number in range(self.count)]


Login = Callable[[Identity, Work], list[str]]


def by_confluent(identity: Identity, work: Work) -> list[str]:
    errors: list[confluent_kafka.KafkaError] = []
    given = {
        "security.protocol": identity.protocol,
        "sasl.mechanism": identity.mechanism,
        "sasl.username": identity.user,
        "sasl.password": identity.password,
        "ssl.ca.location": identity.authority,
    }
    settings: dict[str, Any] = {name: value for name, value in given.items() if value}
    settings |= {"bootstrap.servers": identity.servers, "error_cb": errors.append, "log_level": 0}
    if identity.token:
        settings["oauth_cb"] = lambda _: (identity.token, time.time() + 300)
    if identity.shown is not None:
        settings["ssl.certificate.location"] = str(identity.shown.certificate)
        settings["ssl.key.location"] = str(identity.shown.key)
    producer = confluent_kafka.Producer(settings)
    for value in work.values():
        producer.produce(work.topic, value)
        until = time.monotonic() + DEADLINE_S
        while producer.flush(0.1):
            # It tries again for as long as a record may take.
            failed = [str(one) for one in errors if one.code() == confluent_kafka.KafkaError._AUTHENTICATION]
            if failed or time.monotonic() > until:
                producer.purge()
                raise LoginFailed(str(failed))
        time.sleep(work.every_ms / 1000)
    consumer = confluent_kafka.Consumer({**settings, "group.id": work.topic, "enable.auto.commit": False})
    try:
        consumer.assign([confluent_kafka.TopicPartition(work.topic, 0, 0)])
        found = consumer.consume(work.count, timeout=DEADLINE_S)
        return [value_of(message).decode() for message in found]
    finally:
        consumer.close()


class _AioToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def by_aiokafka(identity: Identity, work: Work) -> list[str]:
    async def run() -> list[str]:
        settings = identity.python_settings()
        if identity.token:
            settings["sasl_oauth_token_provider"] = _AioToken(identity.token)
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in work.values():
                await producer.send_and_wait(work.topic, value.encode())
                await asyncio.sleep(work.every_ms / 1000)
        consumer = aiokafka.AIOKafkaConsumer(work.topic, auto_offset_reset="earliest", **settings)
        async with consumer:
            return [
                (await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value.decode() for _ in work.values()
            ]

    try:
        return asyncio.run(run())
    except aiokafka.errors.KafkaError as failure:
        raise LoginFailed(repr(failure)) from failure


class _PythonToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def by_kafka_python(identity: Identity, work: Work) -> list[str]:
    settings = identity.python_settings() | {"bootstrap_timeout_ms": 5_000}
    if identity.token:
        settings["sasl_oauth_token_provider"] = _PythonToken(identity.token)
    try:
        producer = kafka.KafkaProducer(**settings)
        try:
            for value in work.values():
                producer.send(work.topic, value.encode()).get(DEADLINE_S)
                time.sleep(work.every_ms / 1000)
        finally:
            producer.close(5)
        consumer = kafka.KafkaConsumer(
            work.topic, auto_offset_reset="earliest", consumer_timeout_ms=int(DEADLINE_S * 1000), **settings
        )
        try:
            return [next(consumer).value.decode() for _ in work.values()]
        finally:
            consumer.close()
    except kafka.errors.KafkaError as failure:
        raise LoginFailed(repr(failure)) from failure


def by_program(program: Program) -> Login:
    """A client of another language."""

    def login(identity: Identity, work: Work) -> list[str]:
        try:
            lines = program.ask(
                "login",
                servers=identity.servers,
                topic=work.topic,
                count=work.count,
                every_ms=work.every_ms,
                security=identity.as_arguments(),
            )
        except ProgramFailed as failure:
            raise LoginFailed(str(failure)) from failure
        return [line["value"] for line in lines]

    return login


class JavaLogins:
    """One process of `ClientLogins.java`, which logs in by one identity after another."""

    def __init__(self, java: Java, folder: Path) -> None:
        self._folder = folder
        self._token = folder / "token.jwt"
        compiled = java.compiled(Path(__file__).with_name("ClientLogins.java"))
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._token.as_uri()}"
        self._process = subprocess.Popen(
            compiled.command("ClientLogins"),
            env={**os.environ, "JAVA_TOOL_OPTIONS": allowed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)

    def login(self, identity: Identity, work: Work) -> list[str]:
        settings = [f"{name}={value}" for name, value in self._settings(identity).items()]
        line = "\t".join([work.topic, str(work.count), str(work.every_ms), *settings])
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        answer = self._answer()
        if answer.startswith("!"):
            raise LoginFailed(answer)
        return answer[1:].split(",")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
            line = self._process.stdout.readline().decode().strip() if ready else ""
            if not ready or self._process.poll() is not None:
                raise LoginFailed(f"no answer in {DEADLINE_S} s")
            if line[:1] in ("=", "!"):
                return line

    def _settings(self, identity: Identity) -> Mapping[str, str]:
        found = {
            "bootstrap.servers": identity.servers,
            "security.protocol": identity.protocol,
            "sasl.mechanism": identity.mechanism or "PLAIN",
            "max.block.ms": "20000",
        }
        if identity.protocol.endswith("SSL"):
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": identity.authority}
        if identity.shown is not None:
            keystore = self._folder / "keystore.pem"
            keystore.write_bytes(identity.shown.key.read_bytes() + identity.shown.certificate.read_bytes())
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
        if identity.mechanism == "OAUTHBEARER":
            self._token.write_text(identity.token)
            handler = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
            found["sasl.jaas.config"] = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
            found["sasl.oauthbearer.token.endpoint.url"] = self._token.as_uri()
            found["sasl.login.callback.handler.class"] = handler
        elif identity.mechanism:
            module = "plain.PlainLoginModule" if identity.mechanism == "PLAIN" else "scram.ScramLoginModule"
            found["sasl.jaas.config"] = (
                f'{_MODULES}.{module} required username="{identity.user}" password="{identity.password}";'
            )
        return found
