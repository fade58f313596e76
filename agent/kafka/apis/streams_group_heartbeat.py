"""Kafka API 88, StreamsGroupHeartbeat, v0 (KIP-1071).

Answered from memory unless it changes the group. A request that is wrong in itself gets INVALID_REQUEST, a
topology that is wrong in itself STREAMS_INVALID_TOPOLOGY. As in Kafka, static members and source topics named
by regular expressions are refused. Task offsets are read and not used: there are no warm-up tasks yet.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from kio.schema.streams_group_heartbeat.v0.request import (
    StreamsGroupHeartbeatRequest,
    TopicInfo,
)
from kio.schema.streams_group_heartbeat.v0.request import (
    Subtopology as GivenSubtopology,
)
from kio.schema.streams_group_heartbeat.v0.request import (
    TaskIds as OwnedTasks,
)
from kio.schema.streams_group_heartbeat.v0.request import (
    Topology as GivenTopology,
)
from kio.schema.streams_group_heartbeat.v0.response import (
    Endpoint as EndpointAnswer,
)
from kio.schema.streams_group_heartbeat.v0.response import (
    EndpointToPartitions,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TopicPartition,
)
from kio.schema.streams_group_heartbeat.v0.response import (
    Status as StatusAnswer,
)
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta, u16

from agent.error_codes import group_code
from agent.groups.events import (
    Endpoint,
    EndpointPartitions,
    GroupFault,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    Tasks,
    TaskSets,
)
from agent.groups.streams.topology import (
    InternalTopic,
    InvalidTopology,
    Subtopology,
    Topology,
    check_topology,
    topology_of,
)
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import (
    CLUSTER,
    GROUP,
    TOPIC,
    is_restricted,
    is_silently_allowed,
    may,
    permitted,
)
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import client_host, client_id, duration, milliseconds
from agent.kafka.uses import UsesCoordinator, UsesGroupSettings
from sequencer.groups.groups import can_be_id
from sequencer.security.acl import CLUSTER_NAME, Operation
from storage.identifiers import Partition


class _Uses(UsesCoordinator, UsesGroupSettings, Protocol):
    """The parts that this API uses."""


_JOINS: Final = 0
_LEAVES: Final = -1
_LONGEST_TEXT: Final = 1_024
_MOST_TAGS: Final = 64
_ACCEPTABLE_RECOVERY_LAG: Final = i32(10_000)
_TASK_OFFSET_INTERVAL: Final = i32Timedelta.parse(timedelta(seconds=60))
"""What Kafka's defaults are. Clients use both for warm-up tasks only."""


async def handle(
    request: StreamsGroupHeartbeatRequest, context: RequestContext[_Uses]
) -> StreamsGroupHeartbeatResponse:
    problem = next(_problems(request), None)
    if problem is not None:
        return _respond(StreamsHeartbeatAnswer(fault=GroupFault.INVALID_REQUEST, message=problem))
    try:
        topology = None if request.topology is None else _topology(request.topology, context)
    except InvalidTopology as error:
        return _respond(StreamsHeartbeatAnswer(fault=GroupFault.INVALID_TOPOLOGY, message=str(error)))
    if not may(Operation.READ, GROUP, request.group_id, context):
        return _respond(StreamsHeartbeatAnswer(fault=GroupFault.NOT_AUTHORIZED))
    names = frozenset[str]() if topology is None else frozenset(map(context.known_as, topology.topics))
    if len(permitted(Operation.DESCRIBE, TOPIC, names, context)) < len(names):
        return _respond(StreamsHeartbeatAnswer(fault=GroupFault.TOPIC_NOT_AUTHORIZED))
    endpoint = request.user_endpoint
    tags = request.client_tags
    event = StreamsHeartbeat(
        token=context.parts.coordinator.next_token(),
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        client_id=client_id(context),
        client_host=client_host(context),
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topology=topology,
        process_id=request.process_id,
        endpoint=None if endpoint is None else Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=None if tags is None else {tag.key: tag.value for tag in tags},
        owned=_owned(request),
        endpoint_epoch=request.endpoint_information_epoch,
        asks_for_shutdown=request.shutdown_application,
        may_create=partial(_may_create, context=context) if is_restricted(context) else None,
    )
    answer = await context.parts.coordinator.ask(
        request.group_id, event, StreamsHeartbeatAnswer, create=request.member_epoch == _JOINS
    )
    if answer is GroupFault.GROUP_NOT_FOUND:
        answer = StreamsHeartbeatAnswer(fault=answer, message=f"Group {request.group_id} not found.")
    elif isinstance(answer, GroupFault):
        answer = StreamsHeartbeatAnswer(fault=answer)
    return _respond(answer)


def _may_create(name: str, context: RequestContext[_Uses]) -> bool:
    return is_silently_allowed(Operation.CREATE, CLUSTER, CLUSTER_NAME, context) or may(
        Operation.CREATE, TOPIC, context.known_as(name), context
    )


# --- what can be judged without the group


def _problems(request: StreamsGroupHeartbeatRequest) -> Iterator[str]:
    if not request.member_id.strip():
        yield "MemberId can't be empty."
    if not request.group_id.strip():
        yield "GroupId can't be empty."
    if request.instance_id is not None:
        yield "InstanceId must be null: streams groups have no static members."
    if request.rack_id is not None and not request.rack_id.strip():
        yield "RackId can't be empty."
    if request.member_epoch < _LEAVES:
        yield "MemberEpoch must be -1 or more."
    if request.member_epoch == _JOINS:
        yield from _problems_of_joining(request)
    elif request.topology is not None:
        yield "Topology must be null unless the member joins."
    kinds = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if len({tasks is None for tasks in kinds}) > 1:
        yield "ActiveTasks, StandbyTasks and WarmupTasks must all be null, or none of them."
    if any(number < 0 for tasks in kinds for each in tasks or () for number in each.partitions):
        yield "A task's partition can't be negative."
    if not can_be_id(request.member_id):
        yield f"MemberId must be at most {_LONGEST_TEXT} bytes, none of them NUL."
    yield from _problems_of_texts(request)


def _problems_of_joining(request: StreamsGroupHeartbeatRequest) -> Iterator[str]:
    if milliseconds(request.rebalance_timeout) == -1:
        yield "RebalanceTimeoutMs must be provided when (re-)joining."
    if request.topology is None:
        yield "Topology must be non-null when (re-)joining."
    if not request.process_id:
        yield "ProcessId must be provided when (re-)joining."
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            yield f"{name} must be empty when (re-)joining."


def _problems_of_texts(request: StreamsGroupHeartbeatRequest) -> Iterator[str]:
    tags = request.client_tags or ()
    if len(tags) > _MOST_TAGS:
        yield f"At most {_MOST_TAGS} ClientTags are allowed."
    texts = [request.process_id, request.rack_id, *(text for tag in tags for text in (tag.key, tag.value))]
    if request.user_endpoint is not None:
        texts.append(request.user_endpoint.host)
    if any("\0" in text or len(text) > _LONGEST_TEXT for text in texts if text is not None):
        yield (
            "ProcessId, RackId, ClientTags and UserEndpoint must have at most "
            f"{_LONGEST_TEXT} characters, none of them NUL."
        )


# --- decoding


def _topology(given: GivenTopology, context: RequestContext[_Uses]) -> Topology:
    """Raises `InvalidTopology`."""
    topology = topology_of(given.epoch, map(_subtopology, given.subtopologies))
    check_topology(topology, context.parts.group_settings, context.settings.max_partitions_per_topic)
    return topology


def _subtopology(given: GivenSubtopology) -> Subtopology:
    if given.source_topic_regex:
        raise InvalidTopology(
            f"Subtopology {given.subtopology_id} reads topics by regular expression. Name its topics: "
            "streams groups do not look for topics."
        )
    repartition_sources = tuple(map(_internal_topic, given.repartition_source_topics))
    names = [topic.name for topic in repartition_sources]
    return Subtopology(
        subtopology_id=given.subtopology_id,
        source_topics=tuple(given.source_topics),
        repartition_sources=repartition_sources,
        repartition_sinks=tuple(given.repartition_sink_topics),
        changelogs=tuple(map(_internal_topic, given.state_changelog_topics)),
        copartitioned=tuple(
            (
                *_at(given.source_topics, group.source_topics),
                *_at(names, group.repartition_source_topics),
            )
            for group in given.copartition_groups
        ),
    )


def _at(names: Sequence[str], positions: Iterable[int]) -> Iterator[str]:
    for position in positions:
        if not 0 <= position < len(names):
            raise InvalidTopology(f"A copartition group names topic {position} of {len(names)}.")
        yield names[position]


def _internal_topic(given: TopicInfo) -> InternalTopic:
    return InternalTopic(
        name=given.name,
        partition_count=given.partitions,
        config={config.key: config.value for config in given.topic_configs},
    )


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return Tasks(
        active=_task_sets(request.active_tasks),
        standby=_task_sets(request.standby_tasks),
        warmup=_task_sets(request.warmup_tasks),
    )


def _task_sets(given: Iterable[OwnedTasks]) -> TaskSets:
    found: dict[str, frozenset[Partition]] = {}
    for tasks in given:
        more = frozenset(Partition(number) for number in tasks.partitions)
        found[tasks.subtopology_id] = found.get(tasks.subtopology_id, frozenset()) | more
    return found


# --- encoding


def _respond(answer: StreamsHeartbeatAnswer) -> StreamsGroupHeartbeatResponse:
    tasks = answer.tasks
    return StreamsGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=group_code(answer.fault),
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=i32(answer.member_epoch),
        heartbeat_interval=duration(answer.heartbeat_interval_ms),
        acceptable_recovery_lag=_ACCEPTABLE_RECOVERY_LAG,
        task_offset_interval=_TASK_OFFSET_INTERVAL,
        status=tuple(
            StatusAnswer(status_code=i8(status.code.value), status_detail=status.detail)
            for status in answer.statuses
        ),
        active_tasks=None if tasks is None else _task_ids(tasks.active),
        standby_tasks=None if tasks is None else _task_ids(tasks.standby),
        warmup_tasks=None if tasks is None else _task_ids(tasks.warmup),
        endpoint_information_epoch=i32(answer.endpoint_epoch),
        partitions_by_user_endpoint=(
            None if answer.endpoints is None else tuple(map(_endpoint, answer.endpoints))
        ),
    )


def _task_ids(sets: TaskSets) -> tuple[TaskIds, ...]:
    return tuple(
        TaskIds(subtopology_id=subtopology, partitions=tuple(map(i32, sorted(numbers))))
        for subtopology, numbers in sorted(sets.items())
    )


def _endpoint(known: EndpointPartitions) -> EndpointToPartitions:
    return EndpointToPartitions(
        user_endpoint=EndpointAnswer(host=known.endpoint.host, port=u16(known.endpoint.port)),
        active_partitions=_partitions(known.active),
        standby_partitions=_partitions(known.standby),
    )


def _partitions(topics: TaskSets) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic=TopicName(topic), partitions=tuple(map(i32, sorted(numbers))))
        for topic, numbers in sorted(topics.items())
    )
