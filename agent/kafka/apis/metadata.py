"""Kafka API 3, Metadata, v0-v13 (KIP-36 racks, KIP-516 topic ids, KIP-1102 rebootstrap).

Routes are the ring's choice in the client's zone. A topic that does not exist is created if the client and
the agent's settings allow it.

The connection is closed in two cases. All topics are requested while the sequencer is away: an answer without
topics would say that there are none. Or no agent is known to be alive, not even this one, for example because
it slept past its lease: after an answer without brokers librdkafka 2.13 to 2.16 forgets all addresses and
never recovers (its issue 5301).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, Final, Protocol, get_args, get_type_hints
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.metadata.v13.response import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.serial.writers import Writer, write_unsigned_varint
from kio.static.primitive import i32, i32Timedelta, uvarint

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, CloseConnection
from agent.kafka.authorization import CLUSTER, TOPIC, is_silently_allowed, may, permitted, visible_topics
from agent.kafka.configs.authorized_operations import (
    UNKNOWN_OPERATIONS,
    authorized_operations,
    cluster_operations,
)
from agent.kafka.configs.mutation_quota import UsesMutationQuota, mutation_throttle, mutations_taken
from agent.kafka.context import RequestContext, asker_of
from agent.kafka.routing.routing import NO_NODE, Route, UsesRouting, controller_of, endpoints_of, route_of
from agent.kafka.transport.vectored import Encoded
from agent.kafka.uses import UsesAudit, UsesClusterId, UsesResponseMemory, UsesTopics
from agent.security.audit.events import Resource
from agent.slices import Slices
from sequencer.security.acl import CLUSTER_NAME, Operation
from sequencer.topics.topics import AUDIT_TOPIC, Topic, TopicExists
from storage.identifiers import Partition, TopicId

_METADATA_KEY: Final = 3
_LEADER_EPOCH: Final = i32(0)
_FIRST_FLEXIBLE_VERSION: Final = 9
_PARTITIONS_AT_ONCE: Final = 32
"""Partitions between two looks at the clock."""
_PIECES_OF_A_CHUNK: Final = 6_000
_NO_ID: Final = UUID(int=0)
_INDEX: Final = slice(2, 6)
"""The position of a partition's number: after its error code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    write_response: Writer[Any]
    write_topic: Writer[Any]
    write_partition: Writer[Any]
    topics_end: int
    """Bytes of a response behind its topics."""
    partitions_end: int
    """Bytes of a topic behind its partitions."""
    is_flexible: bool


@lru_cache
def _format(version: int) -> _Format:
    response = load_response_schema(_METADATA_KEY, version)
    topic = _element_type(response, "topics")
    partition = _element_type(topic, "partitions")
    tags = 1 if version >= _FIRST_FLEXIBLE_VERSION else 0
    has_cluster_operations, has_topic_operations, has_error = (
        version in range(8, 11),
        version >= 8,
        version >= 13,
    )
    return _Format(
        write_response=entity_writer(response),
        write_topic=entity_writer(topic),
        write_partition=entity_writer(partition),
        topics_end=(4 if has_cluster_operations else 0) + (2 if has_error else 0) + tags,
        partitions_end=(4 if has_topic_operations else 0) + tags,
        is_flexible=bool(tags),
    )


def _element_type(entity: Any, name: str) -> Any:
    return get_args(get_type_hints(entity)[name])[0]


class MetadataEncoder:
    """Writes one response, v0-v13, topic by topic and in slices, because it may have a million partitions.

    kio's writer takes 25 µs per partition. Here kio writes one partition for each route, and the encoder
    puts the partitions' numbers into copies of it. The bytes are those that kio would write for the whole
    response. No slice keeps the event loop for longer than some milliseconds.
    """

    def __init__(self, version: int, route: Callable[[TopicId, Partition], Route]) -> None:
        self._format = _format(version)
        self._route = route
        self._around: dict[Route, tuple[bytes, bytes]] = {}
        """The bytes before and behind a partition's number, by its route."""
        self._slices = Slices()
        self._topics = 0
        self._chunks: list[bytes] = []
        self._pieces: list[bytes] = []
        """Bytes of the next chunk."""

    async def add(self, topic: MetadataResponseTopic, partitions: int) -> None:
        """`topic` comes without partitions. It gets `partitions` of them, routed by its id."""
        topic_id = TopicId(topic.topic_id or _NO_ID)
        before_topic, behind_topic = self._around_entries(
            self._format.write_topic, topic, partitions, self._format.partitions_end
        )
        self._topics += 1
        self._pieces.append(before_topic)
        for start in range(0, partitions, _PARTITIONS_AT_ONCE):
            for number in range(start, min(start + _PARTITIONS_AT_ONCE, partitions)):
                route = self._route(topic_id, Partition(number))
                before, behind = self._around.get(route) or self._around_number(route)
                self._pieces += (before, number.to_bytes(4, "big"), behind)
            await self._end_piece()
        self._pieces.append(behind_topic)
        await self._end_piece()

    def response(self, response: object) -> Encoded:
        """`response` comes without topics. It gets those that were added."""
        before, behind = self._around_entries(
            self._format.write_response, response, self._topics, self._format.topics_end
        )
        buffers = [before, *self._chunks, b"".join(self._pieces), behind]
        return Encoded(buffers=buffers, size_bytes=sum(map(len, buffers)))

    def _around_entries(
        self, write: Writer[Any], whole: object, entries: int, bytes_behind: int
    ) -> tuple[bytes, bytes]:
        """Returns the bytes before and behind the entries of the array at the end of `whole`, where the last
        bytes are those behind the array.
        """
        written = _written(write, whole)
        end = len(written) - bytes_behind
        if not self._format.is_flexible:
            return written[: end - 4] + entries.to_bytes(4, "big"), written[end:]
        length = BytesIO()
        write_unsigned_varint(length, uvarint(entries + 1))
        return written[: end - 1] + length.getvalue(), written[end:]

    def _around_number(self, route: Route) -> tuple[bytes, bytes]:
        replicas = tuple(BrokerId(node_id) for node_id in route.replicas)
        partition = MetadataResponsePartition(
            error_code=ErrorCode.leader_not_available if route.leader == NO_NODE else ErrorCode.none,
            partition_index=i32(0),
            leader_id=BrokerId(route.leader),
            leader_epoch=_LEADER_EPOCH,
            replica_nodes=replicas,
            isr_nodes=replicas,
            offline_replicas=(),
        )
        written = _written(self._format.write_partition, partition)
        around = self._around[route] = written[: _INDEX.start], written[_INDEX.stop :]
        return around

    async def _end_piece(self) -> None:
        if len(self._pieces) >= _PIECES_OF_A_CHUNK:
            self._chunks.append(b"".join(self._pieces))
            self._pieces.clear()
        await self._slices.look()


def _written(write: Writer[Any], entity: object) -> bytes:
    buffer = BytesIO()
    write(buffer, entity)
    return buffer.getvalue()


class _Uses(
    UsesRouting, UsesResponseMemory, UsesClusterId, UsesTopics, UsesMutationQuota, UsesAudit, Protocol
):
    """The parts that this API uses."""


log = logging.getLogger("tidelog")

_TOPIC_BYTES: Final = 64
_PARTITION_BYTES: Final = 64
"""Bytes of an answer, with some replicas."""
_FIRST_VERSION_WITHOUT_NAMES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """The fields that the writers of all versions read. The operations are those of v8-v10."""

    throttle_time: i32Timedelta = NO_THROTTLE
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str
    controller_id: BrokerId
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: int = UNKNOWN_OPERATIONS
    error_code: ErrorCode = ErrorCode.none


class MetadataRequest(Protocol):
    """A request of any version."""

    topics: Sequence[MetadataRequestTopic] | None
    allow_auto_topic_creation: bool = True
    include_topic_authorized_operations: bool = False
    include_cluster_authorized_operations: bool = False
    """From version 8 to 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    said: MetadataResponseTopic
    """Without its partitions."""
    partitions: int = 0
    has_operations: bool = True
    """False: it is unknown by its id, or the client may not describe or create it."""


async def handle(request: MetadataRequest, context: RequestContext[_Uses]) -> Encoded:
    found = await _topics(request, context)
    await context.parts.response_memory.reserve(sum(map(_size, found)), context)
    encoder = MetadataEncoder(context.api_version, partial(route_of, context))
    for topic in found:
        said = (
            replace(
                topic.said,
                topic_authorized_operations=authorized_operations(TOPIC, topic.said.name or "", context),
            )
            if request.include_topic_authorized_operations and topic.has_operations
            else topic.said
        )
        if context.tenant is not None and said.name is not None:
            said = replace(said, name=TopicName(context.tenant.local(said.name)))
        await encoder.add(said, topic.partitions)
    alive = brokers(context)  # last: an agent that joined meanwhile may lead a requested partition
    if not alive:
        raise CloseConnection("no agent is known to be alive")
    response = _Response(
        throttle_time=_pause(found, context),
        brokers=alive,
        cluster_id=context.parts.cluster_id,
        controller_id=BrokerId(controller_of(context)),
        cluster_authorized_operations=cluster_operations(
            context, asked=request.include_cluster_authorized_operations
        ),
    )
    return encoder.response(response)


def _size(topic: _Found) -> int:
    return _TOPIC_BYTES + len(topic.said.name or "") + topic.partitions * _PARTITION_BYTES


def _pause(topics: Sequence[_Found], context: RequestContext[_Uses]) -> i32Timedelta:
    """Pauses for a client that has many requests waiting for the database, or creates topics faster than it
    may. The pause is short, because what the client produces waits as long.
    """
    waits = i32Timedelta.parse(timedelta(milliseconds=context.parts.overload.of_lookup("Metadata")))
    if all(topic.said.error_code is not ErrorCode.leader_not_available for topic in topics):
        return waits
    longest = i32Timedelta.parse(timedelta(milliseconds=context.settings.throttle_max_ms))
    return max(waits, min(mutation_throttle(context, "Metadata"), longest))


def brokers(context: RequestContext[UsesRouting]) -> tuple[MetadataResponseBroker, ...]:
    return tuple(
        MetadataResponseBroker(
            node_id=BrokerId(endpoint.node_id),
            host=endpoint.host,
            port=i32(endpoint.port),
            rack=endpoint.zone,
        )
        for endpoint in endpoints_of(context)
    )


async def _topics(request: MetadataRequest, context: RequestContext[_Uses]) -> list[_Found]:
    asks_for_all = request.topics is None or (not request.topics and context.api_version == 0)
    try:
        if asks_for_all:
            topics = await visible_topics(await context.parts.topics.all(), context)
            return [_found(topic) for topic in topics]
        return await _asked_topics(request, context)
    except ADMINISTRATION_ERRORS as error:
        if asks_for_all:
            raise CloseConnection(f"the topics cannot be listed: {error}") from error
        # Retriable per topic. The brokers come from memory and are answered all the same.
        log.warning("metadata without topics", extra={"error": str(error)})
        return [
            _missing(ErrorCode.leader_not_available, asked.name, asked.topic_id, context)
            for asked in request.topics or ()
        ]


async def _asked_topics(request: MetadataRequest, context: RequestContext[_Uses]) -> list[_Found]:
    topics = context.parts.topics
    asked = request.topics or ()
    # An id counts before a name: Java's consumer sends an empty name with it.
    ids = {TopicId(topic_id) for topic in asked if (topic_id := topic.topic_id) is not None}
    names = {topic.name for topic in asked if topic.name is not None and topic.topic_id is None}
    visible = permitted(Operation.DESCRIBE, TOPIC, names, context)
    by_name = await topics.by_name(visible) if visible else {}
    by_id = await topics.by_id(ids) if ids else {}
    may_create = context.settings.auto_create_topics and request.allow_auto_topic_creation
    found = []
    for name in names:
        if name not in visible:
            found.append(_refused(name, None, context))
        elif name in by_name:
            found.append(_found(by_name[name]))
        elif name == AUDIT_TOPIC:  # only agents create it on demand
            found.append(_missing(ErrorCode.unknown_topic_or_partition, name, None, context))
        elif may_create and not _is_creatable(name, context):
            found.append(_refused(name, None, context))
        elif may_create:
            found.append(await _created(name, context))
        else:
            found.append(_missing(ErrorCode.unknown_topic_or_partition, name, None, context))
    for topic_id in ids:
        topic = by_id.get(topic_id)
        if topic is not None and not may(Operation.DESCRIBE, TOPIC, topic.name, context):
            found.append(_refused(None, topic_id, context))
        elif topic_id in by_id:
            found.append(_found(by_id[topic_id]))
        else:
            found.append(_missing(ErrorCode.unknown_topic_id, None, topic_id, context))
    return found


def _is_creatable(name: str, context: RequestContext[_Uses]) -> bool:
    return is_silently_allowed(Operation.CREATE, CLUSTER, CLUSTER_NAME, context) or may(
        Operation.CREATE, TOPIC, name, context
    )


async def _created(name: TopicName, context: RequestContext[_Uses]) -> _Found:
    topics = context.parts.topics
    try:
        async with mutations_taken(context.settings.default_partitions, context, refused_from=0):
            topic = await topics.create(name, context.settings.default_partitions, {})
        created = Resource(type="TOPIC", name=name, change={"partitions": str(topic.partition_count)})
        asker = asker_of(context.connection, context.client_id)
        context.parts.audit.changed(asker, "Metadata", [created], "created on demand")
        return _found(topic)
    except TopicExists:
        again = await topics.by_name([name])
        if name in again:
            return _found(again[name])
        return _missing(ErrorCode.leader_not_available, name, None, context)
    except ADMINISTRATION_ERRORS as error:
        code = administration_code(error)
        return _missing(ErrorCode.leader_not_available if code.retriable else code, name, None, context)


def _missing(
    code: ErrorCode, name: TopicName | None, topic_id: UUID | None, context: RequestContext[_Uses]
) -> _Found:
    if name is None and context.api_version < _FIRST_VERSION_WITHOUT_NAMES:
        name = TopicName("")
    said = MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=())
    is_hidden = code is ErrorCode.topic_authorization_failed
    return _Found(said=said, has_operations=topic_id is None and not is_hidden)


def _refused(name: TopicName | None, topic_id: UUID | None, context: RequestContext[_Uses]) -> _Found:
    return _missing(ErrorCode.topic_authorization_failed, name, topic_id, context)


def _found(topic: Topic) -> _Found:
    said = MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.name == AUDIT_TOPIC,
        partitions=(),
    )
    return _Found(said=said, partitions=topic.partition_count)
