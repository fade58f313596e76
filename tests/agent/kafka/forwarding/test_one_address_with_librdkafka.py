"""Two agents behind one address, as librdkafka sees them: nothing is different, and an agent's death is a
pause.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from tests.support.balancer import Balancer
from tests.support.messages import place_of, value_of
from tests.support.stack import HERE
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack, StackSettings

PARTITIONS = 6
PATIENCE_S = 90.0
SOON = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "3",
    "TIDELOG_MEMBERSHIP_RENEW_S": "0.3",
    "TIDELOG_MEMBERSHIP_MARGIN_S": "0.5",
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
    "TIDELOG_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
}


@pytest.fixture(scope="module")
def stack(module_directory: Path, balancer: Balancer) -> Iterator[Stack]:
    """Two agents that name only the balancer to clients."""
    environment = {**SOON, "TIDELOG_ONE_ADDRESS": balancer.address}
    with Stack(
        StackSettings(environment=HERE, data_dir=module_directory / "stack", agent_environment=environment)
    ) as started:
        balancer.targets = [(agent.address.host, agent.address.kafka_port) for agent in started.agents]
        yield started


class Group:
    """Consumers of one group that note what they read. The test's thread polls them in turn."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, members: int) -> None:
        self.read: dict[tuple[int, int], bytes] = {}
        self._open = ExitStack()
        self.members = [self._member(bootstrap, topic, protocol, number) for number in range(members)]

    def _member(self, bootstrap: str, topic: str, protocol: str, number: int) -> Consumer:
        settings = {
            "bootstrap.servers": bootstrap, "group.id": f"group-{protocol}", "group.protocol": protocol,
            "client.id": f"member-{number}", "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "log_level": 0, "error_cb": lambda _: None,
        }  # fmt: skip
        if protocol == "classic":
            settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
        member = Consumer(settings)
        self._open.callback(member.close)
        member.subscribe([topic])
        return member

    def read_all(self, sent: set[bytes]) -> None:
        """Polls until members that share the partitions have read and committed all of `sent`."""
        ends = [len(sent) // PARTITIONS] * PARTITIONS
        self.poll_until(
            lambda: set(self.read.values()) == sent and self.shares_all() and self.positions() == ends
        )
        self.commit()

    def poll_until(self, condition: Callable[[], bool]) -> None:
        """Poll all members until the condition holds, and commit what was read."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"{len(self.read)} records read; {self.assigned()}"
            for member in self.members:
                for message in member.consume(100, timeout=0.05):
                    if message.error() is None:
                        self.read[place_of(message)] = value_of(message)

    def assigned(self) -> list[list[int]]:
        return [sorted(place.partition for place in member.assignment()) for member in self.members]

    def positions(self) -> list[int]:
        """By partition, at its present owner: if a partition changes hands before a commit, both read it."""
        found = [place for member in self.members for place in member.position(member.assignment())]
        return [place.offset for place in sorted(found, key=lambda place: place.partition)]

    def shares_all(self) -> bool:
        assigned = self.assigned()
        return all(assigned) and sorted(itertools.chain(*assigned)) == list(range(PARTITIONS))

    def commit(self) -> None:
        """Tries until each member could commit: a coordinator that has just died makes it try again."""
        for member in self.members:
            until = time.monotonic() + PATIENCE_S
            while (error := _commit(member)) is not None:
                assert time.monotonic() < until, str(error)
                self.poll_until(lambda: True)
                member.poll(0.2)

    def close(self) -> None:
        self._open.close()


def _commit(member: Consumer) -> KafkaError | None:
    try:
        member.commit(asynchronous=False)
    except KafkaException as failed:
        error: KafkaError = failed.args[0]
        return None if error.code() == KafkaError._NO_OFFSET else error
    return None


def produce(bootstrap: str, topic: str, values: Iterator[int]) -> set[bytes]:
    """Returns once all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    sent = set()
    failures = []
    for value in values:
        text = b"%d" % value
        producer.produce(
            topic, text, partition=value % PARTITIONS, on_delivery=lambda error, _: failures.append(error)
        )
        sent.add(text)
    assert producer.flush(PATIENCE_S) == 0
    assert [error for error in failures if error is not None] == []
    return sent


def forwarded(stack: Stack) -> float:
    total = 0.0
    for agent in stack.agents:
        text = httpx.get(f"{agent.address.http_url}/metrics", timeout=60).text
        lines = [
            line
            for line in text.splitlines()
            if line.startswith('tidelog_forwarded_total{outcome="answered"}')
        ]
        total += sum(float(line.rsplit(" ", 1)[1]) for line in lines)
    return total


def some_is_forwarded(stack: Stack, balancer: Balancer, protocol: str) -> bool:
    """Asks the group again: until now, by chance, all requests may have reached its coordinator."""
    balancer.skip_a_turn()
    committed(balancer.address, protocol)
    return forwarded(stack) > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_behind_one_address_survives_the_death_of_either_agent(
    stack: Stack, balancer: Balancer, protocol: str
) -> None:
    admin = AdminClient({"bootstrap.servers": balancer.address, "log_level": 0})
    topic = f"read-{protocol}"
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(PATIENCE_S)
    sent = produce(balancer.address, topic, iter(range(600)))
    group = Group(balancer.address, topic, protocol, members=2)
    try:
        group.read_all(sent)
        assert committed(balancer.address, protocol) == [100] * PARTITIONS
        assert all(balancer.connections[target] > 0 for target in balancer.targets)
        wait_until(lambda: some_is_forwarded(stack, balancer, protocol), PATIENCE_S)
        for victim in (0, 1):
            stack.kill(victim)
            sent |= produce(balancer.address, topic, iter(range(600 * (victim + 1), 600 * (victim + 2))))
            group.read_all(sent)
            assert committed(balancer.address, protocol) == [100 * (victim + 2)] * PARTITIONS
            stack.restart(victim)
    finally:
        group.close()
    assert len(group.read) == len(sent)


def committed(bootstrap: str, protocol: str) -> list[int]:
    """Uses a separate client: librdkafka 2.16 waits for its time-out when its only connection has just
    ended.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = [ConsumerGroupTopicPartitions(f"group-{protocol}")]
    [(_, future)] = admin.list_consumer_group_offsets(asked, request_timeout=PATIENCE_S).items()
    return [
        place.offset for place in sorted(future.result().topic_partitions, key=lambda place: place.partition)
    ]


@pytest.mark.usefixtures("stack")
def test_administration_behind_one_address_meets_one_broker(balancer: Balancer) -> None:
    admin = AdminClient({"bootstrap.servers": balancer.address, "log_level": 0})
    admin.create_topics([NewTopic(name, 2) for name in ("kept", "dropped")])["kept"].result(PATIENCE_S)
    produce_one = Producer({"bootstrap.servers": balancer.address, "log_level": 0})
    produce_one.produce("kept", b"x", partition=0)
    assert produce_one.flush(PATIENCE_S) == 0
    groups = [f"tool-{number}" for number in range(6)]
    for name in groups:
        place = ConsumerGroupTopicPartitions(name, [TopicPartition("kept", 0, 1)])
        admin.alter_consumer_group_offsets([place])[name].result(PATIENCE_S)

    cluster = admin.describe_cluster().result(PATIENCE_S)
    topics = admin.list_topics(timeout=PATIENCE_S)
    end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    latest = admin.list_offsets({TopicPartition("kept", 0): end})
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    describing = admin.describe_consumer_groups(groups)
    described = {name: describing[name].result(PATIENCE_S) for name in groups}
    resources = [
        ConfigResource(ConfigResource.Type.TOPIC, "kept"),
        ConfigResource(ConfigResource.Type.BROKER, "0"),
    ]
    configs = [future.result(PATIENCE_S) for future in admin.describe_configs(resources).values()]
    deleted = admin.delete_consumer_groups(groups[:5])
    dropped = admin.delete_topics(["dropped"])

    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [balancer.address]
    assert {partition.leader for partition in topics.topics["kept"].partitions.values()} == {0}
    assert latest[TopicPartition("kept", 0)].result(PATIENCE_S).offset == 1
    assert {group.group_id for group in listed.valid} >= set(groups)
    assert listed.errors == []
    assert {group.state.name for group in described.values()} == {"EMPTY"}
    assert {f"{group.coordinator.host}:{group.coordinator.port}" for group in described.values()} == {
        balancer.address
    }
    assert any("retention.ms" in config for config in configs)
    assert any(config["node.id"].value == "0" for config in configs if "node.id" in config)
    assert [future.result(PATIENCE_S) for future in deleted.values()] == [None] * 5
    assert dropped["dropped"].result(PATIENCE_S) is None
    left = admin.list_consumer_groups().result(PATIENCE_S)
    assert {group.group_id for group in left.valid} & set(groups) == {groups[5]}
