"""What TLS and logins cost a whole agent and a Kafka broker (`python -m benchmarks.tls_agent`).

Both have a plain listener, one with TLS, and one with TLS and SCRAM-SHA-512 (4,096 iterations). librdkafka
uses them in turn, so that the machine's other load is the same for all. Only the server's CPU counts: per GB
produced and fetched, and per client that connects, logs in, asks for metadata and hangs up. The first round
warms the JVM.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.apache_kafka import apache_kafka
from tests.support.certificates import Authority, Certificate
from tidelog.devstack.ports import picked_ports
from tidelog.embedded.postgres import EmbeddedPostgres

_RECORD: Final = random.Random(7).randbytes(100_000)
_RECORDS: Final = 5_000
_GB: Final = _RECORDS * len(_RECORD) / 1e9
_ROUNDS: Final = 2
_LOGINS: Final = 100
_USER, _PASSWORD = "ann", "secret"
_LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_SSL")


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """A running server. `ports` are by security protocol."""

    name: str
    pid: int
    ports: Mapping[str, int]
    authority: str

    def configs(self, protocol: str) -> dict[str, Any]:
        found = {
            "bootstrap.servers": f"localhost:{self.ports[protocol]}",
            "security.protocol": protocol,
            "ssl.ca.location": self.authority,
        }
        if protocol == "SASL_SSL":
            found |= {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": _USER,
                "sasl.password": _PASSWORD,
            }
        return found

    def add_user(self) -> None:
        keys = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(_USER, keys, _PASSWORD.encode())
        admin = AdminClient(self.configs("PLAINTEXT"))
        admin.alter_user_scram_credentials([wanted])[_USER].result(60)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _produce(configs: Mapping[str, Any], topic: str) -> None:
    producer = Producer({**configs, "batch.size": 1_000_000, "linger.ms": 20, "enable.idempotence": True})
    for _ in range(_RECORDS):
        while True:
            try:
                producer.produce(topic, _RECORD, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def _fetch(configs: Mapping[str, Any], topic: str) -> None:
    consumer = Consumer({**configs, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < _RECORDS:
        found += len(consumer.consume(500, timeout=1.0))
    consumer.close()


def _wait_ready(port: int) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError("the agent is not ready")


def _log_in(configs: Mapping[str, Any]) -> None:
    """A client connects, logs in, asks for the brokers, and hangs up."""
    for _ in range(_LOGINS):
        AdminClient({**configs, "enable.metrics.push": False}).list_topics("none", timeout=30)


def _addresses(host: str, ports: Mapping[str, int]) -> str:
    return ",".join(f"{protocol}://{host}:{port}" for protocol, port in ports.items())


@contextmanager
def _tidelog(folder: Path, authority: Authority, own: Certificate) -> Iterator[_System]:
    with picked_ports(len(_LISTENERS) + 2) as (http, peer, *picked):
        ports = dict(zip(_LISTENERS, picked, strict=True))
        postgres = EmbeddedPostgres(folder / "postgres")
        (folder / "store").mkdir()
        settings = {
            "DATABASE_URL": postgres.start(),
            "STORE_URL": (folder / "store").as_uri(),
            "LISTENERS": _addresses("127.0.0.1", ports),
            "ADVERTISED_LISTENERS": _addresses("localhost", ports),
            "TLS_CERTIFICATE_FILE": str(own.certificate),
            "TLS_KEY_FILE": str(own.key),
            "SASL_MECHANISMS": "SCRAM-SHA-512",
            "HTTP_PORT": str(http),
            "PEER_PORT": str(peer),
            "LOG_LEVEL": "error",
        }
        environment = os.environ | {f"TIDELOG_{name}": value for name, value in settings.items()}
        subprocess.run([sys.executable, "-m", "tidelog", "migrate"], env=environment, check=True, timeout=120)
        agent = subprocess.Popen([sys.executable, "-m", "tidelog", "agent"], env=environment)
        try:
            _wait_ready(http)
            yield _System(name="Tidelog", pid=agent.pid, ports=ports, authority=authority.file)
        finally:
            agent.terminate()
            agent.wait(60)
            postgres.stop()


@contextmanager
def _kafka(folder: Path, authority: Authority, own: Certificate) -> Iterator[_System]:
    keystore = folder / "keystore.pem"
    keystore.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    with picked_ports(len(_LISTENERS) + 1) as (controller, *picked):
        ports = dict(zip(_LISTENERS, picked, strict=True))
        settings = {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{_addresses('127.0.0.1', ports)},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": _addresses("localhost", ports),
            "listener.security.protocol.map": ",".join(
                [*(f"{protocol}:{protocol}" for protocol in _LISTENERS), "CONTROLLER:PLAINTEXT"]
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
        with apache_kafka(folder / "kafka", settings, port=ports["PLAINTEXT"]) as broker:
            yield _System(name="Kafka", pid=broker.pid, ports=ports, authority=authority.file)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as started:
        folder = Path(name)
        authority = Authority.make(folder / "ca")
        own = authority.issue()
        systems = [started.enter_context(start(folder, authority, own)) for start in (_tidelog, _kafka)]
        for system in systems:
            system.add_user()
        for number in range(_ROUNDS):
            for system in systems:
                for protocol in ("PLAINTEXT", "SSL"):
                    configs, topic = system.configs(protocol), f"{protocol}-{number}"
                    spent = [_cpu_s(system.pid)]
                    for step in (_produce, _fetch):
                        step(configs, topic)
                        spent.append(_cpu_s(system.pid))
                    produced, fetched = ((after - before) / _GB for before, after in pairwise(spent))
                    print(
                        f"{number} {system.name:8} {protocol:10} produce {produced:5.2f} CPU s/GB, "
                        f"fetch {fetched:5.2f} CPU s/GB",
                        flush=True,
                    )
            for system in systems:
                for protocol in _LISTENERS:
                    cpu_s, began = _cpu_s(system.pid), time.monotonic()
                    _log_in(system.configs(protocol))
                    per_login_ms = (_cpu_s(system.pid) - cpu_s) / _LOGINS * 1000
                    per_s = _LOGINS / (time.monotonic() - began)
                    print(
                        f"{number} {system.name:8} {protocol:10} connection {per_login_ms:5.2f} CPU ms, "
                        f"{per_s:4.0f}/s by one client after another",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
