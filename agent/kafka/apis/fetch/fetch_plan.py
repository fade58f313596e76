"""From a Fetch request to what the read path is to do: offsets and limits, and each partition's refusal that can be
told from the request alone.

A request of a thousand partitions comes several times a second, so what is the same for all of them is looked up
once."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from agent.kafka.apis.fetch.fetch_response import FIRST_VERSION_WITH_TOPIC_IDS
from agent.kafka.context import RequestContext
from agent.kafka.routing.leader_epochs import NO_EPOCH, OUR_EPOCH, epoch_failure
from agent.kafka.routing.routing import UsesRouting, moved_partitions, preferred_replica_of, refused_to_refresh
from agent.kafka.uses import UsesReads, UsesTopics
from agent.read_path.read_decisions import FetchPlan, PartitionPlan, ReadFailure
from cache_ring.ring.membership import Membership
from sequencer.database.database import SequencerUnavailable
from sequencer.topics.topics import Topic
from storage.identifiers import NodeId, Offset, Partition, TopicId


class UsesFetchPlan(UsesRouting, UsesReads, UsesTopics, Protocol):
    """The parts that planning uses."""


FINAL_EPOCH: Final = -1
"""Of a request outside sessions: it asks for everything, and ends the session that it names."""
_READ_COMMITTED: Final = 1
_NOBODY: Final = TopicId(UUID(int=0))


class FetchedPartition(Protocol):
    partition: Partition
    fetch_offset: Offset
    partition_max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


class FetchedTopic(Protocol):
    topic: str = ""
    """Until version 12."""
    topic_id: TopicId | None = None
    partitions: Sequence[FetchedPartition]


class FetchRequest(Protocol):
    """A request of any version."""

    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_epoch: int = FINAL_EPOCH
    rack_id: str = ""
    topics: Sequence[FetchedTopic]


async def plan_request(request: FetchRequest, context: RequestContext[UsesFetchPlan]) -> FetchPlan:
    """The plan, with the limits of this agent."""
    reads = context.parts.reads
    max_bytes = min(max(0, request.max_bytes), reads.settings.fetch_max_bytes)
    failure, topics = None, {}
    try:
        topics = await _find_topics(request, context)
    except SequencerUnavailable:
        failure = ReadFailure.UNAVAILABLE
    planner = _Planner(request, context)
    partitions: list[PartitionPlan] = []
    for asked in request.topics:
        topic_id = _topic_id(asked, topics, context.api_version)
        if topic_id is None:
            partitions += _all_fail(asked.partitions, failure or ReadFailure.UNKNOWN_TOPIC)
        else:
            partitions += planner.topic(reads.coordinates.same(topic_id), asked.partitions)
    return FetchPlan(
        partitions=tuple(partitions),
        max_bytes=max(1, max_bytes),
        min_bytes=min(request.min_bytes, max_bytes),
        read_committed=request.isolation_level == _READ_COMMITTED,
    )


async def _find_topics(request: FetchRequest, context: RequestContext[UsesFetchPlan]) -> dict[str, Topic]:
    """The topics asked for by name; those asked for by id need no looking up."""
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return {}
    return await context.parts.topics.by_name([topic.topic for topic in request.topics])


def _topic_id(asked: FetchedTopic, topics: dict[str, Topic], version: int) -> TopicId | None:
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return asked.topic_id
    topic = topics.get(asked.topic)
    return None if topic is None else topic.topic_id


def _all_fail(asked: Sequence[FetchedPartition], failure: ReadFailure) -> list[PartitionPlan]:
    return [
        PartitionPlan(
            topic_id=_NOBODY,
            partition=partition.partition,
            offset=partition.fetch_offset,
            max_bytes=1,
            failure=failure,
        )
        for partition in asked
    ]


class _Planner:
    """Plans the partitions of one request."""

    def __init__(self, request: FetchRequest, context: RequestContext[UsesFetchPlan]) -> None:
        membership: Membership = context.parts.membership
        self._context = context
        self._rack = request.rack_id
        self._is_serving = membership.is_serving()
        self._follows_rack = self._rack == membership.zone
        self._is_sent_on = self._rack in membership.ring.zones and not self._follows_rack

    def topic(self, topic_id: TopicId, asked: Sequence[FetchedPartition]) -> list[PartitionPlan]:
        moved = self._moved(topic_id, asked)
        return [
            PartitionPlan(
                topic_id,
                partition.partition,
                partition.fetch_offset,
                max(1, partition.partition_max_bytes),
                self._refusal(partition, moved),
                self._preferred_replica(topic_id, partition.partition) if self._is_sent_on else None,
                partition.last_fetched_epoch > OUR_EPOCH,
            )
            for partition in asked
        ]

    def _moved(self, topic_id: TopicId, asked: Sequence[FetchedPartition]) -> Collection[int]:
        if not self._is_serving:
            return ()
        refuse = refused_to_refresh if self._follows_rack else moved_partitions
        return refuse(self._context, topic_id, [one.partition for one in asked if one.partition >= 0])

    def _refusal(self, partition: FetchedPartition, moved: Collection[int]) -> ReadFailure | None:
        if partition.partition < 0:
            return ReadFailure.UNKNOWN_PARTITION
        stale = epoch_failure(partition.current_leader_epoch)
        if stale is not None:
            return stale
        return ReadFailure.MOVED if not self._is_serving or partition.partition in moved else None

    def _preferred_replica(self, topic_id: TopicId, partition: Partition) -> NodeId | None:
        return preferred_replica_of(self._context, self._rack, topic_id, partition)
