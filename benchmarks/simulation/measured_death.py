"""Kills an agent: how long until Metadata names another agent for its partitions."""

import tempfile
import time
from pathlib import Path

from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from benchmarks.endpoints import Endpoint
from benchmarks.load.wire import Wire
from benchmarks.systems.tidelog import system_of
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

_PARTITIONS = 12
_LONGEST_S = 30.0
_PAUSE_S = 0.1


def measured_death_s(endpoint: Endpoint) -> float:
    """Kills one of two agents of a zone, and asks the other one repeatedly. Raises TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="tidelog-model-") as directory:
        settings = StackSettings(
            environment=Environment.of_process(),
            data_dir=Path(directory) / "stack",
            zones=("a",),
            store="local",
            agent_environment=endpoint.as_environment(),
        )
        with Stack(settings) as stack:
            topic = system_of(stack, endpoint).create_topic(_PARTITIONS)
            survivor = stack.agents[1].address
            wire = Wire.open(survivor.host, survivor.kafka_port, "tidelog_zone=a")
            try:
                _wait_for_leaders(wire, topic, 2)
                stack.kill(0)
                return _wait_for_leaders(wire, topic, 1)
            finally:
                wire.close()


def _wait_for_leaders(wire: Wire, topic: str, count: int) -> float:
    """Waits until this many agents lead the topic's partitions. Returns the seconds that it took."""
    began_s = time.monotonic()
    asked = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    while time.monotonic() - began_s < _LONGEST_S:
        (described,) = wire.ask(asked).topics
        if len({int(partition.leader_id) for partition in described.partitions}) == count:
            return time.monotonic() - began_s
        time.sleep(_PAUSE_S)
    raise TimeoutError(f"{topic} was not led by {count} agents after {_LONGEST_S:.0f} s")
