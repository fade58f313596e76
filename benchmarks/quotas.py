"""How well a quota of the cluster holds, and what it costs: `python -m benchmarks.quotas`.

Real producers (librdkafka) write as fast as they may through 1, 2 and 4 agents on loopback, and then through
one of them only. Each agent is a process, and the producers are threads of this one.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.entities import QuotaKind
from agent.quotas.settings import QuotaSettings
from sequencer.client import Sequencer
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from tidelog.devstack.ports import picked_ports
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

QUOTA = 1_000_000
REPORTS = 200
WINDOWS_S = (1.0,) * 8 + (12.0,)
_METRIC = "tidelog_request_bytes_total "
VALUE = bytes(10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    process: subprocess.Popen[bytes]
    kafka_port: int
    http_port: int

    def received(self) -> float:
        """Returns the bytes of all requests."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=10) as answer:
            [line] = [one for one in answer.read().decode().splitlines() if one.startswith(_METRIC)]
        return float(line.split()[1])


def _started(environment: dict[str, str], ports: Sequence[int]) -> Agent:
    kafka_port, http_port, peer_port = ports
    own = {
        "TIDELOG_KAFKA_PORT": str(kafka_port),
        "TIDELOG_HTTP_PORT": str(http_port),
        "TIDELOG_PEER_PORT": str(peer_port),
    }
    process = subprocess.Popen([sys.executable, "-m", "tidelog", "agent"], env=environment | own)
    return Agent(process=process, kafka_port=kafka_port, http_port=http_port)


def _wait_ready(agent: Agent) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{agent.http_port}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the agent is not ready")


def _measure(database_url: str, folder: Path, count: int) -> None:
    environment = os.environ | {
        "TIDELOG_DATABASE_URL": database_url,
        "TIDELOG_STORE_URL": folder.as_uri(),
        "TIDELOG_LOG_LEVEL": "error",
    }
    with picked_ports(3 * count) as ports:
        agents = [_started(environment, (*ports[3 * n : 3 * n + 3],)) for n in range(count)]
        try:
            for agent in agents:
                _wait_ready(agent)
            time.sleep(3)  # until all see each other
            _make_topic(agents[0])
            asyncio.run(_set_quota(database_url))
            time.sleep(3)
            phases = [("all agents", agents)]
            if count > 1:
                phases += [("moved to the first", agents[:1]), ("moved to the last", agents[-1:])]
            for name, used in phases:
                rates = [rate / QUOTA for rate in _rates(used)]
                early = " ".join(f"{rate:.0%}" for rate in rates[:-1])
                print(f"{count} agents, {name}: {rates[-1]:.1%} of the quota; before: {early}", flush=True)
        finally:
            for agent in agents:
                agent.process.terminate()
            for agent in agents:
                agent.process.wait(60)


def _make_topic(agent: Agent) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{agent.kafka_port}"})
    topic = NewTopic("t", num_partitions=8, replication_factor=1)
    admin.create_topics([topic])[topic.topic].result(30)


async def _set_quota(database_url: str) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    entity = frozenset({("client-id", "measured")})
    await sequencer.client_quotas.alter({entity: {QuotaKind.PRODUCE: QUOTA}}, 100)
    await sequencer.close()


def _rates(agents: list[Agent]) -> list[float]:
    """Returns the bytes per second that arrive, in windows. Requests are a little more than records."""
    stop = threading.Event()
    threads = [threading.Thread(target=_produce, args=(agent.kafka_port, stop)) for agent in agents]
    for thread in threads:
        thread.start()
    rates = []
    for window_s in WINDOWS_S:
        before, began_s = sum(agent.received() for agent in agents), time.monotonic()
        time.sleep(window_s)
        passed_s = time.monotonic() - began_s
        rates.append((sum(agent.received() for agent in agents) - before) / passed_s)
    stop.set()
    for thread in threads:
        thread.join()
    return rates


def _produce(port: int, stop: threading.Event) -> None:
    """Writes to the partitions that this agent leads, as fast as the quota lets it."""
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": "measured",
            "linger.ms": 20,
            "batch.size": 50_000,
            "queue.buffering.max.messages": 100,
        }
    )
    found = producer.list_topics(timeout=30)
    [topic] = [one for name, one in found.topics.items() if name.startswith("t")]
    led = [number for number, one in topic.partitions.items() if found.brokers[one.leader].port == port] or [
        0
    ]
    count = 0
    while not stop.is_set():
        try:
            producer.produce(topic.topic, VALUE, partition=led[count % len(led)])
            count += 1
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.purge()


def _cost_us(quotas: ClientQuotas, entities: int) -> float:
    quotas._take({frozenset({("user", f"u{n}")}): {"producer_byte_rate": 1e15} for n in range(entities)})
    began_s, calls = time.perf_counter(), 200_000
    for _ in range(calls):
        if quotas.is_on:
            quotas.charge(QuotaKind.PRODUCE, "u0", "c", 1_000)
            quotas.pause_s(QuotaKind.REQUEST, "u0", "c")
    return (time.perf_counter() - began_s) / calls * 1e6


async def _report_ms(database_url: str, clients: int, agents_of_each: int, reported: int) -> float:
    """Returns the time of one agent's report, if each client is known at this many agents."""
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    keys = [number.to_bytes(16) for number in range(clients)]
    for node_id in range(agents_of_each):
        for begin in range(0, clients, 10_000):
            wanted = dict.fromkeys(keys[begin : begin + 10_000], 0.5)
            await sequencer.quota_use.report(1 + node_id, wanted, 3_600)
    spent_ms = []
    for round_ in range(REPORTS):
        wanted = {keys[(round_ * reported + n) % clients]: 0.7 for n in range(reported)}
        began_s = time.perf_counter()
        await sequencer.quota_use.report(1, wanted, 3_600)
        spent_ms.append(1e3 * (time.perf_counter() - began_s))
    await sequencer.close()
    return statistics.median(spent_ms)


class _Alone:
    def node_id(self) -> int | None:
        return 1

    def count(self) -> int:
        return 1


def main() -> None:
    for entities in (0, 1, 10_000):
        quotas = ClientQuotas(None, _Alone(), QuotaSettings(), time.monotonic)  # type: ignore[arg-type]
        print(f"{entities} quotas: {_cost_us(quotas, entities):.2f} µs per request", flush=True)
    for clients, of_each, reported in ((100_000, 1, 5), (100_000, 1, 5_000), (5, 1_000, 5)):
        with _postgres() as (url, _):
            spent_ms = asyncio.run(_report_ms(url, clients, of_each, reported))
        known = f"{clients} clients at {of_each} agents each"
        print(f"{known}: a report of {reported} takes {spent_ms:.1f} ms", flush=True)
    for agents in map(int, sys.argv[1:] or (1, 2, 4)):
        with _postgres() as (url, folder):
            (folder / "store").mkdir()
            _measure(url, folder / "store", agents)


@contextmanager
def _postgres() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory) / "data", EmbeddedPostgresSettings(durable=False))
        try:
            url = server.start()
            asyncio.run(migrate(url, MigrationSettings()))
            yield url, Path(directory)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
