"""How well a quota of the cluster holds, and what it costs: `python -m benchmarks.quotas`.

Real producers (librdkafka) write as fast as they may through 1, 2 and 4 agents on loopback, and then through
one of them only. The agents run in this process, and the producers in their own threads.
"""

import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.entities import QuotaKind
from agent.quotas.settings import QuotaSettings
from sequencer.client import Sequencer
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from tests.agent.running import Running, running
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

QUOTA = 1_000_000
WINDOWS_S = (5.0, 20.0)
"""In the first, agents adapt."""
VALUE = bytes(10_000)


async def _measure(database_url: str, agents: int) -> None:
    entered = [running(database_url, f"memory://quotas{agents}") for _ in range(agents)]
    live = [await one.__aenter__() for one in entered]
    try:
        sequencer = await Sequencer.open(database_url, SequencerSettings())
        await asyncio.to_thread(_make_topic, live[0], agents)
        entity = frozenset({("client-id", "measured")})
        await sequencer.client_quotas.alter({entity: {QuotaKind.PRODUCE: QUOTA}}, 100)
        await asyncio.sleep(3)
        phases = [("all agents", live)] + ([("moved to the first", live[:1])] if agents > 1 else [])
        for name, used in phases:
            adapting, settled = [f"{rate / QUOTA:.1%}" for rate in await _rate(used)]
            print(f"{agents} agents, {name}: {adapting} in the first 5 s, then {settled}", flush=True)
        await sequencer.close()
    finally:
        for one in reversed(entered):
            await one.__aexit__(None, None, None)


def _make_topic(agent: Running, agents: int) -> None:
    topic = NewTopic(f"t{agents}", num_partitions=8, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    admin.create_topics([topic])[topic.topic].result(30)


async def _rate(agents: list[Running]) -> list[float]:
    """Returns the bytes per second that arrive, in windows. Requests are a little more than records."""
    stop = threading.Event()
    threads = [
        asyncio.create_task(asyncio.to_thread(_produce, agent.app.kafka_port, stop)) for agent in agents
    ]
    rates = []
    for window_s in WINDOWS_S:
        before, began_s = _received(agents), time.monotonic()
        await asyncio.sleep(window_s)
        rates.append((_received(agents) - before) / (time.monotonic() - began_s))
    stop.set()
    await asyncio.gather(*threads)
    return rates


def _received(agents: list[Running]) -> float:
    return sum(agent.app.metrics.traffic.request_bytes for agent in agents)


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


class _Alone:
    def node_id(self) -> int | None:
        return 1

    def count(self) -> int:
        return 1


def main() -> None:
    for entities in (0, 1, 10_000):
        quotas = ClientQuotas(None, _Alone(), QuotaSettings(), time.monotonic)  # type: ignore[arg-type]
        print(f"{entities} quotas: {_cost_us(quotas, entities):.2f} µs per request", flush=True)
    for agents in map(int, sys.argv[1:] or (1, 2, 4)):
        with tempfile.TemporaryDirectory() as directory:
            server = EmbeddedPostgres(Path(directory) / "data", EmbeddedPostgresSettings(durable=False))
            try:
                url = server.start()
                asyncio.run(migrate(url, MigrationSettings()))
                asyncio.run(_measure(url, agents))
            finally:
                server.stop()


if __name__ == "__main__":
    main()
