"""An agent as a process, on the event loop that it runs on in production, with clients in Java and C that
show certificates.
"""

import os
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.certificates import Authority, Certificate
from tests.support.java import Java
from tests.support.waiting import wait_until
from tidelog.devstack.ports import picked_ports

RECORDS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A running agent, and what its clients need."""

    bootstrap: str
    authority: Authority
    shown: Certificate
    log_file: Path

    def librdkafka(self, shown: Certificate | None) -> dict[str, Any]:
        configs = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.authority.file,
            "log_level": 0,
        }
        if shown is None:
            return configs
        return configs | {
            "ssl.certificate.location": str(shown.certificate),
            "ssl.key.location": str(shown.key),
        }

    def java(self, folder: Path) -> str:
        """Returns a file of configs."""
        keystore, configs = folder / "keystore.pem", folder / "client.properties"
        keystore.write_bytes(self.shown.key.read_bytes() + self.shown.certificate.read_bytes())
        configs.write_text(
            "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
            f"ssl.truststore.location={self.authority.file}\nssl.keystore.location={keystore}\n"
        )
        return str(configs)


@pytest.fixture
def secured(database_url: str, tmp_path: Path) -> Iterator[Secured]:
    authority = Authority.make(tmp_path / "ca")
    own = authority.issue()
    log_file = tmp_path / "agent.log"
    with picked_ports(3) as (kafka, http, peer), log_file.open("wb") as log:
        settings = {
            "DATABASE_URL": database_url,
            "STORE_URL": (tmp_path / "store").as_uri(),
            "LISTENERS": f"OUTSIDE://127.0.0.1:{kafka}",
            "ADVERTISED_LISTENERS": f"OUTSIDE://localhost:{kafka}",
            "LISTENER_SECURITY_PROTOCOL_MAP": "OUTSIDE:SSL",
            "TLS_CERTIFICATE_FILE": str(own.certificate),
            "TLS_KEY_FILE": str(own.key),
            "TLS_CA_FILE": authority.file,
            "TLS_CLIENT_AUTH": "OUTSIDE:required",
            "TLS_RELOAD_S": "0.1",
            "PEER_TLS": "required",
            "HTTP_PORT": str(http),
            "PEER_PORT": str(peer),
            "LINGER_MS": "20",
        }
        (tmp_path / "store").mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "agent"],
            env=os.environ | {f"TIDELOG_{name}": value for name, value in settings.items()},
            stderr=log,
        )
        try:
            wait_until(lambda: is_ready(http), timeout_s=120)
            yield Secured(
                bootstrap=f"localhost:{kafka}",
                authority=authority,
                shown=authority.issue("/CN=alice"),
                log_file=log_file,
            )
        finally:
            process.terminate()
            assert process.wait(60) == 0


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.timeout(300)
def test_java_writes_and_librdkafka_reads(secured: Secured, java: Java, tmp_path: Path) -> None:
    configs = secured.java(tmp_path)
    load = ("--num-records", str(RECORDS), "--record-size", "1000", "--throughput", "-1")
    where = ("--producer-props", f"bootstrap.servers={secured.bootstrap}", "--producer.config", configs)
    printed = java.tool("ProducerPerformance", "--topic", "secured", *load, *where)

    assert f"{RECORDS} records sent" in printed
    asked = ("--bootstrap-server", secured.bootstrap, "--command-config", configs, "--topic", "secured")
    assert f"secured:0:{RECORDS}" in java.tool("GetOffsetShell", *asked)
    assert count_of(secured, "secured") == RECORDS

    with pytest.raises(KafkaException):
        AdminClient(secured.librdkafka(None)).list_topics(timeout=3)
    assert "TLS handshake failed" in secured.log_file.read_text()


def count_of(secured: Secured, topic: str) -> int:
    configs = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({**secured.librdkafka(secured.shown), **configs})
    consumer.subscribe([topic])
    found = 0
    try:
        for _ in range(600):
            found += sum(message.error() is None for message in consumer.consume(5_000, timeout=0.2))
            if found >= RECORDS:
                break
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(300)
def test_tidelogs_own_commands_take_a_file_of_options(secured: Secured, tmp_path: Path) -> None:
    options = tmp_path / "options"
    options.write_text(
        f"# for librdkafka\nsecurity.protocol=SSL\nssl.ca.location = {secured.authority.file}\n"
        f"ssl.certificate.location={secured.shown.certificate}\nssl.key.location={secured.shown.key}\n"
    )
    where = ("--bootstrap", secured.bootstrap, "--client-config-file", str(options))
    run("produce", "mine", *where, said="one\ntwo\n")

    printed = run("consume", "mine", "--from-beginning", "--max-messages", "2", *where)
    assert printed.splitlines()[:2] == ["one", "two"]


def run(command: str, *arguments: str, said: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", command, *arguments],
        input=said, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.timeout(300)
def test_a_session_that_is_resumed_keeps_the_name_of_its_certificate(secured: Secured) -> None:
    host, _, port = secured.bootstrap.rpartition(":")
    context = ssl.create_default_context(cafile=secured.authority.file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(secured.shown.certificate, secured.shown.key)
    session = None
    for is_resumed in (False, True):
        raw = socket.create_connection((host, int(port)), timeout=30)
        with context.wrap_socket(raw, server_hostname=host, session=session) as connection:
            assert connection.session_reused is is_resumed
            connection.sendall(API_VERSIONS)
            assert connection.recv(8)
            session = connection.session


API_VERSIONS = bytes.fromhex("0000000f001200000000000100057465737478")
