"""What one greedy client costs the others. The tests print the measured figures."""

import asyncio
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.agent.read_path.wire import a_list_offsets
from tests.agent.running import Wire
from tests.faults.conftest import create_topic
from tests.support.stack import HERE
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack, StackSettings

PRODUCERS = 4
TOPICS_EACH = 10
MEASURED_S = 8.0
TOPICS_PER_S = 2.0
CONNECTIONS = 12
PIPELINED = 128
FLOOD_S = 15.0
MOST_LINES = 200

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stack(module_directory: Path) -> Iterator[Stack]:
    bounds = {"TIDELOG_MEMBERSHIP_LEASE_S": "10", "TIDELOG_MEMBERSHIP_RENEW_S": "1"}
    with Stack(
        StackSettings(
            environment=HERE,
            data_dir=module_directory / "stack",
            agents=1,
            agent_environment=bounds,
        )
    ) as running:
        yield running


class Writer:
    """A producer that has one record of each of its topics unanswered at a time."""

    def __init__(self, servers: str) -> None:
        self.latencies_s: list[float] = []
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._client = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0}
        )
        self._topics = [create_topic(servers, 1) for _ in range(TOPICS_EACH)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for topic in self._topics:
            self._send(topic)
        while not self._stopping.is_set():
            self._client.poll(0.1)
        self._client.flush(30)

    def _send(self, topic: str) -> None:
        began_s = time.monotonic()

        def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            self.latencies_s.append(time.monotonic() - began_s)
            if error is not None:
                self.failures.append(str(error))
            if not self._stopping.is_set():
                self._send(topic)

        self._client.produce(topic, b"v" * 100, on_delivery=delivered)


@contextmanager
def writers_at_work(stack: Stack) -> Iterator[Callable[[float], float]]:
    """Gives what measures the median latency in seconds, over so many seconds."""
    writers = [Writer(stack.addresses.bootstrap) for _ in range(PRODUCERS)]
    for writer in writers:
        writer.start()

    def median(during_s: float) -> float:
        before = [len(writer.latencies_s) for writer in writers]
        time.sleep(during_s)
        seen = [s for writer, start in zip(writers, before, strict=True) for s in writer.latencies_s[start:]]
        return statistics.median(seen)

    wait_until(lambda: all(len(writer.latencies_s) > 5 * TOPICS_EACH for writer in writers))
    try:
        yield median
    finally:
        for writer in writers:
            writer.stop()
    assert [failure for writer in writers for failure in writer.failures] == []


@contextmanager
def topics_being_made(stack: Stack) -> Iterator[list[str]]:
    admin = confluent_kafka.admin.AdminClient(
        {"bootstrap.servers": stack.addresses.bootstrap, "client.id": "churn"}
    )
    made: list[str] = []
    stopping = threading.Event()

    def make() -> None:
        for number in itertools.count():
            name = f"churn-{time.monotonic_ns()}-{number}"
            admin.create_topics([confluent_kafka.admin.NewTopic(name, 1, 1)])[name].result(40)
            made.append(name)
            if stopping.wait(1 / TOPICS_PER_S):
                return

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        stopping.set()
        thread.join(60)


def test_a_client_that_creates_two_topics_a_second_does_not_slow_those_that_write(stack: Stack) -> None:
    with writers_at_work(stack) as median:
        quiet_s = median(MEASURED_S)
        with topics_being_made(stack) as made:
            busy_s = median(MEASURED_S)

    print(f"ack p50 {quiet_s * 1000:.0f} ms; with {len(made)} topics made meanwhile {busy_s * 1000:.0f} ms")
    assert len(made) >= MEASURED_S * TOPICS_PER_S / 2


async def _flood(port: int, topic: str, answers: list[int], until_s: float) -> None:
    """Keeps `PIPELINED` requests unanswered on one connection."""
    wire = await Wire.connect(port)
    question = a_list_offsets(5, topic, -1)
    sent = [await wire.send(question) for _ in range(PIPELINED)]
    while time.monotonic() < until_s:
        answer = await wire.receive(sent.pop(0))
        answers.append(answer.topics[0].partitions[0].error_code.value)
        sent.append(await wire.send(question))
    wire.close()


def test_a_flood_of_list_offsets_costs_no_lease_and_no_flood_of_log_lines(stack: Stack) -> None:
    [agent] = stack.agents
    topic = create_topic(stack.addresses.bootstrap, 1)
    lines_before = len(agent.log_file.read_text().splitlines())
    answers: list[int] = []

    async def flood() -> None:
        until_s = time.monotonic() + FLOOD_S
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(_flood(agent.address.kafka_port, topic, answers, until_s))

    with writers_at_work(stack) as median:
        quiet_s = median(2.0)
        flooding = threading.Thread(target=lambda: asyncio.run(flood()), daemon=True)
        flooding.start()
        busy_s = median(FLOOD_S - 2.0)
        flooding.join(60)
        assert not flooding.is_alive()

    lines = agent.log_file.read_text().splitlines()[lines_before:]
    refused = sum(code != 0 for code in answers)
    print(
        f"{len(answers) / FLOOD_S:.0f} ListOffsets/s answered, {refused} refused; ack p50 "
        f"{quiet_s * 1000:.0f} ms,"
        f" {busy_s * 1000:.0f} ms meanwhile; {len(lines)} log lines"
    )
    assert len(answers) > CONNECTIONS * PIPELINED
    assert len(lines) < MOST_LINES
    assert not [line for line in lines if "lease" in line.lower()]
