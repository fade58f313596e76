"""Kafka API 45, AlterPartitionReassignments, v0-v1 (KIP-455, KIP-860).

A reassignment to the replicas that Metadata names, in any order, is accepted and needs no work. Refused, per
partition: other replicas, because no agent holds any (INVALID_REPLICA_ASSIGNMENT, with a message), and a
cancellation, because there is no move to cancel (NO_REASSIGNMENT_IN_PROGRESS).
"""

from collections.abc import Sequence
from typing import Final, Protocol

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from kio.schema.alter_partition_reassignments.v1.response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import may_on_cluster
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, route_of
from agent.kafka.uses import UsesTopics
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import Partition


class _Uses(UsesRouting, UsesTopics, Protocol):
    """The parts that this API uses."""


_REFUSED: Final = (
    "replicas cannot be moved: the object store holds the records and every agent serves every partition"
)
_NOTHING_TO_CANCEL: Final = "no reassignment is in progress: replicas are never moved here"


async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext[_Uses]
) -> AlterPartitionReassignmentsResponse:
    code, message, topics = ErrorCode.none, None, {}
    is_allowed = may_on_cluster(Operation.ALTER, context)
    if not is_allowed:
        code, message = ErrorCode.cluster_authorization_failed, "Cluster authorization failed."
    try:
        if is_allowed:
            topics = await context.parts.topics.by_name([topic.name for topic in request.topics])
    except ADMINISTRATION_ERRORS as error:
        code, message = administration_code(error), str(error)
    return AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        error_message=message,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _answer(topics.get(topic.name), partition, context)
                    if is_allowed
                    else ReassignablePartitionResponse(
                        partition_index=partition.partition_index, error_code=code, error_message=message
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
        if code is ErrorCode.none or not is_allowed
        else (),
    )


def _answer(
    topic: Topic | None, asked: ReassignablePartition, context: RequestContext[_Uses]
) -> ReassignablePartitionResponse:
    code: ErrorCode
    message: str | None
    if topic is None or not 0 <= asked.partition_index < topic.partition_count:
        code, message = ErrorCode.unknown_topic_or_partition, "The topic or partition does not exist."
    elif asked.replicas is None:
        code, message = ErrorCode.no_reassignment_in_progress, _NOTHING_TO_CANCEL
    elif _are_current(asked.replicas, topic, Partition(asked.partition_index), context):
        code, message = ErrorCode.none, None
    else:
        code, message = ErrorCode.invalid_replica_assignment, _REFUSED
    return ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_code=code, error_message=message
    )


def _are_current(
    replicas: Sequence[int], topic: Topic, partition: Partition, context: RequestContext[_Uses]
) -> bool:
    current: Sequence[int] = route_of(context, topic.topic_id, partition).replicas
    return len(replicas) == len(current) and set(replicas) == set(current)
