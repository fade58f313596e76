"""A running system as workloads see it: its addresses, its topics, and what its processes use."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest
from kio.schema.delete_topics.v4.request import DeleteTopicsRequest
from kio.schema.list_offsets.v5.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from benchmarks.endpoints import Endpoint
from benchmarks.load.frames import BadAnswer
from benchmarks.load.producers import Target
from benchmarks.load.wire import Wire
from benchmarks.systems.meters import Meters
from tidelog.devstack.stack import Stack

_TOPIC_TIMEOUT_S = 60.0
_POLL_S = 0.1
_DELETED_S = 2.0
_LATEST = i64(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`targets` by zone: where clients connect. `endpoint`: the object store that it writes to, if any.
    `idempotent`: if true, as by default, its producers are idempotent."""

    name: str
    targets: Mapping[str, Target]
    meters: Meters
    endpoint: Endpoint | None = None
    database_url: str | None = None
    idempotent: bool = True
    drops_topics: bool = False
    """If true, topics are deleted after each workload."""
    settling_s: float = 8.0
    """How long (c) runs before it is measured. By then the PUT budget (16, and 4 per second) is spent.
    """
    topics: list[str] = field(default_factory=list)
    """Topics that were created and not deleted yet."""
    stack: Stack | None = None
    """Tidelog's stack, for workloads that restart agents."""

    @property
    def target(self) -> Target:
        """The first zone's."""
        return next(iter(self.targets.values()))

    def create_topic(self, partitions: int) -> str:
        """Creates a topic and waits until it takes records. Raises BadAnswer or TimeoutError."""
        name = f"bench-{uuid4().hex[:8]}"
        wire = Wire.open(self.target.host, self.target.port, self.target.client_id)
        try:
            topic = CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(partitions),
                replication_factor=i16(1),
                assignments=(),
                configs=(),
            )
            timeout = i32Timedelta.parse(timedelta(seconds=_TOPIC_TIMEOUT_S / 2))
            answer = wire.ask(CreateTopicsRequest(topics=(topic,), timeout=timeout))
            for made in answer.topics:
                if made.error_code != 0:
                    raise BadAnswer(f"CreateTopics: {made.error_code.name} {made.error_message}")
            _wait_for(wire, name, partitions)
        finally:
            wire.close()
        self.topics.append(name)
        return name

    def drop_topics(self) -> None:
        """Deletes all topics that were created. Raises BadAnswer."""
        wire = Wire.open(self.target.host, self.target.port, self.target.client_id)
        try:
            timeout = i32Timedelta.parse(timedelta(seconds=_TOPIC_TIMEOUT_S / 2))
            names = tuple(TopicName(name) for name in self.topics)
            answer = wire.ask(DeleteTopicsRequest(topic_names=names, timeout=timeout))
        finally:
            wire.close()
        for deleted in answer.responses:
            if deleted.error_code != 0:
                raise BadAnswer(f"DeleteTopics: {deleted.error_code.name}")
        self.topics.clear()
        time.sleep(_DELETED_S)

    def ends(self, topic: str, partitions: int) -> Mapping[int, int]:
        """The offset after the last record of each partition. Raises BadAnswer."""
        wire = Wire.open(self.target.host, self.target.port, self.target.client_id)
        try:
            found = _latest(wire, topic, partitions)
        finally:
            wire.close()
        if found is None:
            raise BadAnswer("ListOffsets failed")
        return found


def _latest(wire: Wire, name: str, partitions: int) -> dict[int, int] | None:
    """The end of every partition. None while an agent or broker does not know yet that it leads one."""
    asked = tuple(
        ListOffsetsPartition(partition_index=i32(partition), current_leader_epoch=i32(-1), timestamp=_LATEST)
        for partition in range(partitions)
    )
    answer = wire.ask(
        ListOffsetsRequest(
            replica_id=BrokerId(-1),
            isolation_level=i8(0),
            topics=(ListOffsetsTopic(name=TopicName(name), partitions=asked),),
        )
    )
    found = [partition for topic in answer.topics for partition in topic.partitions]
    if any(partition.error_code != 0 for partition in found):
        return None
    return {int(partition.partition_index): int(partition.offset) for partition in found}


def _wait_for(wire: Wire, name: str, partitions: int) -> None:
    """Waits until the broker knows the topic."""
    until = time.monotonic() + _TOPIC_TIMEOUT_S
    asked = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(name)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    while time.monotonic() < until:
        (topic,) = wire.ask(asked).topics
        ready = [
            partition
            for partition in topic.partitions
            if partition.error_code == 0 and partition.leader_id >= 0
        ]
        if topic.error_code == 0 and len(ready) == partitions and _latest(wire, name, partitions) is not None:
            return
        time.sleep(_POLL_S)
    raise TimeoutError(f"the topic {name} was not there after {_TOPIC_TIMEOUT_S:.0f} s")
