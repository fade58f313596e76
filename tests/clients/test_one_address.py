"""Groups of every client behind one address: members reach any agent, share, hand over and die."""

import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import confluent_kafka.admin
import pytest

from tests.clients.conftest import SOON
from tests.clients.members.process import members_of
from tests.clients.members.table import VARIANTS, Variant
from tests.clients.test_groups import PARTITIONS, SESSION_TIMEOUT_MS, Scene, members_join_leave_and_die
from tests.support.balancer import Balancer
from tests.support.java import Java
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

# librdkafka's members play in tests/agent/kafka/forwarding/test_one_address_with_librdkafka.py.
PLAYED = [variant for variant in VARIANTS if not variant.foreign and variant.client != "confluent-kafka"]
_AT_A_TIME = 3
_PLAY_TIMEOUT_S = 480


@pytest.fixture(scope="module")
def behind_one_address(module_directory: Path, balancer: Balancer) -> Iterator[Balancer]:
    """A balancer in front of two agents, which name only the balancer to clients."""
    environment = {**SOON, "TIDELOG_ONE_ADDRESS": balancer.address}
    with Stack(
        StackSettings(environment=HERE, data_dir=module_directory / "stack", agent_environment=environment)
    ) as stack:
        balancer.targets = [(agent.address.host, agent.address.kafka_port) for agent in stack.agents]
        yield balancer


@pytest.fixture(scope="module")
def playing(
    request: pytest.FixtureRequest, java: Java, behind_one_address: Balancer
) -> Iterator[Mapping[str, Future[None]]]:
    """The variants that were selected, side by side, for most of each is waiting; Java's, which take longest,
    first.
    """
    selected = {
        item.callspec.params["variant"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and _is_a_play(item)
    }
    address = behind_one_address.address
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        yield {
            each.name: pool.submit(_play, each, java, address)
            for each in reversed(PLAYED)
            if each in selected
        }
        pool.shutdown(cancel_futures=True)


def _is_a_play(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and item.function is test_members_join_leave_and_die_behind_one_address
    )


def _play(variant: Variant, java: Java, address: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})

    def new_topic(partitions: int = 1, prefix: str = "topic") -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        admin.create_topics([confluent_kafka.admin.NewTopic(name, partitions)])[name].result(60)
        return name

    topic, group = new_topic(PARTITIONS), f"group-{uuid.uuid4().hex[:8]}"
    given = (
        "--group", group, "--topics", topic, "--protocol", variant.protocol, "--strategy", variant.strategy,
        "--session-timeout-ms", str(SESSION_TIMEOUT_MS),
    )  # fmt: skip
    with members_of(variant.command(java), *given) as start:
        members_join_leave_and_die(
            Scene(
                variant=variant,
                topic=topic,
                new_topic=new_topic,
                group=group,
                zone_a=address,
                zone_b=address,
                start=start,
            )
        )


@pytest.mark.timeout(_PLAY_TIMEOUT_S)
@pytest.mark.parametrize("variant", PLAYED, ids=lambda variant: variant.name)
def test_members_join_leave_and_die_behind_one_address(
    variant: Variant, playing: Mapping[str, Future[None]], behind_one_address: Balancer
) -> None:
    playing[variant.name].result(_PLAY_TIMEOUT_S)

    assert all(behind_one_address.connections[target] > 0 for target in behind_one_address.targets)
