"""Kafka API 20, DeleteTopics, v1-v6 (KIP-516: by topic id from v6 on, KIP-599 quota).

The name is free at once; the bytes are deleted later. An id deletes exactly the topic of that id, whatever
topic has its name by then. Refused: a topic named twice, by neither name nor id, or by both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from kio.schema.delete_topics.v6.request import DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.authorization import CLUSTER, TOPIC, is_silently_allowed, may, note_refusal
from agent.kafka.configs.administration import named_twice, within
from agent.kafka.configs.mutation_quota import (
    UsesMutationQuota,
    count_mutations,
    mutation_throttle,
    mutations_taken,
)
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesTopics
from sequencer.security.acl import CLUSTER_NAME, Operation
from sequencer.topics.topics import Topic, UnknownTopic
from storage.identifiers import TopicId


class _Uses(UsesTopics, UsesMutationQuota, Protocol):
    """The parts that this API uses."""


_FIRST_VERSION_WITH_STATES: Final = 6
_REFUSED_FROM: Final = 5


class DeleteTopicsRequest(Protocol):
    """A request of any version."""

    timeout: timedelta
    topics: Sequence[DeleteTopicState] = ()
    topic_names: Sequence[TopicName] = ()
    """Until version 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doomed:
    name: TopicName | None
    topic_id: TopicId | None


_NOTHING: Final = _Doomed(name=None, topic_id=None)


async def handle(request: DeleteTopicsRequest, context: RequestContext[_Uses]) -> DeleteTopicsResponse:
    if context.api_version >= _FIRST_VERSION_WITH_STATES:
        doomed = [
            _Doomed(name=topic.name, topic_id=None if topic.topic_id is None else TopicId(topic.topic_id))
            for topic in request.topics
        ]
    else:
        doomed = [_Doomed(name=name, topic_id=None) for name in request.topic_names]
    results = []
    for topic, repeated in (await _once(doomed, context)).items():
        try:
            if repeated is not None:
                raise AdministrationRefused(ErrorCode.invalid_request, repeated)
            await _check_authorized(topic, context)
            async with within(request.timeout, context):
                async with mutations_taken(1, context, refused_from=_REFUSED_FROM):
                    await _check_authorized(topic, context)  # again: the quota may have made it wait
                    deleted = await _delete(topic, context)
                count_mutations(deleted.partition_count - 1, context)
        except _Hidden as error:
            hidden = _Doomed(name=error.name, topic_id=topic.topic_id)
            results.append(_result(hidden, error.code, str(error)))
        except ADMINISTRATION_ERRORS as error:
            results.append(_result(topic, administration_code(error), str(error)))
        else:
            results.append(
                DeletableTopicResult(
                    name=TopicName(deleted.name),
                    topic_id=deleted.topic_id,
                    error_code=ErrorCode.none,
                    error_message=None,
                )
            )
    return DeleteTopicsResponse(
        throttle_time=mutation_throttle(context, "DeleteTopics"), responses=tuple(results)
    )


async def _once(doomed: Sequence[_Doomed], context: RequestContext[_Uses]) -> dict[_Doomed, str | None]:
    """Returns each topic once, with the error if it is named more often: by name, by id, or by both in
    turn.
    """
    twice = named_twice(doomed)
    found: dict[_Doomed, str | None] = {}
    for topic in doomed:
        repeated = "Duplicate topic name." if topic.name is not None else "Duplicate topic id."
        found[topic] = repeated if topic in twice and topic != _NOTHING else None
    names = [topic.name for topic in found if topic.name is not None and topic.topic_id is None]
    by_id = {topic.topic_id: topic for topic in found if topic.name is None and topic.topic_id is not None}
    try:
        called = await context.parts.topics.fresh(names) if names and by_id else {}
    except ADMINISTRATION_ERRORS:
        called = {}  # their deletion fails for the same reason
    for name, topic_of_name in called.items():
        if topic_of_name.topic_id in by_id:
            del found[by_id[topic_of_name.topic_id]]
            del found[_Doomed(name=TopicName(name), topic_id=None)]
            both_ways = _Doomed(name=TopicName(name), topic_id=topic_of_name.topic_id)
            found[both_ways] = "The provided topic name maps to an ID that was already supplied."
    return found


class _Hidden(AdministrationRefused):
    """The client may not delete the topic. `name` is shown to a client that may describe it, or named it."""

    def __init__(self, name: str | None) -> None:
        super().__init__(ErrorCode.topic_authorization_failed, "Authorization failed.")
        self.name = None if name is None else TopicName(name)


async def _check_authorized(doomed: _Doomed, context: RequestContext[_Uses]) -> None:
    """Raises _Hidden, or one of ADMINISTRATION_ERRORS. Only a topic that the client may delete is left to the
    deletion: another client may create one of this name before it.
    """
    if is_silently_allowed(Operation.DELETE, CLUSTER, CLUSTER_NAME, context):
        return
    if doomed.name is not None and doomed.topic_id is not None:
        return  # the deletion refuses it, whoever asks
    if doomed.name is not None:
        if not may(Operation.DESCRIBE, TOPIC, doomed.name, context):
            raise _Hidden(doomed.name)
        if is_silently_allowed(Operation.DELETE, TOPIC, doomed.name, context):
            return
        if not await context.parts.topics.fresh([doomed.name]):
            raise UnknownTopic(f"There is no topic '{doomed.name[:300]}'.")
        note_refusal(Operation.DELETE, TOPIC, doomed.name, context)
        raise _Hidden(doomed.name)
    if doomed.topic_id is not None:
        topic = (await context.parts.topics.by_id([doomed.topic_id])).get(doomed.topic_id)
        if topic is None:
            raise AdministrationRefused(ErrorCode.unknown_topic_id, "There is no topic of this id.")
        if not may(Operation.DELETE, TOPIC, topic.name, context):
            is_visible = is_silently_allowed(Operation.DESCRIBE, TOPIC, topic.name, context)
            raise _Hidden(topic.name if is_visible else None)


async def _delete(doomed: _Doomed, context: RequestContext[_Uses]) -> Topic:
    """Raises one of ADMINISTRATION_ERRORS."""
    topics = context.parts.topics
    if doomed.name is not None and doomed.topic_id is not None:
        raise AdministrationRefused(
            ErrorCode.invalid_request, "You may not specify both topic name and topic id."
        )
    if doomed.name is not None:
        return await topics.delete(doomed.name)
    if doomed.topic_id is None:
        raise AdministrationRefused(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    try:
        return await topics.delete_by_id(doomed.topic_id)
    except UnknownTopic as error:
        raise AdministrationRefused(ErrorCode.unknown_topic_id, str(error)) from error


def _result(doomed: _Doomed, code: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=doomed.name, topic_id=doomed.topic_id, error_code=code, error_message=message
    )
