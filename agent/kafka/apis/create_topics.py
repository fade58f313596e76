"""Kafka API 19, CreateTopics, v2-v7 (KIP-464 defaults by -1, KIP-525 configs in the answer, KIP-516 topic
ids, KIP-599 quota).

Any replication factor is accepted and has no effect: the object store replicates, and the answer names one
replica per zone, as Metadata does. Manual assignments are checked by Kafka's rules and have no effect either:
every agent serves every partition. Refused: configs that this log does not honour, names that differ from
another only in `.` and `_`, a name given twice.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.authorization import CLUSTER, TOPIC, is_silently_allowed, may, permitted
from agent.kafka.configs.administration import named_twice, within
from agent.kafka.configs.config_entries import topic_entries
from agent.kafka.configs.mutation_quota import UsesMutationQuota, mutation_throttle, mutations_taken
from agent.kafka.configs.replica_assignments import check_new_topic
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, endpoints_of
from agent.kafka.uses import UsesTopics
from sequencer.security.acl import CLUSTER_NAME, Operation
from sequencer.tenants.tenant_limits import Planned
from sequencer.topics.topic_config import InvalidConfig
from sequencer.topics.topics import InvalidPartitionCount
from storage.identifiers import TopicId


class _Uses(UsesRouting, UsesTopics, UsesMutationQuota, Protocol):
    """The parts that this API uses."""


_DEFAULT = -1
_REFUSED_FROM = 6


async def handle(request: CreateTopicsRequest, context: RequestContext[_Uses]) -> CreateTopicsResponse:
    twice = named_twice(topic.name for topic in request.topics)
    names = {topic.name for topic in request.topics}
    if is_silently_allowed(Operation.CREATE, CLUSTER, CLUSTER_NAME, context):
        creatable: Collection[str] = names
    else:
        creatable = permitted(Operation.CREATE, TOPIC, names, context)
    existing = await _existing(request, context)
    results = []
    planned = Planned()
    for topic in {topic.name: topic for topic in request.topics}.values():
        if topic.name in twice:
            results.append(_refused(topic, ErrorCode.invalid_request, "Duplicate topic name."))
            continue
        if topic.name not in creatable:
            results.append(_refused(topic, ErrorCode.topic_authorization_failed, "Authorization failed."))
            continue
        if topic.name in existing:
            results.append(
                _refused(topic, ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists.")
            )
            continue
        try:
            async with within(request.timeout, context):
                results.append(await _create(topic, request, planned, context))
        except ADMINISTRATION_ERRORS as error:
            results.append(_refused(topic, administration_code(error), str(error)))
    return CreateTopicsResponse(
        throttle_time=mutation_throttle(context, "CreateTopics"), topics=tuple(results)
    )


async def _existing(request: CreateTopicsRequest, context: RequestContext[_Uses]) -> Collection[str]:
    """Returns which of the requested names exist. As in Kafka, this counts before any other fault of the
    request.
    """
    try:
        async with within(request.timeout, context):
            return await context.parts.topics.fresh({topic.name for topic in request.topics})
    except ADMINISTRATION_ERRORS:
        return ()  # the creation would say so, too


async def _create(
    topic: CreatableTopic, request: CreateTopicsRequest, planned: Planned, context: RequestContext[_Uses]
) -> CreatableTopicResult:
    """Raises one of ADMINISTRATION_ERRORS."""
    topics = context.parts.topics
    count = _partition_count(topic, context)
    config = _config(topic)
    if not request.validate_only:
        async with mutations_taken(count, context, refused_from=_REFUSED_FROM):
            _check_still_allowed(topic.name, context)
            created = await topics.create(topic.name, count, config)
        return _created(topic, created.topic_id, count, created.config, context)
    kept = await topics.check_creation(topic.name, count, config, planned)
    return _created(topic, None, count, kept, context)


def _check_still_allowed(name: str, context: RequestContext[_Uses]) -> None:
    """Raises AdministrationRefused if the client may no longer create the topic: the quota may have made it
    wait.
    """
    if not (
        is_silently_allowed(Operation.CREATE, CLUSTER, CLUSTER_NAME, context)
        or may(Operation.CREATE, TOPIC, name, context)
    ):
        raise AdministrationRefused(ErrorCode.topic_authorization_failed, "Authorization failed.")


def _partition_count(topic: CreatableTopic, context: RequestContext[_Uses]) -> int:
    """Raises AdministrationRefused, InvalidPartitionCount."""
    if topic.assignments:
        return _assigned_count(topic, context)
    if topic.replication_factor == 0 or topic.replication_factor < _DEFAULT:
        raise AdministrationRefused(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = context.settings.default_partitions if topic.num_partitions == _DEFAULT else topic.num_partitions
    most = context.settings.max_partitions_per_topic
    if count <= 0:
        raise InvalidPartitionCount(
            "The number of partitions must be larger than 0, or -1 to use the default value."
        )
    if count > most:
        raise InvalidPartitionCount(
            f"At most {most} partitions are allowed (TIDELOG_MAX_PARTITIONS_PER_TOPIC)."
        )
    return count


def _assigned_count(topic: CreatableTopic, context: RequestContext[_Uses]) -> int:
    for named, value in (
        ("numPartitions", topic.num_partitions),
        ("replicationFactor", topic.replication_factor),
    ):
        if value != _DEFAULT:
            message = f"A manual partition assignment was specified, but {named} was not set to -1."
            raise AdministrationRefused(ErrorCode.invalid_request, message)
    check_new_topic(
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        {endpoint.node_id for endpoint in endpoints_of(context)},
    )
    if len(topic.assignments) > context.settings.max_partitions_per_topic:
        raise InvalidPartitionCount(
            f"At most {context.settings.max_partitions_per_topic} partitions are allowed."
        )
    return len(topic.assignments)


def _config(topic: CreatableTopic) -> dict[str, str]:
    """If a name is given twice, the later value counts. Raises InvalidConfig."""
    nulls = [given.name for given in topic.configs if given.value is None]
    if nulls:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    return {given.name: given.value for given in topic.configs if given.value is not None}


def _created(
    topic: CreatableTopic,
    topic_id: TopicId | None,
    count: int,
    config: Mapping[str, str],
    context: RequestContext[_Uses],
) -> CreatableTopicResult:
    if not is_silently_allowed(Operation.DESCRIBE_CONFIGS, TOPIC, topic.name, context):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_code=ErrorCode.none,
            error_message=None,
            topic_config_error_code=i16(ErrorCode.topic_authorization_failed.value),
            configs=(),
        )
    zones = {endpoint.zone for endpoint in endpoints_of(context)}
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(count),
        replication_factor=i16(max(1, len(zones))),
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in sorted(topic_entries(config), key=lambda entry: entry.name)
        ),
    )


def _refused(topic: CreatableTopic, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, topic_id=None, error_code=code, error_message=message, configs=()
    )
