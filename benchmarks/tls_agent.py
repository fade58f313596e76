"""What TLS costs a whole agent, per GB produced and fetched (`python -m benchmarks.tls_agent`).

One agent has a plain listener and one with TLS. librdkafka produces and fetches through both in turn, so that
the machine's other load is the same for both. Only the agent's CPU counts.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.certificates import Authority
from tidelog.devstack.ports import picked_ports
from tidelog.embedded.postgres import EmbeddedPostgres

_RECORD: Final = random.Random(7).randbytes(100_000)
_RECORDS: Final = 5_000
_GB: Final = _RECORDS * len(_RECORD) / 1e9
_ROUNDS: Final = 3


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


def main() -> None:
    with tempfile.TemporaryDirectory() as name, picked_ports(4) as (plain, tls, http, peer):
        folder = Path(name)
        authority = Authority.make(folder / "ca")
        own = authority.issue()
        postgres = EmbeddedPostgres(folder / "postgres")
        (folder / "store").mkdir()
        settings = {
            "DATABASE_URL": postgres.start(),
            "STORE_URL": (folder / "store").as_uri(),
            "LISTENERS": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}",
            "ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{plain},SSL://localhost:{tls}",
            "TLS_CERTIFICATE_FILE": str(own.certificate),
            "TLS_KEY_FILE": str(own.key),
            "HTTP_PORT": str(http),
            "PEER_PORT": str(peer),
            "LOG_LEVEL": "error",
        }
        environment = os.environ | {f"TIDELOG_{name}": value for name, value in settings.items()}
        subprocess.run([sys.executable, "-m", "tidelog", "migrate"], env=environment, check=True, timeout=120)
        agent = subprocess.Popen([sys.executable, "-m", "tidelog", "agent"], env=environment)
        clients = {
            "plain": {"bootstrap.servers": f"localhost:{plain}"},
            "TLS": {
                "bootstrap.servers": f"localhost:{tls}",
                "security.protocol": "SSL",
                "ssl.ca.location": authority.file,
            },
        }
        try:
            _wait_ready(http)
            for number in range(_ROUNDS):
                for way, configs in clients.items():
                    topic = f"{way}-{number}"
                    spent = [_cpu_s(agent.pid)]
                    for step in (_produce, _fetch):
                        step(configs, topic)
                        spent.append(_cpu_s(agent.pid))
                    produced, fetched = ((after - before) / _GB for before, after in pairwise(spent))
                    print(
                        f"{way:6} produce {produced:5.2f} CPU s/GB, fetch {fetched:5.2f} CPU s/GB", flush=True
                    )
        finally:
            agent.terminate()
            agent.wait(60)
            postgres.stop()


if __name__ == "__main__":
    main()
