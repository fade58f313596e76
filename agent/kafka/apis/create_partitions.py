"""Kafka API 37, CreatePartitions, v0-v3 (KIP-195, KIP-599 quota). Partitions can only be added.

Manual assignments are checked by Kafka's rules and have no effect: every agent serves every partition.
Refused: a count that is not higher, a topic named twice.
"""

from typing import Protocol

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.authorization import TOPIC, may
from agent.kafka.configs.administration import named_twice, within
from agent.kafka.configs.mutation_quota import UsesMutationQuota, mutation_throttle, mutations_taken
from agent.kafka.configs.replica_assignments import check_new_partitions
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, endpoints_of
from agent.kafka.uses import UsesTopics
from sequencer.security.acl import Operation
from sequencer.tenants.tenant_limits import Planned
from sequencer.topics.topics import InvalidPartitionCount, UnknownTopic


class _Uses(UsesRouting, UsesTopics, UsesMutationQuota, Protocol):
    """The parts that this API uses."""


_REFUSED_FROM = 3


async def handle(
    request: CreatePartitionsRequest, context: RequestContext[_Uses]
) -> CreatePartitionsResponse:
    twice = named_twice(topic.name for topic in request.topics)
    results = []
    planned = Planned()
    for topic in {topic.name: topic for topic in request.topics}.values():
        if topic.name in twice:
            results.append(_result(topic, ErrorCode.invalid_request, "Duplicate topic name."))
            continue
        if not may(Operation.ALTER, TOPIC, topic.name, context):
            results.append(_result(topic, ErrorCode.topic_authorization_failed, None))
            continue
        try:
            async with within(request.timeout, context):
                await _grow(topic, request, planned, context)
            results.append(_result(topic, ErrorCode.none, None))
        except ADMINISTRATION_ERRORS as error:
            results.append(_result(topic, administration_code(error), str(error)))
    return CreatePartitionsResponse(
        throttle_time=mutation_throttle(context, "CreatePartitions"), results=tuple(results)
    )


async def _grow(
    topic: CreatePartitionsTopic,
    request: CreatePartitionsRequest,
    planned: Planned,
    context: RequestContext[_Uses],
) -> None:
    """Raises one of ADMINISTRATION_ERRORS."""
    topics, most = context.parts.topics, context.settings.max_partitions_per_topic
    found = (await topics.fresh([topic.name])).get(topic.name)
    if found is None:
        raise UnknownTopic(f"There is no topic '{topic.name[:300]}'.")
    if topic.count == found.partition_count:
        raise InvalidPartitionCount(f"Topic already has {topic.count} partition(s).")
    if topic.count < found.partition_count:
        raise InvalidPartitionCount(
            f"The topic {topic.name} currently has {found.partition_count} partition(s); {topic.count} "
            "would not be an increase."
        )
    if topic.count > most:
        raise InvalidPartitionCount(
            f"At most {most} partitions are allowed (TIDELOG_MAX_PARTITIONS_PER_TOPIC)."
        )
    if topic.assignments is not None:
        check_new_partitions(
            [assignment.broker_ids for assignment in topic.assignments],
            topic.count - found.partition_count,
            {endpoint.node_id for endpoint in endpoints_of(context)},
        )
    if request.validate_only:
        await topics.check_growth(found, topic.count, planned)
    else:
        async with mutations_taken(topic.count - found.partition_count, context, refused_from=_REFUSED_FROM):
            if not may(Operation.ALTER, TOPIC, topic.name, context):  # the quota may have made it wait
                raise AdministrationRefused(ErrorCode.topic_authorization_failed, "Authorization failed.")
            await topics.add_partitions(topic.name, topic.count)


def _result(
    topic: CreatePartitionsTopic, code: ErrorCode, message: str | None
) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
