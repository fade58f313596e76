"""Kafka API 68, ConsumerGroupHeartbeat, v0-v1 (KIP-848; regular expressions and member ids made by clients
from v1 on).

Answered from memory unless it changes the group. A request that is wrong in itself gets INVALID_REQUEST with
Kafka's message. So do ids that cannot be kept: with a NUL, or longer than about a kilobyte.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final
from uuid import UUID

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.request import TopicPartitions as OwnedPartitions
from kio.schema.consumer_group_heartbeat.v1.response import (
    Assignment as AssignmentAnswer,
)
from kio.schema.consumer_group_heartbeat.v1.response import (
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kio.static.primitive import i32

from agent.error_codes import group_code
from agent.groups.events import Assignment, ConsumerHeartbeat, ConsumerHeartbeatAnswer, GroupFault
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, is_restricted, is_silently_allowed, may, permitted
from agent.kafka.context import RequestContext
from agent.kafka.group_requests import can_be_instance_id, client_host, client_id, duration, milliseconds
from agent.kafka.uses import UsesCoordinator
from sequencer.groups.groups import can_be_id
from sequencer.security.acl import Operation
from storage.identifiers import Partition, TopicId

_JOINS: Final = 0
_LEAVES: Final = -1
_LEAVES_FOR_A_WHILE: Final = -2
_FIRST_WITH_CLIENTS_MEMBER_ID: Final = 1
_NO_TOPIC: Final = UUID(int=0)


async def handle(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext[UsesCoordinator]
) -> ConsumerGroupHeartbeatResponse:
    problem = next(_problems(request, context), None)
    if problem is not None:
        return _respond(ConsumerHeartbeatAnswer(fault=GroupFault.INVALID_REQUEST, message=problem))
    if not may(Operation.READ, GROUP, request.group_id, context):
        return _respond(ConsumerHeartbeatAnswer(fault=GroupFault.NOT_AUTHORIZED))
    names = frozenset(map(context.known_as, request.subscribed_topic_names or ()))
    if len(permitted(Operation.DESCRIBE, TOPIC, names, context)) < len(names):
        return _respond(ConsumerHeartbeatAnswer(fault=GroupFault.TOPIC_NOT_AUTHORIZED))
    event = ConsumerHeartbeat(
        token=context.parts.coordinator.next_token(),
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=client_id(context),
        client_host=client_host(context),
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        subscribed_topics=_names(request.subscribed_topic_names),
        subscribed_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        may_see=partial(_may_see, context=context) if is_restricted(context) else None,
    )
    answer = await context.parts.coordinator.ask(
        request.group_id, event, ConsumerHeartbeatAnswer, create=request.member_epoch == _JOINS
    )
    if answer is GroupFault.GROUP_NOT_FOUND:
        answer = ConsumerHeartbeatAnswer(fault=answer, message=f"Group {request.group_id} not found.")
    elif isinstance(answer, GroupFault):
        answer = ConsumerHeartbeatAnswer(fault=answer)
    return _respond(answer)


def _may_see(name: str, context: RequestContext[UsesCoordinator]) -> bool:
    return is_silently_allowed(Operation.DESCRIBE, TOPIC, context.known_as(name), context)


def _problems(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext[UsesCoordinator]
) -> Iterator[str]:
    """Returns what Kafka finds wrong before it looks at the group, in its words and order."""
    epoch = request.member_epoch
    names_itself = context.api_version >= _FIRST_WITH_CLIENTS_MEMBER_ID or epoch > _JOINS or epoch == _LEAVES
    if names_itself and not request.member_id.strip():
        yield "MemberId can't be empty."
    if not request.group_id.strip():
        yield "GroupId can't be empty."
    if request.instance_id is not None and not request.instance_id.strip():
        yield "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        yield "RackId can't be empty."
    if epoch == _JOINS:
        yield from _problems_of_joining(request)
    elif epoch == _LEAVES_FOR_A_WHILE and request.instance_id is None:
        yield "InstanceId can't be null."
    elif epoch < _LEAVES_FOR_A_WHILE:
        yield "MemberEpoch is invalid."
    if request.member_id and not can_be_id(request.member_id):
        yield "MemberId must be at most 1024 bytes, none of them NUL."
    if not can_be_instance_id(request.instance_id):
        yield "InstanceId must be at most 900 bytes, none of them NUL."


def _problems_of_joining(request: ConsumerGroupHeartbeatRequest) -> Iterator[str]:
    if milliseconds(request.rebalance_timeout) == -1:
        yield "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        yield "TopicPartitions must be empty when (re-)joining."
    # Empty names or an empty expression subscribe to nothing, which is allowed.
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        yield "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."


def _names(names: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _owned(topics: Iterable[OwnedPartitions] | None) -> Assignment | None:
    if topics is None:
        return None
    return {
        TopicId(topic.topic_id or _NO_TOPIC): frozenset(
            Partition(partition) for partition in topic.partitions
        )
        for topic in topics
    }


def _respond(answer: ConsumerHeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if answer.assignment is not None:
        assignment = AssignmentAnswer(
            topic_partitions=tuple(
                TopicPartitions(
                    topic_id=topic_id, partitions=tuple(i32(number) for number in sorted(partitions))
                )
                for topic_id, partitions in sorted(answer.assignment.items())
            )
        )
    return ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=group_code(answer.fault),
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=i32(answer.member_epoch),
        heartbeat_interval=duration(answer.heartbeat_interval_ms),
        assignment=assignment,
    )
