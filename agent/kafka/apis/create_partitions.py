"""Kafka API 37, CreatePartitions, v0-v3 (KIP-195). Partitions are added, never taken away. Refused: replica
assignments."""

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.context import RequestContext
from sequencer.topics import InvalidPartitionCount, UnknownTopic


async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    results = [await _grow(topic, request.validate_only, context) for topic in request.topics]
    return CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


async def _grow(
    topic: CreatePartitionsTopic, validate_only: bool, context: RequestContext
) -> CreatePartitionsTopicResult:
    if topic.assignments:
        message = "replicas cannot be assigned: every agent serves every partition"
        return _result(topic, ErrorCode.invalid_replica_assignment, message)
    topics = context.parts.topics
    try:
        if topic.count > context.settings.max_partitions_per_topic:
            raise InvalidPartitionCount(f"at most {context.settings.max_partitions_per_topic} partitions are allowed")
        if not validate_only:
            await topics.add_partitions(topic.name, topic.count)
            return _result(topic, ErrorCode.none, None)
        found = (await topics.by_name([topic.name])).get(topic.name)
        if found is None:
            raise UnknownTopic(f"There is no topic '{topic.name}'.")
        if topic.count <= found.partition_count:
            raise InvalidPartitionCount(f"Topic '{topic.name}' has {found.partition_count} partitions already.")
    except ADMINISTRATION_ERRORS as error:
        return _result(topic, administration_code(error), str(error))
    return _result(topic, ErrorCode.none, None)


def _result(topic: CreatePartitionsTopic, code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)


API = Api(key=37, name="CreatePartitions", versions=range(4), handle=handle)
