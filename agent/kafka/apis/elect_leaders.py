"""Kafka API 43, ElectLeaders, v0-v2 (KIP-183, KIP-460).

Refused: every election, preferred or unclean. A leader is only a routing hint that the ring computes. Each
partition answers ELECTION_NOT_NEEDED, which tools show as such. A request for all partitions is answered
without any.
"""

from typing import Final

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import may_on_cluster
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesTopics
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic

_NOT_NEEDED: Final = "every agent serves every partition: there is no leader to elect"
_KNOWN_TYPES: Final = (0, 1)


async def handle(request: ElectLeadersRequest, context: RequestContext[UsesTopics]) -> ElectLeadersResponse:
    if not may_on_cluster(Operation.ALTER, context):
        code = ErrorCode.cluster_authorization_failed
        return ElectLeadersResponse(
            throttle_time=NO_THROTTLE,
            error_code=code,
            replica_election_results=tuple(
                ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=tuple(
                        PartitionResult(
                            partition_id=number,
                            error_code=code,
                            error_message="Cluster authorization failed.",
                        )
                        for number in topic.partitions
                    ),
                )
                for topic in request.topic_partitions or ()
            ),
        )
    if request.election_type not in _KNOWN_TYPES:
        return ElectLeadersResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.invalid_request, replica_election_results=()
        )
    asked = request.topic_partitions or ()
    try:
        topics = await context.parts.topics.by_name([topic.topic for topic in asked])
    except ADMINISTRATION_ERRORS as error:
        return ElectLeadersResponse(
            throttle_time=NO_THROTTLE, error_code=administration_code(error), replica_election_results=()
        )
    return ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    _result(topics.get(topic.topic), number) for number in topic.partitions
                ),
            )
            for topic in asked
        ),
    )


def _result(topic: Topic | None, number: i32) -> PartitionResult:
    if topic is None or not 0 <= number < topic.partition_count:
        code, message = ErrorCode.unknown_topic_or_partition, "The topic or partition does not exist."
    else:
        code, message = ErrorCode.election_not_needed, _NOT_NEEDED
    return PartitionResult(partition_id=number, error_code=code, error_message=message)
