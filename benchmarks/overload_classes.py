"""Whether interactive traffic stays quick in overload: `python -m benchmarks.overload_classes [ROUNDS]`.

One agent on loopback writes to a real S3 endpoint behind a link of `BANDWIDTH` (`distant_store.py`). An
interactive producer sends a record every 50 ms, and a consumer of its topic notes when it comes. In turn,
this happens alone and with bulk producers whose topic is marked bulk; in the end, also with the same
producers and no mark. They write as fast as they may, from a process of their own, and a bulk consumer reads
the bulk topic from its beginning.

Prints for each phase p50 and p99 of acknowledgement and delivery, and the bytes per second that were
uploaded, and in the end the medians. The offered load of bulk is what the same producers get committed by
an agent without the link.
"""

import multiprocessing
import os
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.distant_store import distant
from benchmarks.endpoints import Endpoint
from benchmarks.quotas import Agent, _postgres, _started, _wait_ready
from tidelog.devstack.ports import picked_ports
from tidelog.embedded.s3_endpoint import S3Endpoint

BANDWIDTH = 2_000_000
SEGMENT_BYTES = 1 << 18
BULK_ANSWER_BYTES = 1 << 18
"""The link and these are a 32nd of 64 MB/s and of the defaults: the machine must have time left."""
_QUIET = {"log_level": 3, "enable.metrics.push": False}
DELAY_MS = 20.0
PHASE_S = 8.0
SETTLE_S = 3.0
PACE_S = 0.05
PRODUCERS = 4
VALUE = os.urandom(50_000)
SMALL = os.urandom(200)
_BUCKET = "overload"
_UPLOADED = "tidelog_put_bytes_total "
_REST_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a phase showed, in seconds and bytes per second."""

    acked_s: Sequence[float]
    delivered_s: Sequence[float]
    failed: int
    bulk_per_s: float

    @property
    def p99_s(self) -> tuple[float, float]:
        return percentile(self.acked_s, 0.99), percentile(self.delivered_s, 0.99)

    def line(self) -> str:
        acked, delivered = (
            " / ".join(f"{1000 * percentile(times, share):.0f}" for share in (0.5, 0.99))
            for times in (self.acked_s, self.delivered_s)
        )
        return (
            f"acknowledged p50 / p99 {acked} ms, delivered {delivered} ms, {len(self.acked_s)} records, "
            f"{self.failed} failed; bulk {self.bulk_per_s / 1e6:.2f} MB/s"
        )


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("inf")


# --- bulk, in a separate process


def _bulk(port: int, topic: str, stop: Any, acked: Any) -> None:
    threads = [
        threading.Thread(target=_produce_bulk, args=(port, topic, n, stop, acked)) for n in range(PRODUCERS)
    ]
    threads.append(threading.Thread(target=_consume_bulk, args=(port, topic, stop)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _produce_bulk(port: int, topic: str, partition: int, stop: Any, acked: Any) -> None:
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": f"bulk-{partition}",
            "linger.ms": 5,
            **_QUIET,
            "queue.buffering.max.messages": 40,
        }
    )

    def noted(error: object, _: Message) -> None:
        if error is None:
            with acked.get_lock():
                acked.value += len(VALUE)

    while not stop.is_set():
        try:
            producer.produce(topic, VALUE, partition=partition, on_delivery=noted)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.purge()
    producer.poll(0.1)


def _consume_bulk(port: int, topic: str, stop: Any) -> None:
    """Reads the topic from its beginning, again and again."""
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "bulk", "client.id": "bulk", **_QUIET}
    )
    while not stop.is_set():
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PRODUCERS)])
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s and not stop.is_set():
            consumer.consume(20, 0.1)
    consumer.close()


@contextmanager
def _load(agent: Agent, topic: str | None) -> Iterator[Any]:
    """The bytes that bulk got committed so far. No topic: there is no bulk."""
    context = multiprocessing.get_context("spawn")
    stop, acked = context.Event(), context.Value("q", 0)
    process = context.Process(target=_bulk, args=(agent.kafka_port, topic, stop, acked))
    if topic is not None:
        process.start()
    try:
        until_s = time.monotonic() + 60
        while topic is not None and not acked.value and time.monotonic() < until_s:
            time.sleep(0.1)
        yield acked
    finally:
        stop.set()
        if topic is not None:
            process.join(30)


# --- interactive


def _measured(agent: Agent, topic: str | None, bulk_topic: str | None) -> Seen:
    """One phase. What comes while it settles does not count. No topic: there is no interactive traffic."""
    acked_s: list[float] = []
    delivered_s: list[float] = []
    failed = 0
    stop = threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{agent.kafka_port}",
            "client.id": "interactive",
            "linger.ms": 0,
            **_QUIET,
        }
    )
    reader = threading.Thread(target=_consume, args=(agent.kafka_port, topic, stop, delivered_s))
    if topic is not None:
        reader.start()
    with _load(agent, bulk_topic):
        settled_s = time.monotonic() + SETTLE_S

        def noted(sent_s: float) -> Any:
            def on_delivery(error: object, _: Message) -> None:
                nonlocal failed
                if sent_s >= settled_s:
                    failed += error is not None
                    if error is None:
                        acked_s.append(time.monotonic() - sent_s)

            return on_delivery

        next_s, before = time.monotonic(), None
        while next_s < settled_s + PHASE_S:
            producer.poll(max(0.0, next_s - time.monotonic()))
            now_s = time.monotonic()
            if now_s < next_s:
                continue
            if before is None and now_s >= settled_s:
                before, delivered_s[:] = _uploaded(agent), []
            value = f"{now_s} ".encode() + SMALL
            if topic is not None:
                producer.produce(topic, value, on_delivery=noted(now_s))
            next_s += PACE_S
        bulk_per_s = 0.0 if bulk_topic is None else (_uploaded(agent) - (before or 0.0)) / PHASE_S
        producer.flush(30)
    stop.set()
    if topic is not None:
        reader.join()
    return Seen(acked_s=acked_s, delivered_s=delivered_s, failed=failed, bulk_per_s=bulk_per_s)


def _uploaded(agent: Agent) -> float:
    """Returns the bytes of all segments that were uploaded."""
    with urllib.request.urlopen(f"http://127.0.0.1:{agent.http_port}/metrics", timeout=10) as answer:
        [line] = [one for one in answer.read().decode().splitlines() if one.startswith(_UPLOADED)]
    return float(line.split()[1])


def _consume(port: int, topic: str, stop: threading.Event, delivered_s: list[float]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "interactive",
            "client.id": "interactive",
            **_QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, 0, -1)])
    while not stop.is_set():
        message = consumer.poll(0.05)
        value = None if message is None or message.error() else message.value()
        if value is not None:
            delivered_s.append(time.monotonic() - float(value.split(b" ", 1)[0]))
    consumer.close()


# --- the run


@contextmanager
def _agent(database_url: str, endpoint: Endpoint) -> Iterator[Agent]:
    environment = os.environ | {
        "TIDELOG_DATABASE_URL": database_url,
        "TIDELOG_LOG_LEVEL": "error",
        "TIDELOG_REQUEST_MEMORY_BYTES": "8000000",
        "TIDELOG_MAX_REQUEST_BYTES": "2000000",
        "TIDELOG_BULK_ANSWER_BYTES": str(BULK_ANSWER_BYTES),
        "TIDELOG_SEGMENT_SIZE_BYTES": str(SEGMENT_BYTES),
        "TIDELOG_LINGER_MS": os.environ.get("TIDELOG_LINGER_MS", "20"),
        **endpoint.as_environment(),
    }
    with picked_ports(3) as ports:
        agent = _started(environment, ports)
        try:
            _wait_ready(agent)
            yield agent
        finally:
            agent.process.terminate()
            agent.process.wait(60)


def _make_topics(agent: Agent) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{agent.kafka_port}"})
    topics = [
        NewTopic("soon", 1, 1, config={"tidelog.priority": "interactive"}),
        NewTopic("plain", 1, 1),
        NewTopic("bulk", PRODUCERS, 1, config={"tidelog.priority": "bulk"}),
        NewTopic("unmarked", PRODUCERS, 1),
    ]
    for made in admin.create_topics(topics).values():
        made.result(30)


def _offered(agent: Agent) -> float:
    """Returns the bytes per second that the same producers write where the link does not bound them."""
    with _load(agent, "bulk") as acked:
        time.sleep(4)
        before = acked.value
        time.sleep(5)
        return float(acked.value - before) / 5


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    seen: dict[str, list[Seen]] = {}
    with _postgres() as (url, folder):
        (folder / "s3" / "buckets" / _BUCKET).mkdir(parents=True)
        with S3Endpoint.start(folder / "s3") as server:
            near = Endpoint(
                name="S3",
                store_url=server.store_url(_BUCKET),
                access_key=server.access_key,
                secret_key=server.secret_key,
                pid=0,
            )
            with _agent(url, near) as agent:
                _make_topics(agent)
                offered = _offered(agent)
            print(
                f"bulk offers {offered / 1e6:.1f} MB/s, {offered / BANDWIDTH:.1f} times the link", flush=True
            )
            with distant(near, DELAY_MS, folder, BANDWIDTH) as far, _agent(url, far) as agent:
                phases: list[tuple[str, str | None, str | None]] = [
                    ("idle", "soon", None),
                    ("bulk, marked", "soon", "bulk"),
                ] * rounds
                phases += [("bulk alone, marked", None, "bulk"), ("bulk, not marked", "plain", "unmarked")]
                for name, topic, bulk_topic in phases:
                    found = _measured(agent, topic, bulk_topic)
                    seen.setdefault(name, []).append(found)
                    print(f"{name}: {found.line()}", flush=True)
                    time.sleep(_REST_S if bulk_topic else 0.0)  # what is left is uploaded
    _print_medians(seen)


def _print_medians(seen: dict[str, list[Seen]]) -> None:
    medians = {
        name: tuple(statistics.median(found.p99_s[which] for found in of_phase) for which in (0, 1))
        for name, of_phase in seen.items()
    }
    idle = medians["idle"]
    for name, (acked_s, delivered_s) in medians.items():
        bulk = statistics.median(found.bulk_per_s for found in seen[name])
        if not seen[name][0].acked_s:
            print(f"{name}: bulk {bulk / 1e6:.2f} MB/s")
            continue
        print(
            f"{name}: median p99 {1000 * acked_s:.0f} ms acknowledged ({acked_s / idle[0]:.2f} times idle), "
            f"{1000 * delivered_s:.0f} ms delivered ({delivered_s / idle[1]:.2f} times idle); "
            f"bulk {bulk / 1e6:.2f} MB/s"
        )


if __name__ == "__main__":
    main()
