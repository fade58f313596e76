"""Fixtures of the suite. It prints its seeds; `TIDELOG_TEST_SEEDS=1,2` runs these seeds."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping

import confluent_kafka.admin
import pytest

from tidelog.devstack.stack import AgentProcess, Stack

LEASES: Mapping[str, str] = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "3",
    "TIDELOG_MEMBERSHIP_RENEW_S": "0.5",
    "TIDELOG_MEMBERSHIP_MARGIN_S": "0.5",
}
"""An agent that was killed is forgotten in seconds, so that many kills fit a test."""


def create_topic(servers: str, partitions: int, config: Mapping[str, str] | None = None) -> str:
    """A topic of a new name; tried again: on a busy machine an agent may lose its short lease, and hang
    up.
    """
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    until = time.monotonic() + 90.0
    while True:
        name = f"faults-{uuid.uuid4().hex[:8]}"
        # The records of these tests are old: retention would let them go.
        topic = confluent_kafka.admin.NewTopic(
            name, partitions, 1, config={"retention.ms": "-1", **(config or {})}
        )
        try:
            admin.create_topics([topic], request_timeout=30)[name].result(40)
        except confluent_kafka.KafkaException:
            if time.monotonic() > until:
                raise
        else:
            return name


def leaders(agent: AgentProcess, topic: str) -> set[str | None]:
    """The addresses that Metadata names to clients in the agent's zone, asked of this agent; None: there is
    none now, or the agent does not serve.
    """
    client_id = f"tidelog_zone={agent.address.zone}"
    admin = confluent_kafka.admin.AdminClient(
        {"bootstrap.servers": agent.address.bootstrap, "client.id": client_id}
    )
    try:
        metadata = admin.list_topics(topic, timeout=20)
    except confluent_kafka.KafkaException:
        return {None}
    brokers = {node: f"{broker.host}:{broker.port}" for node, broker in metadata.brokers.items()}
    return {brokers.get(partition.leader) for partition in metadata.topics[topic].partitions.values()}


def wait_until_doctor_finds_nothing(stack: Stack, timeout_s: float) -> None:
    """`tidelog doctor` ends with status 0: no orphan, no dangling run. Leases of killed agents have to pass
    first.
    """
    environment = {**os.environ, **stack.addresses.as_environment()}
    command = [sys.executable, "-m", "tidelog", "doctor", "--verify"]
    until = time.monotonic() + timeout_s
    while True:
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        if said.returncode == 0:
            print(said.stdout)
            return
        assert time.monotonic() < until, f"doctor still finds something:\n{said.stdout}\n{said.stderr}"
        time.sleep(2.0)


@pytest.fixture(scope="module")
def address(stack: Stack) -> tuple[str, int]:
    """The address at which the agent of zone a takes Kafka connections."""
    kafka = stack.agent_in("a").address
    return kafka.host, kafka.kafka_port
