"""The running stack as clients see it: bootstrap servers per zone, fresh topics, and the four clients."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import confluent_kafka.admin
import pytest

from tests.clients.adapters import AioKafka, Client, Confluent, JavaClient, KafkaPython
from tests.clients.foreign import PROGRAMS, Program
from tests.clients.matrix_plugin import Matrix
from tests.support.java import Java
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

NewTopic = Callable[..., str]

# Groups that form, and notice a death, within seconds. No agent dies here: a lease that a busy machine keeps.
SOON = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "60",
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "300",
    "TIDELOG_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
    "TIDELOG_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "8000",
    "TIDELOG_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
}


@pytest.fixture(scope="session")
def running(session_directory: Path) -> Iterator[Stack]:
    """One stack for all these tests: two agents in zones a and b that know each other."""
    with Stack(
        StackSettings(environment=HERE, data_dir=session_directory / "stack", agent_environment=SOON)
    ) as stack:
        for agent in stack.agents:
            _wait_until_all_are_known(agent.address.bootstrap, len(stack.agents))
        yield stack


def _wait_until_all_are_known(servers: str, agents: int) -> None:
    """An agent learns of a newer one when it next renews its lease."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    until = time.monotonic() + 30.0
    while len(admin.list_topics(timeout=30).brokers) < agents:
        assert time.monotonic() < until, f"{servers} does not know {agents} agents"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def zone_a(running: Stack) -> str:
    """The bootstrap server in zone a."""
    return running.agent_in("a").address.bootstrap


@pytest.fixture(scope="session")
def zone_b(running: Stack) -> str:
    """The bootstrap server in zone b."""
    return running.agent_in("b").address.bootstrap


@pytest.fixture(scope="session")
def java_client(java: Java) -> JavaClient:
    """Apache Kafka's own client."""
    return JavaClient(java.compiled(Path(__file__).with_name("LogClient.java")))


@pytest.fixture(scope="session")
def clients(java_client: JavaClient) -> Mapping[str, Client]:
    """All four, by name."""
    found: tuple[Client, ...] = (Confluent(), AioKafka(), KafkaPython(), java_client)
    return {client.name: client for client in found}


@pytest.fixture(scope="session")
def new_topic(zone_a: str) -> NewTopic:
    """Creates a topic of a new name and returns the name."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": zone_a})

    def create(partitions: int = 1, prefix: str = "topic", config: Mapping[str, str] | None = None) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        # Records of these tests are as old as they like.
        settings = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1), **(config or {})}
        asked = confluent_kafka.admin.NewTopic(name, partitions, 1, config=settings)
        admin.create_topics([asked], request_timeout=30)[name].result(60)
        return name

    return create


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, matrix: Matrix) -> Program:
    """The program of a client in another language, built; by its name in `tests/clients/matrix.py`."""
    program = PROGRAMS[request.param]
    program.make()
    matrix.note_version(program.client, program.answer("version")["version"])
    return program
