"""Kafka API 19, CreateTopics, v2-v7 (KIP-525 configs in the answer, KIP-516 topic ids).

A replication factor is accepted and means nothing: the object store replicates. Refused: replica assignments, configs
this log does not honour.
"""

from collections import Counter

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i16, i32

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.apis.describe_configs import DEFAULT_CONFIG, TOPIC_CONFIG
from agent.kafka.context import RequestContext
from sequencer.topic_config import KNOWN_CONFIGS, validate_config
from sequencer.topics import InvalidPartitionCount, TopicExists, validate_topic_name
from storage.identifiers import TopicId

_REPLICATION_FACTOR = i16(1)


async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    results = []
    for topic in request.topics:
        if times_named[topic.name] > 1:
            results.append(_refused(topic, ErrorCode.invalid_request, "the topic is named twice in this request"))
        elif topic.assignments:
            message = "replicas cannot be assigned: every agent serves every partition"
            results.append(_refused(topic, ErrorCode.invalid_replica_assignment, message))
        else:
            results.append(await _create(topic, request.validate_only, context))
    return CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))


async def _create(topic: CreatableTopic, validate_only: bool, context: RequestContext) -> CreatableTopicResult:
    count = context.settings.default_partitions if topic.num_partitions == -1 else topic.num_partitions
    config = {given.name: given.value for given in topic.configs if given.value is not None}
    topics = context.parts.topics
    try:
        if count > context.settings.max_partitions_per_topic:
            raise InvalidPartitionCount(f"at most {context.settings.max_partitions_per_topic} partitions are allowed")
        if not validate_only:
            created = await topics.create(topic.name, count, config)
            return _created(topic, created.topic_id, count, config)
        validate_topic_name(topic.name)
        if count < 1:
            raise InvalidPartitionCount("a topic has at least one partition")
        for name, value in config.items():
            validate_config(name, value)
        if topic.name in await topics.by_name([topic.name]):
            raise TopicExists(f"Topic '{topic.name}' already exists.")
        return _created(topic, None, count, config)
    except ADMINISTRATION_ERRORS as error:
        return _refused(topic, administration_code(error), str(error))


def _created(
    topic: CreatableTopic, topic_id: TopicId | None, count: int, config: dict[str, str]
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(count),
        replication_factor=_REPLICATION_FACTOR,
        configs=tuple(
            CreatableTopicConfigs(
                name=definition.name,
                value=config.get(definition.name, definition.default),
                read_only=False,
                config_source=i8(TOPIC_CONFIG if definition.name in config else DEFAULT_CONFIG),
                is_sensitive=False,
            )
            for definition in KNOWN_CONFIGS.values()
        ),
    )


def _refused(topic: CreatableTopic, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, topic_id=None, error_code=code, error_message=message, configs=())


API = Api(key=19, name="CreateTopics", versions=range(2, 8), handle=handle)
