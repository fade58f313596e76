"""Attacks of a client on the memory or time of all others. Each attack is repeated on a new agent.

Printed for each: RSS before and at most, what the agent says it may take, and the longest that an honest
client waited meanwhile.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import httpx
import psutil
import pytest
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from tests.faults.conftest import create_topic
from tests.faults.wire import Batch, Wire, fetch, list_offsets, produce, record
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

Address = tuple[str, int]

MIB = 1 << 20
CONNECTIONS = 4
BOMB_BYTES = 60 * MIB
BOMBS = 200
MESSAGE_TOO_LARGE = 10


def zstd(records: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(records, 19))


BOMB = Batch(attributes=4, records=zstd(record(bytes(BOMB_BYTES)))).encoded()
"""A sound batch of one record."""
TIMED_BOMB = Batch(
    attributes=4, count=2, records=zstd(record(b"") + record(bytes(BOMB_BYTES), delta=1))
).encoded()
"""A batch of two records whose header does not say when they were made."""
AT_MS = Batch().base_timestamp
HONEST = Batch(
    attributes=4, count=9_000, records=zstd(b"".join(record(b"%d" % n * 40, delta=n) for n in range(9_000)))
).encoded()
"""Large enough to be checked beside the event loop."""

pytestmark = pytest.mark.faults


@pytest.fixture
def stack(module_directory: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    name = request.node.name.replace("[", "-").rstrip("]")
    settings = StackSettings(
        environment=HERE,
        data_dir=module_directory / name,
        agents=1,
        agent_environment={"TIDELOG_TELEMETRY_PUSH_INTERVAL_S": "0.1", "TIDELOG_TOPIC_MUTATIONS_PER_S": "0"},
    )
    with Stack(settings) as running:
        yield running


@pytest.fixture
def address(stack: Stack) -> Address:
    kafka = stack.agents[0].address
    return kafka.host, kafka.kafka_port


class _Watched:
    """The largest resident size of an agent, looked at fifty times a second, and the longest wait of a client
    that produces a batch and looks a time up, again and again.
    """

    def __init__(self, stack: Stack, address: Address) -> None:
        agent = stack.agents[0]
        self._process = psutil.Process(agent.pid)
        self._address = address
        self._topic = create_topic(stack.addresses.bootstrap, 1)
        self._closed = threading.Event()
        exposed = httpx.get(f"{agent.address.http_url}/metrics", timeout=30).text.splitlines()
        [bound] = [line.split()[1] for line in exposed if line.startswith("tidelog_memory_bound_bytes ")]
        self.bound_bytes = int(float(bound))
        self.longest_wait_s = 0.0
        self.rounds = 0
        self._go_round(Wire(address))  # what is needed for the first time is there before it is measured
        self.longest_wait_s = 0.0
        self.first_bytes = self.most_bytes = self._process.memory_info().rss

    def run_while(self, attack: Callable[[], None]) -> None:
        with ThreadPoolExecutor(2) as pool:
            watching = pool.submit(self._watch), pool.submit(self._be_honest)
            try:
                attack()
            finally:
                self._closed.set()
            for each in watching:
                each.result(120)
        print(
            f"\nRSS {self.first_bytes >> 20} MiB before, at most {self.most_bytes >> 20} MiB, "
            f"memory_bound {self.bound_bytes >> 20} MiB; the longest of {self.rounds} honest requests took "
            f"{self.longest_wait_s:.2f} s"
        )

    def _watch(self) -> None:
        while not self._closed.wait(0.02):
            self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)

    def _be_honest(self) -> None:
        with Wire(self._address) as wire:
            while not self._closed.is_set():
                self._go_round(wire)

    def _go_round(self, wire: Wire) -> None:
        for asked in (produce(self._topic, [(0, HONEST)]), list_offsets(self._topic, 0, AT_MS)):
            began_s = time.monotonic()
            answer = wire.ask(*asked)
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)
            self.rounds += 1
            topic = answer.responses[0] if hasattr(answer, "responses") else answer.topics[0]
            part = topic.partition_responses[0] if hasattr(answer, "responses") else topic.partitions[0]
            assert part.error_code == 0


def _side_by_side(attack: Callable[[Wire], None], address: Address, connections: int = CONNECTIONS) -> None:
    def run(_: int) -> None:
        with Wire(address, timeout_s=120.0) as wire:
            attack(wire)

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(run, range(connections)))


def test_batches_that_decompress_to_much(stack: Stack, address: Address) -> None:
    topic = create_topic(stack.addresses.bootstrap, BOMBS)

    def attack(wire: Wire) -> None:
        answer = wire.ask(*produce(topic, [(number, BOMB) for number in range(BOMBS)]))
        codes = [part.error_code for part in answer.responses[0].partition_responses]
        assert codes[0] == 0
        assert codes[-1] == MESSAGE_TOO_LARGE

    watched = _Watched(stack, address)
    watched.run_while(lambda: _side_by_side(attack, address))

    assert watched.most_bytes < watched.bound_bytes


def test_times_in_batches_that_decompress_to_much(stack: Stack, address: Address) -> None:
    topic = create_topic(stack.addresses.bootstrap, 16)
    with Wire(address) as wire:
        wire.ask(*produce(topic, [(number, TIMED_BOMB) for number in range(16)]))
    asked_topic = ListOffsetsRequest.ListOffsetsTopic
    partitions = [asked_topic.ListOffsetsPartition(partition_index=n, timestamp=AT_MS) for n in range(16)]

    def attack(wire: Wire) -> None:
        asked = ListOffsetsRequest[5](
            replica_id=-1, isolation_level=0, topics=[asked_topic(name=topic, partitions=partitions)]
        )
        for _ in range(2):
            found = wire.ask(asked, ListOffsetsResponse[5]).topics[0].partitions
            assert {part.offset for part in found} == {0}

    watched = _Watched(stack, address)
    watched.run_while(lambda: _side_by_side(attack, address))

    assert watched.most_bytes < watched.bound_bytes


def test_requests_that_nobody_waits_for(stack: Stack, address: Address) -> None:
    """Their clients hang up: what they asked for ends, and the honest client has the agent for itself."""
    topic = create_topic(stack.addresses.bootstrap, BOMBS)

    def attack() -> None:
        for _ in range(20):
            with Wire(address) as wire:
                wire.send_request(produce(topic, [(number, BOMB) for number in range(BOMBS)])[0])

    watched = _Watched(stack, address)
    watched.run_while(attack)

    assert watched.most_bytes < watched.bound_bytes


def test_partitions_without_number(stack: Stack, address: Address) -> None:
    """Each partition that is read takes a place in the cache of coordinates and in the poll."""
    partitions = 10_000
    topics = [create_topic(stack.addresses.bootstrap, partitions) for _ in range(3)]

    def attack(wire: Wire) -> None:
        for topic in topics:
            request, response = fetch(topic, 0, 0)
            [asked] = request.topics
            [first] = asked.partitions
            asked.partitions = [
                type(first)(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(partitions)
            ]
            wire.ask(request, response)

    watched = _Watched(stack, address)
    watched.run_while(lambda: _side_by_side(attack, address, connections=2))

    assert watched.most_bytes < watched.bound_bytes


def test_batches_that_are_given_the_logs_time(stack: Stack, address: Address) -> None:
    """Their bytes change, so they are copied."""
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(40 * MIB)}
    topic = create_topic(stack.addresses.bootstrap, CONNECTIONS, config)
    large = Batch(records=record(bytes(30 * MIB))).encoded()

    def attack(wire: Wire) -> None:
        for number in range(6):
            answer = wire.ask(*produce(topic, [(number % CONNECTIONS, large)]))
            assert answer.responses[0].partition_responses[0].error_code == 0

    watched = _Watched(stack, address)
    watched.run_while(lambda: _side_by_side(attack, address))

    assert watched.most_bytes < watched.bound_bytes
