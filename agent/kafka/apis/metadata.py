"""Kafka API 3, Metadata, v0-v13 (KIP-36 racks, KIP-516 topic ids, KIP-1102 rebootstrap).

Routes are the ring's choice in the client's zone. A topic that does not exist is created if the client and
the agent's settings allow it. Authorized operations are all that there are: there is no authorizer.

When all topics are asked for while the sequencer is away, the connection is closed: an answer without topics would say
that there are none. So it is where no agent is known to be alive, not even this one (it slept past its lease, say): on
an answer without brokers librdkafka 2.13 to 2.16 forgets all addresses, and never comes back (its issue 5301).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequest
from kio.schema.metadata.v13.response import (
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, CloseConnection
from agent.kafka.configs.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, UNKNOWN_OPERATIONS, told
from agent.kafka.configs.mutation_quota import mutation_throttle, mutations_taken
from agent.kafka.context import RequestContext
from agent.kafka.metadata_bytes import MetadataEncoder
from agent.kafka.routing.routing import controller_of, endpoints_of, route_of
from agent.kafka.transport.vectored import Encoded
from sequencer.topics.topics import Topic, TopicExists
from storage.identifiers import TopicId

log = logging.getLogger("tidelog")

_TOPIC_BYTES: Final = 64
_PARTITION_BYTES: Final = 64
"""Of an answer, with some replicas."""
_FIRST_VERSION_WITHOUT_NAMES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """What the writers of all versions read; the operations are those of v8-v10."""

    throttle_time: i32Timedelta = NO_THROTTLE
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str
    controller_id: BrokerId
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: int = UNKNOWN_OPERATIONS
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    said: MetadataResponseTopic
    """Without its partitions."""
    partitions: int = 0


async def handle(request: MetadataRequest, context: RequestContext) -> Encoded:
    found = await _topics(request, context)
    await context.parts.answer_memory.reserve(sum(map(_size, found)), context)
    asked = getattr(request, "include_topic_authorized_operations", False)
    answer = MetadataEncoder(context.api_version, partial(route_of, context))
    for topic in found:
        said = replace(topic.said, topic_authorized_operations=TOPIC_OPERATIONS) if asked else topic.said
        await answer.add(said, topic.partitions)
    alive = brokers(context)  # last: whoever joined meanwhile may lead what was asked for
    if not alive:
        raise CloseConnection("no agent is known to be alive")
    response = _Response(
        throttle_time=_pause(found, context),
        brokers=alive,
        cluster_id=context.parts.cluster_id,
        controller_id=BrokerId(controller_of(context)),
        cluster_authorized_operations=told(
            CLUSTER_OPERATIONS, asked=getattr(request, "include_cluster_authorized_operations", False)
        ),
    )
    return answer.response(response)


def _size(topic: _Found) -> int:
    return _TOPIC_BYTES + len(topic.said.name or "") + topic.partitions * _PARTITION_BYTES


def _pause(topics: Sequence[_Found], context: RequestContext) -> i32Timedelta:
    """For a client that has much waiting for the database, or creates topics faster than it may. Not for long: what it
    produces waits for as long."""
    waits = i32Timedelta.parse(timedelta(milliseconds=context.parts.overload.of_lookup("Metadata")))
    if all(topic.said.error_code is not ErrorCode.leader_not_available for topic in topics):
        return waits
    longest = i32Timedelta.parse(timedelta(milliseconds=context.settings.throttle_max_ms))
    return max(waits, min(mutation_throttle(context, "Metadata"), longest))


def brokers(context: RequestContext) -> tuple[MetadataResponseBroker, ...]:
    return tuple(
        MetadataResponseBroker(
            node_id=BrokerId(endpoint.node_id), host=endpoint.host, port=i32(endpoint.port), rack=endpoint.zone
        )
        for endpoint in endpoints_of(context)
    )


async def _topics(request: MetadataRequest, context: RequestContext) -> list[_Found]:
    asks_for_all = request.topics is None or (not request.topics and context.api_version == 0)
    try:
        if asks_for_all:
            return [_found(topic) for topic in await context.parts.topics.all()]
        return await _asked_topics(request, context)
    except ADMINISTRATION_ERRORS as error:
        if asks_for_all:
            raise CloseConnection(f"the topics cannot be listed: {error}") from error
        # Retriable per topic; the brokers, which come from memory, are answered all the same.
        log.warning("metadata without topics", extra={"error": str(error)})
        return [
            _missing(ErrorCode.leader_not_available, asked.name, getattr(asked, "topic_id", None), context)
            for asked in request.topics or ()
        ]


async def _asked_topics(request: MetadataRequest, context: RequestContext) -> list[_Found]:
    topics = context.parts.topics
    asked = request.topics or ()
    # The id counts where there is one: Java's consumer sends an empty name beside it.
    ids = {TopicId(topic_id) for topic in asked if (topic_id := getattr(topic, "topic_id", None)) is not None}
    names = {topic.name for topic in asked if topic.name is not None and getattr(topic, "topic_id", None) is None}
    by_name = await topics.by_name(names) if names else {}
    by_id = await topics.by_id(ids) if ids else {}
    may_create = context.settings.auto_create_topics and getattr(request, "allow_auto_topic_creation", True)
    answers = []
    for name in names:
        if name in by_name:
            answers.append(_found(by_name[name]))
        elif may_create:
            answers.append(await _created(name, context))
        else:
            answers.append(_missing(ErrorCode.unknown_topic_or_partition, name, None, context))
    for topic_id in ids:
        if topic_id in by_id:
            answers.append(_found(by_id[topic_id]))
        else:
            answers.append(_missing(ErrorCode.unknown_topic_id, None, topic_id, context))
    return answers


async def _created(name: TopicName, context: RequestContext) -> _Found:
    topics = context.parts.topics
    try:
        async with mutations_taken(context.settings.default_partitions, context, refused_from=0):
            topic = await topics.create(name, context.settings.default_partitions, {})
        log.info("topic created on demand", extra={"topic": name, "client_id": context.client_id})
        return _found(topic)
    except TopicExists:
        again = await topics.by_name([name])
        if name in again:
            return _found(again[name])
        return _missing(ErrorCode.leader_not_available, name, None, context)
    except ADMINISTRATION_ERRORS as error:
        code = administration_code(error)
        return _missing(ErrorCode.leader_not_available if code.retriable else code, name, None, context)


def _missing(code: ErrorCode, name: TopicName | None, topic_id: TopicId | None, context: RequestContext) -> _Found:
    if name is None and context.api_version < _FIRST_VERSION_WITHOUT_NAMES:
        name = TopicName("")
    return _Found(said=MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=()))


def _found(topic: Topic) -> _Found:
    said = MetadataResponseTopic(
        error_code=ErrorCode.none, name=TopicName(topic.name), topic_id=topic.topic_id, partitions=()
    )
    return _Found(said=said, partitions=topic.partition_count)
