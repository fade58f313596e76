"""Bad input gets the protocol's answer, harms no other client, and costs no memory."""

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from kafka import errors
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from tests.faults.bad_batches import GOOD, bad_batches
from tests.faults.conftest import create_topic
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.faults.wire import ConnectionEnded, Wire, fetch, framed, header, list_offsets, produce
from tests.support.seeds import seeds
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

Address = tuple[str, int]

PARTITIONS = 4
BAD_REQUESTS = 10_000
CONNECTIONS = 4
REQUEST_MEMORY_BYTES = 128 << 20
LARGEST_FRAME_BYTES = 16 << 20
ALLOWED_GROWTH_BYTES = REQUEST_MEMORY_BYTES + (64 << 20)
BATCHES = bad_batches()

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stack(module_directory: Path) -> Iterator[Stack]:
    bounds = {
        "TIDELOG_REQUEST_MEMORY_BYTES": str(REQUEST_MEMORY_BYTES),
        "TIDELOG_MAX_REQUEST_BYTES": str(LARGEST_FRAME_BYTES),
        "TIDELOG_RECEIVE_TIMEOUT_S": "5",
        "TIDELOG_AUTO_CREATE_TOPICS": "false",
    }
    settings = StackSettings(environment=HERE, data_dir=module_directory / "stack", agent_environment=bounds)
    with Stack(settings) as running:
        yield running


@pytest.fixture(scope="module")
def topic(stack: Stack) -> str:
    return create_topic(stack.addresses.bootstrap, PARTITIONS)


@contextmanager
def others_go_on(stack: Stack, topic: str, *, most_wait_s: float = 60.0) -> Iterator[None]:
    """Honest clients work all the while, on the same agents; afterwards all is there that was acknowledged to
    them.
    """
    honest_topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
    settings = LoadSettings(servers=stack.addresses.bootstrap, topic=honest_topic, records_per_s=100.0)
    with Load(settings, ledger) as load:
        load.wait_for_acknowledgements(1, 60.0)
        yield
        load.wait_for_acknowledgements(10, most_wait_s)
        load.finish(90.0)
    assert topic != honest_topic


@pytest.mark.parametrize("name", BATCHES)
def test_a_bad_batch_is_refused_for_its_reason_and_its_neighbour_is_taken(
    name: str, address: Address, topic: str
) -> None:
    bad = BATCHES[name]
    with Wire(address) as wire:
        request, response = produce(topic, [(0, bad.data), (1, GOOD.encoded())])

        (answered,) = wire.ask(request, response).responses

    refused, taken = answered.partition_responses
    assert refused.error_code in bad.errors, (name, refused)
    assert refused.base_offset == -1
    assert taken.error_code == 0
    assert taken.base_offset >= 0


def test_what_does_not_exist_is_said_not_to(address: Address, topic: str) -> None:
    unknown = errors.UnknownTopicOrPartitionError.errno
    with Wire(address) as wire:
        for name, partition in (("no-such-topic", 0), (topic, PARTITIONS), (topic, -1), (topic, 2**31 - 1)):
            (answered,) = wire.ask(*produce(name, [(partition, GOOD.encoded())])).responses
            assert answered.partition_responses[0].error_code == unknown
            assert answered.partition_responses[0].base_offset == -1

            (fetched,) = wire.ask(*fetch(name, partition, 0)).responses
            assert fetched.partitions[0].error_code == unknown

            (listed,) = wire.ask(*list_offsets(name, partition, -1)).topics
            assert listed.partitions[0].error_code == unknown
            assert listed.partitions[0].offset == -1


@pytest.mark.parametrize("offset", [-1, 1_000_000, 2**63 - 1, -(2**63)])
def test_an_offset_that_does_not_exist_is_out_of_range(offset: int, address: Address, topic: str) -> None:
    with Wire(address) as wire:
        (fetched,) = wire.ask(*fetch(topic, 0, offset)).responses

    assert fetched.partitions[0].error_code == errors.OffsetOutOfRangeError.errno


@pytest.mark.parametrize("acks", [2, -2, 32_767])
def test_acks_that_do_not_exist_are_refused(acks: int, address: Address, topic: str) -> None:
    with Wire(address) as wire:
        (answered,) = wire.ask(*produce(topic, [(0, GOOD.encoded())], acks=acks)).responses

    assert answered.partition_responses[0].error_code == errors.InvalidRequiredAcksError.errno
    assert answered.partition_responses[0].base_offset == -1


def test_a_newer_client_is_told_which_versions_there_are(address: Address) -> None:
    with Wire(address) as wire:
        wire.send(framed(header(18, 99, 7) + b"\x00\x05tests\x02\x31\x00"))
        answer = wire.answer(ApiVersionsResponse[0])
        assert answer.error_code == errors.UnsupportedVersionError.errno
        assert {key.api_key for key in answer.api_keys} >= {0, 1, 2, 3, 18, 19, 22}

        again = wire.ask(
            ApiVersionsRequest[3](client_software_name="t", client_software_version="1"),
            ApiVersionsResponse[3],
        )
        assert again.error_code == 0


FRAMES: dict[str, bytes] = {
    "negative length": struct.pack(">i", -1),
    "no length": struct.pack(">i", 0),
    "length beyond the limit": struct.pack(">i", LARGEST_FRAME_BYTES + 1),
    "two gibibytes": struct.pack(">i", 2**31 - 1) + b"x" * 1000,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "unknown API": framed(header(999, 0, 1)),
    "negative API": framed(header(-5, 0, 1)),
    "version too new": framed(header(0, 99, 1) + bytes(30)),
    "version too old": framed(header(1, 0, 1) + bytes(30)),
    "negative version": framed(header(3, -1, 1) + bytes(30)),
    "only half a header": framed(header(3, 9, 1)[:9]),
    "client id longer than the frame": framed(struct.pack(">hhih", 3, 9, 1, 30_000) + b"abc"),
    "client id of negative length": framed(struct.pack(">hhih", 3, 9, 1, -77) + b"abc"),
    "body missing": framed(header(0, 9, 1) + b"\x00"),
    "body of ones": framed(header(0, 9, 1) + b"\xff" * 100),
    "array of two billion": framed(
        header(0, 3, 1) + struct.pack(">hhii", -1, -1, 1000, 2**31 - 1) + bytes(50)
    ),
    "array of negative length": framed(header(0, 3, 1) + struct.pack(">hhii", -1, -1, 1000, -9) + bytes(50)),
}


@pytest.mark.parametrize("name", FRAMES)
def test_what_is_no_request_ends_its_connection(name: str, address: Address) -> None:
    with Wire(address) as wire:
        wire.send(FRAMES[name])
        assert wire.is_closed_by_the_agent()


def test_a_frame_never_finished_ends_its_connection_in_time(address: Address) -> None:
    with Wire(address) as wire:
        wire.send(struct.pack(">i", 1000) + b"half")
        assert wire.is_closed_by_the_agent()


def test_frames_announced_and_never_sent_keep_nobody_waiting(
    stack: Stack, address: Address, topic: str
) -> None:
    """Together they announce several times the memory for requests."""
    with others_go_on(stack, topic):
        announced = [Wire(address) for _ in range(40)]
        for wire in announced:
            wire.send(struct.pack(">i", LARGEST_FRAME_BYTES) + b"\x00" * 16)
        with Wire(address) as honest:
            for _ in range(5):
                (answered,) = honest.ask(*produce(topic, [(0, GOOD.encoded())])).responses
                assert answered.partition_responses[0].error_code == 0
        for wire in announced:
            wire.close()


def test_a_client_that_reads_no_answer_keeps_nobody_waiting(
    stack: Stack, address: Address, topic: str
) -> None:
    with others_go_on(stack, topic):
        deaf = socket.create_connection(address, timeout=5)
        deaf.settimeout(0.5)
        request, _ = produce(topic, [(0, GOOD.encoded())])
        request.with_header(correlation_id=1, client_id="deaf")
        encoded = request.encode(framed=True, header=True) * 100
        until = time.monotonic() + 3.0
        try:
            while time.monotonic() < until:
                deaf.sendall(encoded)
        except OSError:
            pass  # the agent stopped reading, or hung up: both are its right
        deaf.close()


@pytest.mark.timeout(600)
def test_ten_thousand_bad_requests_cost_no_memory(stack: Stack, address: Address, topic: str) -> None:
    agent = psutil.Process(stack.agent_in("a").pid)
    with others_go_on(stack, topic), _Peak(agent) as peak, ThreadPoolExecutor(CONNECTIONS) as pool:
        shares = [BAD_REQUESTS // CONNECTIONS] * CONNECTIONS
        answered = list(
            pool.map(lambda share, seed: _misbehave(address, topic, share, seed), shares, seeds(CONNECTIONS))
        )

    assert sum(answered) == BAD_REQUESTS
    print(
        f"RSS {peak.first_bytes >> 20} MiB, at most {peak.most_bytes >> 20} MiB over {BAD_REQUESTS} bad "
        "requests"
    )
    assert peak.most_bytes - peak.first_bytes < ALLOWED_GROWTH_BYTES


class _Peak:
    """The largest resident size while it is open, looked at ten times a second."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.first_bytes = self.most_bytes = process.memory_info().rss

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(5)

    def _watch(self) -> None:
        while not self._closed.wait(0.1):
            self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)


def _misbehave(address: Address, topic: str, requests: int, seed: int) -> int:
    """Sends `requests` bad ones, answered or ended by the agent; returns how many got their due."""
    chance = random.Random(seed)
    wire, due = Wire(address), 0
    for _ in range(requests):
        kind = chance.choices((_bad_batch, _bad_frame, _random_bytes, _bad_fetch), (70, 10, 10, 10))[0]
        try:
            due += kind(wire, topic, chance)
        except ConnectionEnded:
            wire.close()
            wire, due = Wire(address), due + (kind is not _bad_batch and kind is not _bad_fetch)
    wire.close()
    return due


def _bad_batch(wire: Wire, topic: str, chance: random.Random) -> bool:
    name: str = chance.choice(_CHEAP if chance.random() < 0.99 else _BOMBS)
    (answered,) = wire.ask(*produce(topic, [(0, BATCHES[name].data)])).responses
    return answered.partition_responses[0].error_code in BATCHES[name].errors


def _bad_frame(wire: Wire, topic: str, chance: random.Random) -> bool:
    del topic
    wire.send(chance.choice(_ENDING))
    wire.receive()
    return False


def _random_bytes(wire: Wire, topic: str, chance: random.Random) -> bool:
    del topic
    wire.send(b"\x7f" + chance.randbytes(chance.randint(100, 5_000)))
    wire.receive()
    return False


def _bad_fetch(wire: Wire, topic: str, chance: random.Random) -> bool:
    name = chance.choice((topic, "no-such-topic"))
    (fetched,) = wire.ask(*fetch(name, 0, chance.choice((-5, 2**62)))).responses
    return fetched.partitions[0].error_code in (1, 3)


_BOMBS = [name for name in BATCHES if name.endswith("bomb")]
_CHEAP = [name for name in BATCHES if name not in _BOMBS]
_ENDING = [frame for name, frame in FRAMES.items() if name != "two gibibytes"]
